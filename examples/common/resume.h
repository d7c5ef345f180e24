// Training that can be killed at any time and goes on with the same bits.
#pragma once

#include <halo/nn/module.h>
#include <halo/optim/schedule.h>

#include <cstdint>
#include <string>

namespace example {

/// All that a training needs to go on: the model, its optimiser and schedule, and the default generator, in
/// checkpoint.safetensors of a folder. What it names must outlive it.
class Checkpoints {
 public:
  Checkpoints(std::string folder, halo::nn::Module& model, halo::optim::Optimizer& optimizer,
              halo::optim::Scheduler& scheduler, halo::Metadata metadata)
      : path_(std::move(folder) + "/checkpoint.safetensors"),
        model_(model),
        optimizer_(optimizer),
        scheduler_(scheduler),
        metadata_(std::move(metadata)) {}

  /// Takes everything back from the file. @return the steps it had made. @throws FileError where there is none.
  int64_t resume(halo::Device device);
  void save(int64_t step) const;

 private:
  std::string path_;
  halo::nn::Module& model_;
  halo::optim::Optimizer& optimizer_;
  halo::optim::Scheduler& scheduler_;
  halo::Metadata metadata_;
};

}  // namespace example
