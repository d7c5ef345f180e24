// What kernels are planned for: the GPU, asked once.
#pragma once

#include <cstddef>

namespace halo::cuda {

/// Those of an H200 where nothing else is said.
struct DeviceTraits {
  int major = 9, minor = 0;               ///< compute capability
  int multiprocessors = 132;              ///< SMs
  std::size_t block_memory = 227 * 1024;  ///< bytes of shared memory that a block can ask for

  /// Whether kernels with Hopper's own instructions run.
  bool is_hopper() const { return major == 9 && minor == 0; }
  bool operator==(const DeviceTraits&) const = default;
};

/// What the environment variable HALO_CUDA_ARCH says (80 for compute capability 8.0): Halo takes its roads for a GPU of
/// that kind on a newer one, as HALO_CPU_ISA does for instruction sets of the CPU. Null: no limit.
/// @throws ArgumentError unless `text` is two or three digits, at least 80.
DeviceTraits limit_traits(const DeviceTraits& traits, const char* text);

/// Within the limit of HALO_CUDA_ARCH. Without a GPU, for plans that nobody runs, the defaults.
/// @throws ArgumentError where HALO_CUDA_ARCH makes no sense.
const DeviceTraits& device_traits(int device);
/// Of the thread's current device.
const DeviceTraits& device_traits();

}  // namespace halo::cuda
