// A training state in one file.
#pragma once

#include <halo/core/philox.h>
#include <halo/core/state_dict.h>

#include <cstdint>
#include <string>

namespace halo {

/// Everything a run needs to go on as if it had never stopped: the same bits follow.
/// `save_checkpoint(path, {.model = net.state_dict(), .optimizer = adam.state_dict(),
///  .generator = default_generator().state(), .step = step})`
struct Checkpoint {
  StateDict model{};
  StateDict optimizer{};
  PhiloxState generator{};
  int64_t step = 0;
  Metadata metadata{};  ///< anything else, as text
};

/// One safetensors file, written whole or not at all: entries `model.*` and `optimizer.*`, the numbers as metadata.
/// @throws ArgumentError for a name of metadata that begins as its own do, FileError where writing fails.
void save_checkpoint(const std::string& path, const Checkpoint& checkpoint);
/// Tensors come to `device`. @throws FileError where the file is none, or no checkpoint.
Checkpoint load_checkpoint(const std::string& path, Device device = Device::cpu());

}  // namespace halo
