// A 3-D autoencoder: clips of moving shapes (time is the depth axis) squeezed by strided Conv3d layers and rebuilt by
// ConvTranspose3d layers with 3x5x5 kernels. Leaves the net and a picture of slices before and after.
//
//   volume [--steps 300] [--out runs/volume] [--resume]
#include <halo/data/images.h>
#include <halo/halo.h>

#include <cmath>
#include <cstdio>

#include "examples/common/program.h"
#include "examples/common/progress.h"
#include "examples/common/resume.h"
#include "examples/common/run_folder.h"
#include <CLI/CLI.hpp>

namespace {

using namespace halo;

constexpr int64_t kFrames = 8, kSide = 32;

struct Autoencoder : nn::Module {
  nn::Conv3d& down1 =
      register_module("down1", nn::Conv3d(1, 16, {3, 5, 5}, {.stride = {1, 2, 2}, .padding = {1, 2, 2}}));
  nn::Conv3d& down2 = register_module("down2", nn::Conv3d(16, 16, 3, {.stride = 2, .padding = 1}));
  nn::ConvTranspose3d& up1 = register_module(
      "up1", nn::ConvTranspose3d(16, 16, {3, 5, 5}, {.stride = 2, .padding = {1, 2, 2}, .output_padding = 1}));
  nn::ConvTranspose3d& up2 = register_module(
      "up2",
      nn::ConvTranspose3d(16, 1, {3, 5, 5}, {.stride = {1, 2, 2}, .padding = {1, 2, 2}, .output_padding = {0, 1, 1}}));

  /// Logits of the pixels.
  Tensor forward(const Tensor& x) override { return up2(leaky_relu(up1(leaky_relu(down2(leaky_relu(down1(x))))))); }
};

/// [n, 1, frames, side, side]: a disc or a square with random size, place and speed, with soft edges.
Tensor moving_shapes(int64_t n) {
  const auto draw = rand({n, 6}).to_vector<double>();
  std::vector<float> clips;
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    const double* r = draw.data() + 6 * i;
    const double radius = 3 + 4 * r[0];
    for (int64_t t = 0; t < kFrames; ++t) {
      const double cx = 6 + 20 * r[1] + (r[3] - 0.5) * 3 * static_cast<double>(t);
      const double cy = 6 + 20 * r[2] + (r[4] - 0.5) * 3 * static_cast<double>(t);
      for (int64_t y = 0; y < kSide; ++y) {
        for (int64_t x = 0; x < kSide; ++x) {
          const double dx = std::abs(static_cast<double>(x) - cx), dy = std::abs(static_cast<double>(y) - cy);
          const double distance = r[5] < 0.5 ? std::hypot(dx, dy) : std::max(dx, dy);
          clips.push_back(static_cast<float>(std::clamp(radius - distance + 0.5, 0.0, 1.0)));
        }
      }
    }
  }
  return from_vector(clips, {n, 1, kFrames, kSide, kSide});
}

/// Rows of frames: each clip above its reconstruction.
Tensor slices(const Tensor& clips, const Tensor& rebuilt) {
  const int64_t n = clips.size(0);
  const Tensor both = stack({clips.select(1, 0), rebuilt.select(1, 0)}, 1);  // [n, 2, frames, side, side]
  const Tensor rows = both.permute({0, 1, 3, 2, 4}).reshape({1, n * 2 * kSide, kFrames * kSide});
  return clamp(rows * 255.0, 0, 255).to(uint8);
}

struct Options {
  example::TrainingOptions training{.out = "runs/volume", .batch = 16, .lr = 3e-3};
  int64_t steps = 300;
  double at_most = 0;
};

int run(const Options& o) {
  const example::TrainingOptions& training = o.training;
  manual_seed(training.seed);
  const Device device = example::device_of(training.device);
  Autoencoder net;
  net.to(device);
  optim::AdamW optimizer(net.parameters(), {.lr = training.lr});
  optim::Scheduler scheduler(optimizer, optim::cosine_schedule({.steps = o.steps, .warmup_steps = o.steps / 20}));
  example::Checkpoints checkpoints(training, net, optimizer, scheduler, {});
  int64_t step = checkpoints.resume(device);
  example::RunFolder folder(training.out, step);
  std::printf("3-D autoencoder on %s: %lld parameters%s\n", device.str().c_str(),
              static_cast<long long>(net.num_parameters()), example::going_on(step).c_str());
  example::Progress progress("volume", o.steps, "clips", training.batch);
  while (step < o.steps) {
    const Tensor clips = moving_shapes(training.batch).to(device);
    const Tensor loss = binary_cross_entropy_with_logits(net(clips), clips);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    scheduler.step();
    ++step;
    const double value = loss.item();
    folder.log(step, {{"loss", value}});
    progress.step(step, value);
    checkpoints.save_if_due(step, step == o.steps);
  }
  progress.finish();
  const NoGradGuard no_grad;
  const Tensor fresh = moving_shapes(4).to(device), rebuilt = sigmoid(net(fresh));
  const double error = mse_loss(rebuilt, fresh).item();
  data::write_png(folder.file("slices.png"), slices(fresh.to(Device::cpu()), rebuilt.to(Device::cpu())));
  save_safetensors(folder.file("model.safetensors"), net.state_dict());
  std::printf(
      "Mean squared error of fresh clips %.5f; in %s: slices.png, model.safetensors, checkpoint.safetensors, "
      "metrics.jsonl\n",
      error, training.out.c_str());
  return o.at_most > 0 && error > o.at_most ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Trains a 3-D autoencoder on moving shapes", "volume"};
  Options o;
  example::add_count(app, "--steps", o.steps, "updates of the weights");
  example::add_number(app, "--at-most", o.at_most,
                      "exit with 1 where the mean squared error of fresh clips is above this; 0: never", 0, 1);
  example::add_training(app, o.training);
  return example::run_program(app, argc, argv, [&] { return run(o); });
}
