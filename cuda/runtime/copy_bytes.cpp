#include <halo/core/cuda_backend.h>
#include <halo/core/stream.h>
#include <halo/cuda/launch.h>

#include "device.h"

namespace halo::cuda {
namespace {

/// True where an asynchronous copy from `host` has read it all when the call returns: the driver stages pageable
/// memory.
bool is_pageable(const void* host) {
  cudaPointerAttributes attributes{};
  const cudaError_t status = cudaPointerGetAttributes(&attributes, host);
  if (status != cudaSuccess) cudaGetLastError();
  return status == cudaSuccess && attributes.type == cudaMemoryTypeUnregistered;
}

void copy_with_host(void* target, const void* source, std::size_t bytes, int device, bool to_device) {
  // A replay would read the host's memory again, whatever is there by then, or wait for itself.
  if (recording_graph()) fail<DeviceError>("copy: expected no copy between host and GPU while a graph is recorded");
  const DeviceScope scope(device);
  const auto kind = to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
  check(cudaMemcpyAsync(target, source, bytes, kind, scope.stream()), "copy");
  if (!to_device || !is_pageable(source)) check(cudaStreamSynchronize(scope.stream()), "copy");
}

void copy_between_gpus(void* target, Device target_device, const void* source, Device source_device,
                       std::size_t bytes) {
  const Stream from = current_stream(source_device), to = current_stream(target_device);
  from.wait(to);  // the target may still be in use
  {
    const DeviceScope scope(source_device);
    check(cudaMemcpyPeerAsync(target, target_device.index, source, source_device.index, bytes, scope.stream()), "copy");
  }
  to.wait(from);
}

}  // namespace

void copy_bytes(void* target, Device target_device, const void* source, Device source_device, std::size_t bytes) {
  if (bytes == 0) return;
  if (target_device.is_cpu()) return copy_with_host(target, source, bytes, source_device.index, false);
  if (source_device.is_cpu()) return copy_with_host(target, source, bytes, target_device.index, true);
  if (target_device != source_device) return copy_between_gpus(target, target_device, source, source_device, bytes);
  const DeviceScope scope(target_device);
  check(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice, scope.stream()), "copy");
}

}  // namespace halo::cuda
