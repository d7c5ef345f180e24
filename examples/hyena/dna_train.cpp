// Trains a HyenaDNA-style language model on a genome and compares it with order-k Markov chains.
//
//   dna_train                                the E. coli genome that comes with Halo
//   dna_train --data genome.fa.gz            any FASTA
//   dna_train --out runs/dna --resume        goes on where the last run stopped
#include <halo/halo.h>

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
  int64_t steps = 700, baseline_order = 8, eval_windows = 512, length_warmup = 0;
  double weight_decay = 0.1;
  bool require = false;
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
  example::add_number(app, "--weight-decay", o.weight_decay, "of matrices outside the filters", 0, 1000);
  example::add_count(app, "--baseline-order", o.baseline_order, "largest order of the Markov baseline", 1, 12);
  example::add_count(app, "--eval-windows", o.eval_windows, "windows of the held-out tenth to evaluate on");
  example::add_training(app, o.training);
  app.add_flag("--require-baseline", o.require, "exit with 1 unless the model beats the order-1 chain");
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
  models::HyenaLM model(o.spec.options());
  model.to(device);
  optim::AdamW optimizer(groups(model, o));
  optim::Scheduler scheduler(optimizer,
                             optim::cosine_schedule({.steps = o.steps, .warmup_steps = o.steps / 20, .end = 0.1}));
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
  if (o.require && bits >= first.bits) {
    std::printf("The model did not beat the order-1 chain.\n");
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
