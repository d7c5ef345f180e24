#include "device.h"

#include <halo/core/cuda_backend.h>
#include <halo/core/error.h>
#include <halo/core/stream.h>
#include <halo/cuda/launch.h>

#include "traits.h"

namespace halo::cuda {
namespace {

/// The oldest GPUs that this build has machine code for (8.0 = 80).
constexpr int kOldestArchitecture = 80;

std::string version_text(int version) { return concat(version / 1000, ".", version % 1000 / 10); }

struct Survey {
  int count = 0;
  std::string why_none;
};

Survey look_for_gpus() {
  Survey survey;
  const cudaError_t status = cudaGetDeviceCount(&survey.count);
  if (status == cudaSuccess && survey.count > 0) return survey;
  cudaGetLastError();
  survey.count = 0;
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  const std::string needed = concat("this Halo was built with CUDA ", version_text(runtime));
  if (driver == 0) {
    survey.why_none = concat("no NVIDIA driver was found (", needed, ")");
  } else if (status == cudaErrorInsufficientDriver) {
    survey.why_none = concat("the NVIDIA driver is too old: it supports CUDA ", version_text(driver), ", ", needed);
  } else if (status == cudaErrorNoDevice || status == cudaSuccess) {
    survey.why_none = concat("the NVIDIA driver (CUDA ", version_text(driver), ") shows no GPU to this process");
  } else {
    survey.why_none = concat("the NVIDIA driver (CUDA ", version_text(driver), "; ", needed,
                             ") did not start: ", cudaGetErrorString(status));
  }
  return survey;
}

const Survey& survey() {
  static const Survey result = look_for_gpus();
  return result;
}

}  // namespace

int device_count() { return survey().count; }

std::string describe(int device) {
  if (survey().count == 0) return "no GPU: " + survey().why_none;
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
    cudaGetLastError();
    return concat("no GPU ", device, ": there are ", survey().count);
  }
  return properties.name;
}

void require_device(int device) {
  const Survey& found = survey();
  if (found.count == 0) fail<DeviceError>("CUDA: ", found.why_none, "; use the CPU");
  if (device < 0 || device >= found.count) {
    fail<DeviceError>("CUDA: device index expected below ", found.count, " (the GPUs visible), got ", device);
  }
  const DeviceTraits& traits = device_traits(device);
  if (traits.major * 10 + traits.minor < kOldestArchitecture) {
    fail<DeviceError>("CUDA: GPU ", device, " (", describe(device), ") has compute capability ", traits.major, ".",
                      traits.minor, ", this Halo needs 8.0 or newer");
  }
}

DeviceProperties properties(int device) {
  require_device(device);
  cudaDeviceProp found{};
  check(cudaGetDeviceProperties(&found, device), "device properties");
  const DeviceScope scope(device);
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "device memory");
  return {.name = found.name,
          .major = found.major,
          .minor = found.minor,
          .multi_processor_count = found.multiProcessorCount,
          .total_memory = static_cast<int64_t>(total),
          .free_memory = static_cast<int64_t>(free)};
}

int exchange_current_device(int device) {
  require_device(device);
  int previous = 0;
  check(cudaGetDevice(&previous), "current device");
  check(cudaSetDevice(device), "set device");
  return previous;
}

void restore_current_device(int device) noexcept { cudaSetDevice(device); }

DeviceScope::DeviceScope(int device) : device_(device) {
  int current = 0;
  check(cudaGetDevice(&current), "current device");
  if (current == device) return;
  check(cudaSetDevice(device), "set device");
  previous_ = current;
}

DeviceScope::~DeviceScope() {
  if (previous_ >= 0) cudaSetDevice(previous_);
}

cudaStream_t DeviceScope::stream() const {
  return static_cast<cudaStream_t>(current_stream(Device::cuda(device_)).handle());
}

void synchronize(int device) {
  require_device(device);
  const DeviceScope scope(device);
  check(cudaDeviceSynchronize(), "synchronize");
}

}  // namespace halo::cuda
