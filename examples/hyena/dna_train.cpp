// Trains a HyenaDNA-style language model on a genome and compares it with order-k Markov chains.
//
//   dna_train                                the E. coli genome that comes with Halo
//   dna_train --data genome.fa.gz            any FASTA
//   dna_train --out runs/dna --resume        goes on where the last run stopped
//
// Far below every Markov chain on E. coli, as scripts/train_on_gpu.sh has it:
//   dna_train --d-model 128 --layers 4 --length 512 --batch 64 --steps 1200 --lr 3e-3 --dropout 0.1 --embed-dropout 0.1
//
// Pretraining with the published hyper-parameters of HyenaDNA (Nguyen et al., NeurIPS 2023, appendix A.1, and its
// configuration for hg38): AdamW with betas 0.9 and 0.999, weight decay 0.1 outside the filters, learning rate 6e-4
// after a warm-up of 1 % from 1e-6, a cosine down to a tenth, gradients clipped to 1, dropout 0.1 after the embedding,
// 10,000 steps of 256 sequences, lengths doubled from an eighth:
//   dna_train --data hg38.fa.gz --d-model 128 --layers 2 --length 1024 --batch 256 --steps 10000 --lr 6e-4 --warmup 100
//             --weight-decay 0.1 --embed-dropout 0.1 --length-warmup 500 --seed 2222
#include <halo/halo.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "dna_data.h"
#include "dna_model.h"
#include "examples/common/program.h"
#include "examples/common/progress.h"
#include "examples/common/resume.h"
#include "examples/common/run_folder.h"
#include "markov.h"
#include <CLI/CLI.hpp>

namespace {

using namespace halo;

struct Options {
  example::TrainingOptions training{.out = "runs/dna", .batch = 16, .lr = 6e-3, .save_every = 200};
  std::string data;
  example::DnaSpec spec;
  int64_t steps = 1200, warmup = 0, length_warmup = 0, eval_every = 0, eval_windows = 0, baseline_order = 8;
  double weight_decay = 0.1, embed_dropout = 0, dropout = 0;
  std::string require;
};

void declare(CLI::App& app, Options& o) {
  app.add_option("--data", o.data, "FASTA (gzipped or not) or .2bit file; default: the genome of E. coli")
      ->check(CLI::ExistingFile);
  example::add_count(app, "--d-model", o.spec.d_model, "width of the model", 1, 1 << 16);
  example::add_count(app, "--layers", o.spec.layers, "blocks of the model", 1, 1024);
  example::add_count(app, "--length", o.spec.l_max, "bases a sequence", 2);
  example::add_count(app, "--length-warmup", o.length_warmup,
                     "start at an eighth of the length and double it every so many steps; 0: no warm-up", 0);
  example::add_count(app, "--steps", o.steps, "updates of the weights");
  example::add_count(app, "--warmup", o.warmup, "steps in which the learning rate rises; 0: a twentieth of all", 0);
  example::add_number(app, "--weight-decay", o.weight_decay, "of matrices outside the filters", 0, 1000);
  example::add_number(app, "--embed-dropout", o.embed_dropout, "after the embedding", 0, 1);
  example::add_number(app, "--dropout", o.dropout, "of what each half of a layer adds", 0, 1);
  example::add_count(app, "--baseline-order", o.baseline_order, "largest order of the Markov baseline", 1, 12);
  example::add_count(app, "--eval-windows", o.eval_windows, "windows of the held-out tenth to evaluate on; 0: all", 0);
  example::add_count(app, "--eval-every", o.eval_every,
                     "steps from one look at the held-out tenth to the next; 0: only in the end", 0);
  example::add_training(app, o.training);
  app.add_option("--require-baseline", o.require,
                 "exit with 1 unless the model beats this chain: that of order 1, or the best")
      ->check(CLI::IsMember({"1", "best"}));
}

/// As published for HyenaDNA: no decay on the filters' own network, biases and norms; decay on the other matrices.
std::vector<optim::ParamGroup<optim::AdamWOptions>> groups(const models::HyenaLM& model, const Options& o) {
  std::vector<Tensor> decayed, plain;
  for (const auto& [name, tensor] : model.named_parameters()) {
    const bool filter = name.find("filter_fn") != std::string::npos;
    (tensor.rank() >= 2 && !filter ? decayed : plain).push_back(tensor);
  }
  return {{decayed, {.lr = o.training.lr, .weight_decay = o.weight_decay}},
          {plain, {.lr = o.training.lr, .weight_decay = 0}}};
}

int run(const Options& o) {
  const example::TrainingOptions& training = o.training;
  const Device device = example::device_of(training.device);
  const std::string genome = example::load_genome(o.data);
  const std::string known = genome.substr(0, genome.size() / 10 * 9), held_out = genome.substr(known.size());

  manual_seed(training.seed);
  models::HyenaLMOptions options = o.spec.options();
  options.embed_dropout = o.embed_dropout;
  options.resid_dropout = o.dropout;
  models::HyenaLM model(options);
  model.to(device);
  optim::AdamW optimizer(groups(model, o));
  optim::Scheduler scheduler(optimizer, optim::cosine_schedule({.steps = o.steps,
                                                                .warmup_steps = o.warmup > 0 ? o.warmup : o.steps / 20,
                                                                .warmup_start = std::min(1.0, 1e-6 / training.lr),
                                                                .end = 0.1}));
  example::Checkpoints checkpoints(training, model, optimizer, scheduler, o.spec.metadata());
  int64_t step = checkpoints.resume(device);
  example::RunFolder folder(training.out, step);
  std::printf("HyenaDNA-style model on %s: %zu bases (a tenth held out), %lld parameters, on %s%s\n",
              o.data.empty() ? "E. coli" : o.data.c_str(), genome.size(),
              static_cast<long long>(model.num_parameters()), device.str().c_str(), example::going_on(step).c_str());

  example::Progress progress("dna", o.steps, "bases", training.batch * o.spec.l_max);
  while (step < o.steps) {
    const int64_t length = example::warmed_up(o.spec.l_max, o.spec.l_max / 8, o.length_warmup, step);
    const Tensor ids = example::random_windows(known, training.batch, length, default_generator()).to(device);
    const Tensor loss = example::next_base_loss(model, ids, length);
    optimizer.zero_grad();
    loss.backward();
    optim::clip_grad_norm_(model.parameters(), 1.0);
    optimizer.step();
    scheduler.step();
    ++step;
    const double bits = loss.item() / std::log(2.0);
    folder.log(step, {{"bits", bits}, {"lr", optimizer.lr()}});
    progress.step(step, loss.item(), concat(bits).substr(0, 6) + " bits a base");
    checkpoints.save_if_due(step, step == o.steps);
    if (o.eval_every > 0 && step % o.eval_every == 0 && step < o.steps) {
      const double now = example::bits_per_base(model, held_out, o.spec.l_max, o.eval_windows, device);
      folder.log(step, {{"held_out_bits", now}});
      std::printf("step %lld: %.4f bits a base on the held-out tenth\n", static_cast<long long>(step), now);
      std::fflush(stdout);
    }
  }
  progress.finish();

  const double bits = example::bits_per_base(model, held_out, o.spec.l_max, o.eval_windows, device);
  const auto first = example::markov_baseline(known, held_out, 1);
  const auto best = example::best_markov_baseline(known, held_out, static_cast<int>(o.baseline_order));
  std::printf("\n  bits a base on the held-out tenth (2 is chance)\n  %-28s %.4f\n  %-28s %.4f\n  %-28s %.4f\n\n",
              "Hyena", bits, "Markov chain, order 1", first.bits,
              concat("best Markov chain, order ", best.order).c_str(), best.bits);
  folder.log(step, {{"held_out_bits", bits}, {"markov1_bits", first.bits}, {"markov_best_bits", best.bits}});
  save_safetensors(folder.file("model.safetensors"), model.state_dict(), o.spec.metadata());
  example::write_chart(folder.file("loss.png"), "dna training: bits a base", "step", {{"bits", folder.series("bits")}});
  std::printf("In %s: model.safetensors, checkpoint.safetensors, metrics.jsonl, loss.png\n", training.out.c_str());
  if (!o.require.empty() && bits >= (o.require == "1" ? first : best).bits) {
    std::printf("The model did not beat the %s chain.\n", o.require == "1" ? "order-1" : "best");
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Trains a Hyena language model on DNA", "dna_train"};
  declare(app, options);
  return example::run_program(app, argc, argv, [&] { return run(options); });
}
