#include "resume.h"

#include <halo/core/error.h>
#include <halo/io/checkpoint.h>

namespace example {

Checkpoints::Checkpoints(const TrainingOptions& options, halo::nn::Module& model, halo::optim::Optimizer& optimizer,
                         halo::optim::Scheduler& scheduler, halo::Metadata metadata)
    : path_(options.out + "/checkpoint.safetensors"),
      model_(model),
      optimizer_(optimizer),
      scheduler_(scheduler),
      metadata_(std::move(metadata)),
      save_every_(options.save_every),
      resume_(options.resume) {
  metadata_["batch"] = std::to_string(options.batch);
  metadata_["seed"] = std::to_string(options.seed);
}

int64_t Checkpoints::resume(halo::Device device) {
  if (!resume_) return 0;
  const halo::Checkpoint saved = halo::load_checkpoint(path_, device);
  for (const auto& [key, value] : metadata_) {
    const auto found = saved.metadata.find(key);
    const std::string was = found == saved.metadata.end() ? "nothing" : found->second;
    if (was != value) {
      halo::fail<halo::FileError>(path_, ": --resume expected the ", key, " of this training, ", value, ", found ",
                                  was);
    }
  }
  model_.load_state_dict(saved.model);
  optimizer_.load_state_dict(saved.optimizer);
  scheduler_.set_step(saved.step);
  halo::default_generator().set_state(saved.generator);
  return saved.step;
}

void Checkpoints::save_if_due(int64_t step, bool last, halo::PhiloxState generator) const {
  if (step % save_every_ != 0 && !last) return;
  halo::save_checkpoint(path_, {.model = model_.state_dict(),
                                .optimizer = optimizer_.state_dict(),
                                .generator = generator,
                                .step = step,
                                .metadata = metadata_});
}

std::string going_on(int64_t step) { return step > 0 ? ", going on from step " + std::to_string(step) : ""; }

}  // namespace example
