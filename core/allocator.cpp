#include <halo/core/allocator.h>
#include <halo/core/cuda_backend.h>
#include <halo/core/error.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <iterator>
#include <mutex>
#include <new>
#include <string>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace halo {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Large blocks begin on huge pages, so that the system can use some: new memory then costs one fault for 512 pages.
std::align_val_t alignment(std::size_t bytes) { return std::align_val_t{bytes >= 2 * kHugePage ? kHugePage : 256}; }

void prefer_huge_pages([[maybe_unused]] void* block, [[maybe_unused]] std::size_t bytes) {
#ifdef __linux__
  if (bytes >= 2 * kHugePage) madvise(block, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);  // advice: may fail
#endif
}

std::atomic<bool> poisoning{false};

/// Aligned memory of the system. Large blocks that come back are kept for the next request of their size, since the
/// system clears every page it hands out: training asks for the same sizes in every step. What is kept is at most
/// kMostKept, and with what is in use never more than was in use at once; the oldest goes first.
class CpuAllocator final : public Allocator {
 public:
  void* allocate(std::size_t bytes) override {
    const std::size_t size = rounded(bytes);
    void* block = take(size);
    if (block == nullptr && fits(size)) block = from_system(size);
    if (block == nullptr) {
      release_cache();
      if (fits(size)) block = from_system(size);
    }
    if (block == nullptr) {
      const std::string limit = limit_ > 0 ? concat(" (", live_.load(), " live, limit ", limit_.load(), ")") : "";
      fail<OutOfMemoryError>("allocate: cpu could not serve ", bytes, " bytes", limit);
    }
    if (memory_poisoning()) std::memset(block, 0xFF, bytes);
    add(live_, peak_, bytes);
    add(in_use_, most_in_use_, size);
    ++allocations_;
    return block;
  }

  void deallocate(void* block, std::size_t bytes) noexcept override {
    const std::size_t size = rounded(bytes);
    live_ -= static_cast<int64_t>(bytes);
    in_use_ -= static_cast<int64_t>(size);
    if (size < kLarge) {
      to_system({block, size});
      return;
    }
    std::lock_guard lock(mutex_);
    try {
      kept_.push_back({block, size});
      kept_bytes_ += static_cast<int64_t>(size);
    } catch (const std::bad_alloc&) {
      to_system({block, size});
    }
    keep(allowed(0));
  }

  MemoryStats stats() const override { return {live_, kept_bytes_, peak_, allocations_, limit_}; }
  void reset_peak() override { peak_ = live_.load(); }
  void release_cache() override {
    std::lock_guard lock(mutex_);
    keep(0);
  }

  void set_limit(int64_t bytes) override { limit_ = bytes; }

 private:
  struct Block {
    void* address;
    std::size_t size;
  };
  static constexpr std::size_t kLarge = std::size_t{1} << 20, kGranule = std::size_t{64} << 10;
  static constexpr int64_t kMostKept = int64_t{1} << 30;

  static std::size_t rounded(std::size_t bytes) {
    return bytes < kLarge || bytes > SIZE_MAX - kGranule ? bytes : (bytes + kGranule - 1) / kGranule * kGranule;
  }
  static void* from_system(std::size_t size) {
    void* block = ::operator new(size, alignment(size), std::nothrow);
    if (block != nullptr) prefer_huge_pages(block, size);
    return block;
  }
  static void to_system(Block block) noexcept { ::operator delete(block.address, alignment(block.size)); }

  static void add(std::atomic<int64_t>& count, std::atomic<int64_t>& most, std::size_t bytes) {
    const int64_t now = count.fetch_add(static_cast<int64_t>(bytes)) + static_cast<int64_t>(bytes);
    int64_t seen = most.load();
    while (now > seen && !most.compare_exchange_weak(seen, now)) {
    }
  }

  /// Whether a new block stays within the limit.
  bool fits(std::size_t size) const {
    const int64_t limit = limit_;
    return limit <= 0 || size <= static_cast<std::size_t>(std::max<int64_t>(0, limit - in_use_ - kept_bytes_));
  }

  /// The block of that size that came back last; null, and room for a new one, where there is none.
  void* take(std::size_t size) {
    if (size < kLarge) return nullptr;
    std::lock_guard lock(mutex_);
    for (auto i = kept_.rbegin(); i != kept_.rend(); ++i) {
      if (i->size != size) continue;
      void* const address = i->address;
      kept_bytes_ -= static_cast<int64_t>(size);
      kept_.erase(std::next(i).base());
      return address;
    }
    keep(allowed(size));
    return nullptr;
  }

  /// How many bytes may be kept when `more` come into use.
  int64_t allowed(std::size_t more) const {
    const int64_t room = most_in_use_ - in_use_ - static_cast<int64_t>(std::min<std::size_t>(more, INT64_MAX / 4));
    return std::clamp<int64_t>(room, 0, kMostKept);
  }

  /// Gives the oldest blocks back until `bytes` are kept.
  void keep(int64_t bytes) noexcept {
    for (; kept_bytes_ > bytes && !kept_.empty(); kept_.pop_front()) {
      to_system(kept_.front());
      kept_bytes_ -= static_cast<int64_t>(kept_.front().size);
    }
  }

  std::atomic<int64_t> live_{0}, peak_{0}, allocations_{0}, limit_{0};
  std::atomic<int64_t> in_use_{0}, most_in_use_{0}, kept_bytes_{0};  ///< by the sizes of blocks
  std::mutex mutex_;
  std::deque<Block> kept_;  ///< in the order they came back
};

}  // namespace

Allocator& allocator(Device device) {
  // Never destroyed: tensors at namespace scope or in thread storage may outlive every static.
  static auto* cpu = new CpuAllocator;
  if (device.is_cpu()) return *cpu;
  return cuda::allocator(device.index);
}

MemoryStats memory_statistics(Device device) { return allocator(device).stats(); }
void reset_peak_memory(Device device) { allocator(device).reset_peak(); }
void empty_cache(Device device) { allocator(device).release_cache(); }

void set_memory_limit(Device device, int64_t bytes) {
  if (bytes < 0) fail("set_memory_limit: bytes expected 0 or more, got ", bytes);
  allocator(device).set_limit(bytes);
}
int64_t memory_limit(Device device) { return allocator(device).stats().limit_bytes; }

void set_memory_poisoning(bool on) { poisoning = on; }
bool memory_poisoning() { return poisoning; }

}  // namespace halo
