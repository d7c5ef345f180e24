#include "resume.h"

#include <halo/core/generator.h>
#include <halo/io/checkpoint.h>

namespace example {

int64_t Checkpoints::resume(halo::Device device) {
  const halo::Checkpoint saved = halo::load_checkpoint(path_, device);
  model_.load_state_dict(saved.model);
  optimizer_.load_state_dict(saved.optimizer);
  scheduler_.set_step(saved.step);
  halo::default_generator().set_state(saved.generator);
  return saved.step;
}

void Checkpoints::save(int64_t step) const {
  halo::save_checkpoint(path_, {.model = model_.state_dict(),
                                .optimizer = optimizer_.state_dict(),
                                .generator = halo::default_generator().state(),
                                .step = step,
                                .metadata = metadata_});
}

}  // namespace example
