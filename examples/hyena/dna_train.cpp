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
  std::string data, out = "runs/dna", device;
  example::DnaSpec spec;
  int64_t steps = 700, batch = 16, save_every = 200, baseline_order = 8, eval_windows = 512, length_warmup = 0;
  double lr = 6e-3, weight_decay = 0.1;
  uint64_t seed = 1;
  bool resume = false, require = false;
};

void declare(CLI::App& app, Options& o) {
  app.add_option("--data", o.data, "FASTA (gzipped or not) or .2bit file");
  app.add_option("--out", o.out, "folder for checkpoints, metrics and pictures");
  example::add_device(app, o.device);
  app.add_option("--d-model", o.spec.d_model)->check(CLI::PositiveNumber);
  app.add_option("--layers", o.spec.layers)->check(CLI::PositiveNumber);
  app.add_option("--length", o.spec.l_max, "bases a sequence")->check(CLI::PositiveNumber);
  app.add_option("--length-warmup", o.length_warmup,
                 "start at an eighth of the length and double it every so many steps");
  app.add_option("--steps", o.steps)->check(CLI::PositiveNumber);
  app.add_option("--batch", o.batch)->check(CLI::PositiveNumber);
  app.add_option("--lr", o.lr);
  app.add_option("--weight-decay", o.weight_decay, "of matrices outside the filters");
  app.add_option("--baseline-order", o.baseline_order, "largest order of the Markov baseline")
      ->check(CLI::Range(1, 12));
  app.add_option("--eval-windows", o.eval_windows, "windows of the held-out tenth to evaluate on");
  app.add_option("--seed", o.seed);
  app.add_option("--save-every", o.save_every, "steps between checkpoints")->check(CLI::PositiveNumber);
  app.add_flag("--resume", o.resume, "go on from the last checkpoint in --out");
  app.add_flag("--require-baseline", o.require, "exit with 1 unless the model beats the order-1 chain");
}

/// As published for HyenaDNA: no decay on the filters' own network, biases and norms; decay on the other matrices.
std::vector<optim::ParamGroup<optim::AdamWOptions>> groups(const models::HyenaLM& model, const Options& o) {
  std::vector<Tensor> decayed, plain;
  for (const auto& [name, tensor] : model.named_parameters()) {
    const bool filter = name.find("filter_fn") != std::string::npos;
    (tensor.rank() >= 2 && !filter ? decayed : plain).push_back(tensor);
  }
  return {{decayed, {.lr = o.lr, .weight_decay = o.weight_decay}}, {plain, {.lr = o.lr, .weight_decay = 0}}};
}

int run(const Options& o) {
  const Device device = example::device_of(o.device);
  const std::string genome = example::load_genome(o.data);
  const std::string training = genome.substr(0, genome.size() / 10 * 9), held_out = genome.substr(training.size());

  manual_seed(o.seed);
  models::HyenaLM model(o.spec.options());
  model.to(device);
  optim::AdamW optimizer(groups(model, o));
  optim::Scheduler scheduler(optimizer,
                             optim::cosine_schedule({.steps = o.steps, .warmup_steps = o.steps / 20, .end = 0.1}));
  example::Checkpoints checkpoints(o.out, model, optimizer, scheduler, o.spec.metadata());
  int64_t step = o.resume ? checkpoints.resume(device) : 0;
  example::RunFolder folder(o.out, step);
  std::printf("HyenaDNA-style model on %s: %zu bases (a tenth held out), %lld parameters, on %s%s\n",
              o.data.empty() ? "E. coli" : o.data.c_str(), genome.size(),
              static_cast<long long>(model.num_parameters()), device.str().c_str(),
              step > 0 ? concat(", going on from step ", step).c_str() : "");

  example::Progress progress("dna", o.steps, "bases", o.batch * o.spec.l_max);
  while (step < o.steps) {
    const int64_t length = example::warmed_up(o.spec.l_max, o.spec.l_max / 8, o.length_warmup, step);
    const Tensor ids = example::random_windows(training, o.batch, length, default_generator()).to(device);
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
    if (step % o.save_every == 0 || step == o.steps) checkpoints.save(step);
  }
  progress.finish();

  const double bits = example::bits_per_base(model, held_out, o.spec.l_max, o.eval_windows, device);
  const auto first = example::markov_baseline(training, held_out, 1);
  const auto best = example::best_markov_baseline(training, held_out, static_cast<int>(o.baseline_order));
  std::printf("\n  bits a base on the held-out tenth (2 is chance)\n  %-28s %.4f\n  %-28s %.4f\n  %-28s %.4f\n\n",
              "Hyena", bits, "Markov chain, order 1", first.bits,
              concat("best Markov chain, order ", best.order).c_str(), best.bits);
  folder.log(step, {{"held_out_bits", bits}, {"markov1_bits", first.bits}, {"markov_best_bits", best.bits}});
  save_safetensors(folder.file("model.safetensors"), model.state_dict(), o.spec.metadata());
  example::write_chart(folder.file("loss.png"), "dna training: bits a base", "step", {{"bits", folder.series("bits")}});
  std::printf("In %s: model.safetensors, checkpoint.safetensors, metrics.jsonl, loss.png\n", o.out.c_str());
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
