#include "launch.h"

#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace halo::cuda {
namespace {

/// Failures of a kernel after which the driver refuses whatever this process asks for.
bool is_final(cudaError_t status) {
  switch (status) {
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable: return true;
    default: return false;
  }
}

/// Kernels run later than they are called, so that the first call that hears of a failure may be innocent, and all
/// later ones are.
std::string explain_final(const char* what, const std::string& text) {
  static std::mutex mutex;
  static auto* first = new std::string;
  const std::lock_guard lock(mutex);
  if (!first->empty()) {
    return concat(what, ": an earlier failure ended this process's use of the GPU. It was seen by ", *first);
  }
  *first = text;
  return concat(text,
                ". This operation or an earlier one failed (CUDA_LAUNCH_BLOCKING=1 tells which); this process cannot "
                "use the GPU any more");
}

}  // namespace

void check(cudaError_t status, const char* what, std::source_location where) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // a recoverable error must not be reported again by an innocent later call
  const auto text = concat(what, ": ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ") at ",
                           where.file_name(), ":", where.line());
  if (status == cudaErrorMemoryAllocation) throw OutOfMemoryError(text);
  throw DeviceError(is_final(status) ? explain_final(what, text) : text);
}

void check_launch_shape(const char* kernel, dim3 grid, dim3 block) {
  const bool grid_fits = grid.x <= 2147483647u && grid.y <= 65535u && grid.z <= 65535u;
  const bool block_fits = static_cast<unsigned long long>(block.x) * block.y * block.z <= 1024u && block.z <= 64u;
  if (!grid_fits || !block_fits) {
    fail<InternalError>(kernel, ": launch of grid [", grid.x, ", ", grid.y, ", ", grid.z, "] block [", block.x, ", ",
                        block.y, ", ", block.z, "] is beyond the hardware's limits");
  }
}

void allow_shared_memory(const void* kernel, std::size_t bytes, const char* name) {
  constexpr std::size_t kAlwaysAllowed = 32 * 1024;  // of 48 KB, which a kernel's own arrays are part of
  if (bytes <= kAlwaysAllowed) return;
  // Never less than before: another thread may be about to launch the kernel with what it was allowed.
  static std::mutex mutex;
  static auto* allowed = new std::map<std::pair<int, const void*>, std::size_t>;
  int device = 0;
  check(cudaGetDevice(&device), name);
  const std::lock_guard lock(mutex);
  std::size_t& most = (*allowed)[{device, kernel}];
  if (bytes <= most) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), name);
  most = bytes;
}

}  // namespace halo::cuda
