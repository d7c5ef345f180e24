// The caching allocator of one GPU, for the backend's own use; others see core/allocator.h.
#pragma once

#include <halo/core/allocator.h>

#include <mutex>
#include <unordered_map>
#include <vector>

#include "block_cache.h"
#include "streams.h"

namespace halo::cuda {

/// cudaMalloc and the fences of one GPU, as BlockCache wants them.
class GpuMemory {
 public:
  explicit GpuMemory(int device) : device_(device) {}
  void* reserve(std::size_t bytes);
  void release(void* segment);
  std::vector<Event> fences(void* home);

  int64_t limit = 0;  ///< of the bytes reserved and not released; 0: none

 private:
  int device_;
  int64_t reserved_ = 0;
  std::unordered_map<void*, int64_t> segments_;  ///< their bytes
};

class CachingAllocator final : public Allocator {
 public:
  explicit CachingAllocator(int device) : device_(device), memory_(device), cache_(memory_) {}

  void* allocate(std::size_t bytes) override;
  void deallocate(void* block, std::size_t bytes) noexcept override;
  MemoryStats stats() const override;
  void reset_peak() override;
  void release_cache() override;
  void set_limit(int64_t bytes) override;

  /// Between these, blocks of `stream` stay reserved for the graph captured on it, and nothing waits for the GPU.
  void begin_capture(void* stream);
  void end_capture();
  void let_go(void* stream);

 private:
  void release_locked();

  int device_;
  mutable std::mutex mutex_;
  GpuMemory memory_;
  BlockCache<GpuMemory> cache_;
  MemoryStats stats_;
  int captures_ = 0;  ///< graphs being captured now
};

CachingAllocator& caching_allocator(int device);

}  // namespace halo::cuda
