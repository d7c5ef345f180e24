// Trains an AlexNet-style classifier, shows its progress, and leaves checkpoints, metrics and pictures in a folder.
//
//   alexnet_train                                the Fashion-MNIST excerpt that comes with Halo
//   alexnet_train --data FOLDER                  IDX files, CIFAR-10 binaries, or images by class
//   alexnet_train --out runs/alexnet --resume    goes on where the last run stopped: the same bits as if it had not
#include <halo/halo.h>

#include <cstdio>

#include "dataset.h"
#include "examples/common/program.h"
#include "examples/common/progress.h"
#include "examples/common/resume.h"
#include "examples/common/run_folder.h"
#include "model.h"
#include <CLI/CLI.hpp>

namespace {

using namespace halo;

struct Options {
  example::TrainingOptions training{.out = "runs/alexnet", .batch = 64, .lr = 2e-3};
  std::string data;
  int64_t epochs = 14, limit = 0;
  double width = 0.25;
};

void declare(CLI::App& app, Options& o) {
  app.add_option("--data", o.data,
                 "folder of IDX files, CIFAR-10 binaries or images by class; default: the excerpt of Fashion-MNIST")
      ->check(CLI::ExistingDirectory);
  example::add_count(app, "--epochs", o.epochs, "passes over the training images");
  example::add_number(app, "--width", o.width, "factor on the channels of all layers but the first", 0.001, 64);
  example::add_count(app, "--limit", o.limit, "training images used; 0: all", 0);
  example::add_training(app, o.training);
  example::add_at_least(app, o.training);
}

struct Batch {
  Tensor images, labels;
};

/// Right answers by true class.
struct Score {
  std::vector<int64_t> right, total;
  double accuracy() const {
    int64_t r = 0, t = 0;
    for (std::size_t i = 0; i < right.size(); ++i) r += right[i], t += total[i];
    return static_cast<double>(r) / static_cast<double>(std::max<int64_t>(1, t));
  }
};

Score evaluate(example::Classifier& net, const data::ImageSet& set, Device device) {
  constexpr int64_t kBatch = 250;
  const NoGradGuard no_grad;
  net.eval();
  Score score{std::vector<int64_t>(set.class_names.size()), std::vector<int64_t>(set.class_names.size())};
  const int64_t channels = set.images.size(1);
  for (int64_t start = 0; start < set.images.size(0); start += kBatch) {
    const Tensor images = example::prepare(set.images.slice(0, start, start + kBatch), channels).to(device);
    const auto guesses = argmax(net(images), 1).to_vector<int64_t>();
    const auto labels = set.labels.slice(0, start, start + kBatch).to_vector<int64_t>();
    for (std::size_t i = 0; i < labels.size(); ++i) {
      const auto label = static_cast<std::size_t>(labels[i]);
      ++score.total[label];
      if (guesses[i] == labels[i]) ++score.right[label];
    }
  }
  net.train();
  return score;
}

void print(const Score& score, const std::vector<std::string>& names) {
  std::printf("\n  %-12s %8s %8s\n", "class", "right", "of");
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::printf(
        "  %-12s %8lld %8lld  %5.1f %%\n", names[i].c_str(), static_cast<long long>(score.right[i]),
        static_cast<long long>(score.total[i]),
        100.0 * static_cast<double>(score.right[i]) / static_cast<double>(std::max<int64_t>(1, score.total[i])));
  }
  std::printf("  test accuracy %.2f %%\n\n", 100 * score.accuracy());
}

int run(const Options& o) {
  const example::TrainingOptions& training = o.training;
  const Device device = example::device_of(training.device);
  auto images = example::load_images(o.data, example::ClassifierSpec{}.size);
  if (o.limit > 0) {
    images.train.images = images.train.images.slice(0, 0, o.limit);
    images.train.labels = images.train.labels.slice(0, 0, o.limit);
  }
  example::ClassifierSpec spec;
  spec.channels = images.train.images.size(1);
  spec.classes = static_cast<int64_t>(images.train.class_names.size());
  spec.width = o.width;

  manual_seed(training.seed);
  example::Classifier net(spec);
  net.to(device);
  optim::AdamW optimizer(net.parameters(), {.lr = training.lr, .weight_decay = 1e-2});
  data::BatchOrder order(images.train.images.size(0), training.batch, training.seed);
  const int64_t steps = o.epochs * order.batches();
  optim::Scheduler scheduler(optimizer,
                             optim::cosine_schedule({.steps = steps, .warmup_steps = steps / 20, .end = 0.01}));

  example::Checkpoints checkpoints(training, net, optimizer, scheduler, spec.metadata());
  int64_t step = checkpoints.resume(device);
  example::RunFolder folder(training.out, step);
  std::printf("AlexNet on %s: %lld + %lld images, %lld classes, %lld parameters, on %s%s\n", images.description.c_str(),
              static_cast<long long>(images.train.images.size(0)), static_cast<long long>(images.test.images.size(0)),
              static_cast<long long>(spec.classes), static_cast<long long>(net.num_parameters()), device.str().c_str(),
              example::going_on(step).c_str());

  example::Progress progress("alexnet", steps, "images", training.batch);
  data::Loader<Batch> loader(
      [&](int64_t at) {
        const auto rows = order.batch(at / order.batches(), at % order.batches());
        Generator draws;
        draws.set_state({training.seed + 1, static_cast<uint64_t>(at) << 32});
        const Tensor pixels = data::augment(data::take(images.train.images, rows), 2, true, draws);
        return Batch{example::prepare(pixels, spec.channels), data::take(images.train.labels, rows)};
      },
      step, steps);
  while (step < steps) {
    const Batch batch = loader.next();
    const Tensor loss = cross_entropy(net(batch.images.to(device)), batch.labels.to(device), {.label_smoothing = 0.05});
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    scheduler.step();
    ++step;
    const double value = loss.item();
    folder.log(step, {{"loss", value}, {"lr", optimizer.lr()}});
    progress.step(step, value, concat("epoch ", (step - 1) / order.batches() + 1, "/", o.epochs));
    checkpoints.save_if_due(step, step == steps);
  }
  progress.finish();

  const Score score = evaluate(net, images.test, device);
  print(score, images.test.class_names);
  folder.log(step, {{"test_accuracy", score.accuracy()}});
  Metadata metadata = spec.metadata();
  for (std::size_t i = 0; i < images.test.class_names.size(); ++i)
    metadata["class." + std::to_string(i)] = images.test.class_names[i];
  save_safetensors(folder.file("model.safetensors"), net.state_dict(), metadata);
  example::write_chart(folder.file("loss.png"), "alexnet training loss", "step", {{"loss", folder.series("loss")}});
  example::write_filters(folder.file("filters.png"), net.state_dict().at("features.0.weight"));
  std::printf("In %s: model.safetensors, checkpoint.safetensors, metrics.jsonl, loss.png, filters.png\n",
              training.out.c_str());
  if (score.accuracy() < training.at_least) {
    std::printf("Accuracy is below the %.1f %% asked for.\n", 100 * training.at_least);
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Trains an AlexNet-style image classifier", "alexnet_train"};
  declare(app, options);
  return example::run_program(app, argc, argv, [&] { return run(options); });
}
