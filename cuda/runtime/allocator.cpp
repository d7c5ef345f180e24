#include "allocator.h"

#include <halo/core/cuda_backend.h>
#include <halo/core/error.h>
#include <halo/core/stream.h>
#include <halo/cuda/launch.h>

#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

#include "device.h"

namespace halo::cuda {
namespace {

/// HALO_CUDA_CACHE=0: each block comes from the driver and goes back to it, so that compute-sanitizer sees where it
/// ends.
bool caching() {
  static const bool on = [] {
    const char* value = std::getenv("HALO_CUDA_CACHE");
    return value == nullptr || std::string_view(value) != "0";
  }();
  return on;
}

}  // namespace

void* GpuMemory::reserve(std::size_t bytes) {
  const auto size = static_cast<int64_t>(bytes);
  if (limit > 0 && (size < 0 || size > limit - reserved_)) return nullptr;
  void* segment = nullptr;
  const cudaError_t status = cudaMalloc(&segment, bytes);
  if (status == cudaSuccess) {
    segments_[segment] = size;
    reserved_ += size;
    return segment;
  }
  if (status != cudaErrorMemoryAllocation) check(status, "cudaMalloc");
  cudaGetLastError();
  return nullptr;
}

void GpuMemory::release(void* segment) {
  const auto found = segments_.find(segment);
  if (found != segments_.end()) {
    reserved_ -= found->second;
    segments_.erase(found);
  }
  cudaFree(segment);
}

std::vector<Event> GpuMemory::fences(void* home) {
  std::vector<Event> fences;
  const auto busy = busy_streams(device_, static_cast<cudaStream_t>(home));
  if (busy.empty()) return fences;
  const DeviceScope scope(device_);
  for (cudaStream_t stream : busy) fences.emplace_back().record(stream);
  return fences;
}

void* CachingAllocator::allocate(std::size_t bytes) {
  const DeviceScope scope(device_);
  cudaStream_t stream = scope.stream();
  void* block = nullptr;
  {
    std::lock_guard lock(mutex_);
    block = caching() ? cache_.allocate(bytes, stream) : memory_.reserve(bytes);
    if (block == nullptr && captures_ == 0) {
      release_locked();
      block = caching() ? cache_.allocate(bytes, stream) : memory_.reserve(bytes);
    }
    if (block == nullptr) {
      std::size_t free = 0, total = 0;
      cudaMemGetInfo(&free, &total);
      const std::string limit = memory_.limit > 0 ? concat(", limit ", memory_.limit) : "";
      fail<OutOfMemoryError>("allocate: cuda:", device_, " could not serve ", bytes, " bytes (", stats_.live_bytes,
                             " in use by Halo", limit, ", ", cache_.reserved_bytes() - cache_.handed_out_bytes(),
                             " cached, ", free, " of ", total, " free)");
    }
    stats_.live_bytes += static_cast<int64_t>(bytes);
    stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.live_bytes);
    ++stats_.allocations;
  }
  if (memory_poisoning()) check(cudaMemsetAsync(block, 0xFF, bytes, stream), "poison");
  return block;
}

void CachingAllocator::deallocate(void* block, std::size_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  stats_.live_bytes -= static_cast<int64_t>(bytes);
  if (!caching()) return memory_.release(block);
  try {
    cache_.deallocate(block);
  } catch (const Error&) {
    // The driver is gone, as at the end of the process: the memory went with it.
  }
}

MemoryStats CachingAllocator::stats() const {
  std::lock_guard lock(mutex_);
  MemoryStats stats = stats_;
  stats.cached_bytes = cache_.reserved_bytes() - cache_.handed_out_bytes();
  stats.limit_bytes = memory_.limit;
  return stats;
}

void CachingAllocator::set_limit(int64_t bytes) {
  std::lock_guard lock(mutex_);
  memory_.limit = bytes;
}

void CachingAllocator::reset_peak() {
  std::lock_guard lock(mutex_);
  stats_.peak_bytes = stats_.live_bytes;
}

void CachingAllocator::release_cache() {
  const DeviceScope scope(device_);
  std::lock_guard lock(mutex_);
  if (captures_ == 0) release_locked();
}

void CachingAllocator::release_locked() {
  check(cudaDeviceSynchronize(), "release_cache");
  cache_.release();
}

void CachingAllocator::begin_capture(void* stream) {
  std::lock_guard lock(mutex_);
  cache_.hold(stream);
  ++captures_;
}

void CachingAllocator::end_capture() {
  std::lock_guard lock(mutex_);
  --captures_;
}

void CachingAllocator::let_go(void* stream) {
  std::lock_guard lock(mutex_);
  cache_.let_go(stream);
}

CachingAllocator& caching_allocator(int device) {
  // Never destroyed: tensors at namespace scope or in thread storage may outlive every static.
  static auto* mutex = new std::mutex;
  static auto* allocators = new std::map<int, CachingAllocator>;
  std::lock_guard lock(*mutex);
  const auto found = allocators->find(device);
  if (found != allocators->end()) return found->second;
  require_device(device);
  return allocators->try_emplace(device, device).first->second;
}

Allocator& allocator(int device) { return caching_allocator(device); }

}  // namespace halo::cuda
