#include "traits.h"

#include <halo/core/cuda_backend.h>
#include <halo/core/error.h>
#include <halo/cuda/launch.h>

#include <cstdlib>
#include <vector>

namespace halo::cuda {
namespace {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "device attribute");
  return value;
}

std::vector<DeviceTraits> ask_all() {
  std::vector<DeviceTraits> all;
  for (int device = 0; device < device_count(); ++device) {
    const DeviceTraits traits{
        .major = attribute(cudaDevAttrComputeCapabilityMajor, device),
        .minor = attribute(cudaDevAttrComputeCapabilityMinor, device),
        .multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device),
        .block_memory = static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device))};
    all.push_back(limit_traits(traits, std::getenv("HALO_CUDA_ARCH")));
  }
  return all;
}

}  // namespace

const DeviceTraits& device_traits(int device) {
  static const DeviceTraits none;
  static const std::vector<DeviceTraits> all = ask_all();
  if (all.empty()) return none;
  if (device < 0 || static_cast<std::size_t>(device) >= all.size()) {
    fail<DeviceError>("CUDA: device index expected below ", all.size(), " (the GPUs visible), got ", device);
  }
  return all[static_cast<std::size_t>(device)];
}

const DeviceTraits& device_traits() {
  int device = 0;
  if (device_count() > 0) check(cudaGetDevice(&device), "current device");
  return device_traits(device);
}

}  // namespace halo::cuda
