// Training that can be killed at any time and goes on with the same bits.
#pragma once

#include <halo/core/generator.h>
#include <halo/nn/module.h>
#include <halo/optim/schedule.h>

#include <cstdint>
#include <string>

#include "program.h"

namespace example {

/// All that a training needs to go on: the model, its optimiser and schedule, and the default generator, in
/// checkpoint.safetensors of the output folder. What it names must outlive it.
class Checkpoints {
 public:
  /// `metadata` says what the model is; a checkpoint of another one, or of another batch or seed, is refused.
  Checkpoints(const TrainingOptions& options, halo::nn::Module& model, halo::optim::Optimizer& optimizer,
              halo::optim::Scheduler& scheduler, halo::Metadata metadata);

  /// Takes everything back from the file where the options say --resume. @return the steps it had made, else 0.
  /// @throws FileError where there is no such file, or it belongs to another training.
  int64_t resume(halo::Device device);
  /// Writes the file after every `save_every` steps, and after the last. `generator`: where the draws of the next step
  /// begin, for a program that has made them.
  void save_if_due(int64_t step, bool last, halo::PhiloxState generator = halo::default_generator().state()) const;

 private:
  std::string path_;
  halo::nn::Module& model_;
  halo::optim::Optimizer& optimizer_;
  halo::optim::Scheduler& scheduler_;
  halo::Metadata metadata_;
  int64_t save_every_;
  bool resume_;
};

/// ", going on from step 200", or nothing for a training that begins.
std::string going_on(int64_t step);

}  // namespace example
