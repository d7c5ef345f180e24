// Associative recall: a sequence of key-value pairs, each sequence with its own dictionary; the model must give the
// value of a key it has seen. A Hyena model learns it, a model without a memory cannot.
//
//   recall [--vocab 10] [--pairs 32] [--steps 800] [--out runs/recall] [--resume]
//
// Sequences of 2048 tokens, on an H200; the width is what a larger vocabulary needs:
//   recall --vocab 10 --pairs 1024 --steps 400                    100 % in 3 s
//   recall --vocab 20 --pairs 1023 --steps 1300 --lr 2e-3         100 % in 14 s
//   recall --vocab 40 --pairs 1023 --steps 3500 --lr 2e-3 --d-model 256 --eval-every 300 --until 0.995
//                                                                  99 % after 600 steps, 33 s beside three others
#include <halo/halo.h>
#include <halo/nn/models/recall.h>

#include <cstdio>

#include "examples/common/program.h"
#include "examples/common/progress.h"
#include "examples/common/resume.h"
#include "examples/common/run_folder.h"
#include <CLI/CLI.hpp>

namespace {

using namespace halo;

constexpr int64_t kIgnore = -100;

/// For every key of `batch` that came before, the value that must follow; kIgnore elsewhere. One answer a sequence
/// would teach too, only slower.
Tensor answers(const models::RecallBatch& batch) {
  const auto ids = batch.ids.to_vector<int64_t>(), last = batch.target.to_vector<int64_t>();
  const int64_t rows = batch.ids.size(0), length = batch.ids.size(1);
  std::vector<int64_t> targets(ids.size(), kIgnore);
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<bool> seen(1024, false);
    for (int64_t i = 0; i < length; i += 2) {
      const auto at = static_cast<std::size_t>(row * length + i);
      const auto key = static_cast<std::size_t>(ids[at]);
      const int64_t value = i + 1 < length ? ids[at + 1] : last[static_cast<std::size_t>(row)];
      if (seen[key]) targets[at] = value;
      seen[key] = true;
    }
  }
  return from_vector(targets, batch.ids.shape());
}

struct TrainingBatch {
  Tensor ids, targets;
};

TrainingBatch next_batch(const models::RecallOptions& options, Device device) {
  const auto batch = models::make_recall_batch(options);
  return {batch.ids.to(device), answers(batch).flatten().to(device)};
}

/// On fresh sequences, which follow from `draws` alone.
double accuracy(models::HyenaLM& model, const models::RecallOptions& options, int64_t batches, PhiloxState draws,
                Device device) {
  const NoGradGuard no_grad;
  Generator generator;
  generator.set_state(draws);
  model.eval();
  int64_t right = 0, total = 0;
  for (int64_t i = 0; i < batches; ++i) {
    const auto batch = models::make_recall_batch(options, generator);
    const auto guesses = argmax(models::recall_logits(model, batch.ids.to(device)), 1).to_vector<int64_t>();
    const auto targets = batch.target.to_vector<int64_t>();
    for (std::size_t k = 0; k < targets.size(); ++k) right += guesses[k] == targets[k];
    total += static_cast<int64_t>(targets.size());
  }
  model.train();
  return static_cast<double>(right) / static_cast<double>(total);
}

struct Options {
  example::TrainingOptions training{.out = "runs/recall", .batch = 32, .lr = 4e-3};
  models::RecallOptions task{.pairs = 32, .vocab_size = 10};
  int64_t steps = 800, eval_every = 0, length_warmup = 0, d_model = 64;
  double until = 2;
};

Metadata metadata(const Options& o) {
  return {{"vocab_size", std::to_string(o.task.vocab_size)},
          {"pairs", std::to_string(o.task.pairs)},
          {"d_model", std::to_string(o.d_model)}};
}

/// The task of a step: shorter at first where there is a warm-up.
models::RecallOptions task_at(const Options& o, int64_t step) {
  models::RecallOptions now = o.task;
  now.pairs = example::warmed_up(o.task.pairs, o.task.pairs / 16, o.length_warmup, step - 1);
  return now;
}

int run(Options o) {
  constexpr int64_t kEvalBatches = 32;
  const example::TrainingOptions& training = o.training;
  const Device device = example::device_of(training.device);
  manual_seed(training.seed);
  o.task.batch = training.batch;
  models::HyenaLMOptions options = models::recall_model_options(o.task);
  options.mixer.d_model = o.d_model;
  models::HyenaLM model(options);
  model.to(device);
  optim::AdamW optimizer(model.parameters(), {.lr = training.lr, .weight_decay = 0.1});
  optim::Scheduler scheduler(optimizer,
                             optim::cosine_schedule({.steps = o.steps, .warmup_steps = o.steps / 20, .end = 0.05}));
  example::Checkpoints checkpoints(training, model, optimizer, scheduler, metadata(o));
  int64_t step = checkpoints.resume(device);
  example::RunFolder folder(training.out, step);
  const auto look = [&](int64_t batches) {
    const double share =
        accuracy(model, o.task, batches, {training.seed + 1000, static_cast<uint64_t>(step) << 32}, device);
    folder.log(step, {{"accuracy", share}});
    return share;
  };
  std::printf("Associative recall, vocabulary %lld, %lld pairs: %lld parameters, on %s%s\n",
              static_cast<long long>(o.task.vocab_size), static_cast<long long>(o.task.pairs),
              static_cast<long long>(model.num_parameters()), device.str().c_str(), example::going_on(step).c_str());
  example::Progress progress("recall", o.steps, "sequences", training.batch);
  TrainingBatch batch;
  if (step < o.steps) batch = next_batch(task_at(o, step + 1), device);
  while (step < o.steps) {
    const Tensor loss = cross_entropy(model(batch.ids).flatten(0, 1), batch.targets, {.ignore_index = kIgnore});
    optimizer.zero_grad();
    loss.backward();
    optim::clip_grad_norm_(model.parameters(), 1.0);
    optimizer.step();
    scheduler.step();
    ++step;
    const PhiloxState draws = default_generator().state();
    batch = next_batch(task_at(o, step + 1), device);  // while the GPU works
    const double value = loss.item();
    folder.log(step, {{"loss", value}});
    progress.step(step, value);
    const bool looks = o.eval_every > 0 && step % o.eval_every == 0 && step < o.steps;
    const double share = looks ? look(kEvalBatches / 8 + 1) : 0;
    checkpoints.save_if_due(step, step == o.steps, draws);
    if (!looks) continue;
    std::printf("step %lld: recalled %.2f %%\n", static_cast<long long>(step), 100 * share);
    std::fflush(stdout);
    if (share >= o.until) break;
  }
  progress.finish();
  const double share = look(kEvalBatches);
  std::printf("\n  recalled %.2f %% of %lld fresh sequences (chance %.1f %%)\n\n", 100 * share,
              static_cast<long long>(kEvalBatches * training.batch), 200.0 / static_cast<double>(o.task.vocab_size));
  save_safetensors(folder.file("model.safetensors"), model.state_dict(), metadata(o));
  example::write_chart(folder.file("loss.png"), "associative recall: training loss", "step",
                       {{"loss", folder.series("loss")}});
  if (share < training.at_least) {
    std::printf("Accuracy is below the %.1f %% asked for.\n", 100 * training.at_least);
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Trains a Hyena model on associative recall", "recall"};
  Options o;
  example::add_count(app, "--vocab", o.task.vocab_size, "half keys, half values; even", 2, 1024);
  example::add_count(app, "--pairs", o.task.pairs, "key-value pairs a sequence", 1, 1 << 24);
  example::add_count(app, "--d-model", o.d_model, "width of the model", 1, 1 << 16);
  example::add_count(app, "--steps", o.steps, "updates of the weights");
  example::add_count(app, "--length-warmup", o.length_warmup,
                     "start at a sixteenth of the pairs and double them every so many steps; 0: no warm-up", 0);
  example::add_count(app, "--eval-every", o.eval_every, "steps from one look at the accuracy to the next; 0: none", 0);
  example::add_number(app, "--until", o.until, "stop as soon as such a look sees this accuracy; above 1: never", 0, 2);
  example::add_training(app, o.training);
  example::add_at_least(app, o.training);
  return example::run_program(app, argc, argv, [&] { return run(o); });
}
