// The one door through which every kernel is launched.
#pragma once

#include <halo/core/error.h>

#include <cstddef>
#include <source_location>
#include <type_traits>

#include <cuda_runtime.h>

namespace halo::cuda {

/// Throws DeviceError (OutOfMemoryError for a failed allocation) with the call's place unless `status` is success.
/// After a failure that ends the use of the GPU, later calls name that one instead of themselves.
void check(cudaError_t status, const char* what, std::source_location where = std::source_location::current());

/// What check() tests before a launch: grid and block within the hardware's limits; throws InternalError naming
/// `kernel`.
void check_launch_shape(const char* kernel, dim3 grid, dim3 block);

/// Lifts the 48 KB limit of `kernel`'s dynamic shared memory where `bytes` needs it.
void allow_shared_memory(const void* kernel, std::size_t bytes, const char* name);

/// Launches `kernel` on `stream`. Each argument is converted to the kernel's own parameter type, never reinterpreted.
/// `name` appears in errors and profiles. A launch of an empty grid is a no-op.
template <class... Params>
void launch(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared_bytes,
            cudaStream_t stream, std::type_identity_t<Params>... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  check_launch_shape(name, grid, block);
  allow_shared_memory(reinterpret_cast<const void*>(kernel), shared_bytes, name);
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&args))..., nullptr};
  check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, pointers, shared_bytes, stream), name);
}

struct LaunchOptions {
  /// The grid may start while the kernel before it on the stream still runs, once each block of that one has called
  /// device::release_next_grid(); this kernel calls device::wait_for_previous_grid() before it touches what the other
  /// wrote.
  bool early = false;
  unsigned cluster = 1;  ///< neighbouring blocks that reach each other's shared memory
};

/// As launch, with options.
template <class... Params>
void launch_with(const LaunchOptions& options, const char* name, void (*kernel)(Params...), dim3 grid, dim3 block,
                 std::size_t shared_bytes, cudaStream_t stream, std::type_identity_t<Params>... args) {
  check_launch_shape(name, grid, block);
  allow_shared_memory(reinterpret_cast<const void*>(kernel), shared_bytes, name);
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&args))..., nullptr};
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (options.early) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (options.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {options.cluster, 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  check(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), pointers), name);
}

/// As launch, early.
template <class... Params>
void launch_early(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared_bytes,
                  cudaStream_t stream, std::type_identity_t<Params>... args) {
  launch_with<Params...>({.early = true}, name, kernel, grid, block, shared_bytes, stream, args...);
}

}  // namespace halo::cuda
