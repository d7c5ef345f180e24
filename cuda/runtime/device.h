// GPUs: whether one can be used, and making one current for a scope.
#pragma once

#include <halo/core/device.h>

#include <cuda_runtime.h>

namespace halo::cuda {

/// @throws DeviceError saying why, unless GPU `device` exists and can run this build.
void require_device(int device);

/// Makes `device` the thread's CUDA device for a scope; stream() is the stream Halo's work on it goes to.
class DeviceScope {
 public:
  explicit DeviceScope(Device device) : DeviceScope(device.index) {}
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  cudaStream_t stream() const;

 private:
  int device_;
  int previous_ = -1;  ///< -1 where nothing has to be restored
};

}  // namespace halo::cuda
