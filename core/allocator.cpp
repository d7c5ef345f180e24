#include <halo/core/allocator.h>
#include <halo/core/cuda_backend.h>
#include <halo/core/error.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

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

/// Plain aligned memory: the system's allocator already caches.
class CpuAllocator final : public Allocator {
 public:
  void* allocate(std::size_t bytes) override {
    void* block = ::operator new(bytes, alignment(bytes), std::nothrow);
    if (block == nullptr) fail<OutOfMemoryError>("allocate: cpu could not serve ", bytes, " bytes");
    prefer_huge_pages(block, bytes);
    if (memory_poisoning()) std::memset(block, 0xFF, bytes);
    const int64_t live = live_.fetch_add(static_cast<int64_t>(bytes)) + static_cast<int64_t>(bytes);
    int64_t peak = peak_.load();
    while (live > peak && !peak_.compare_exchange_weak(peak, live)) {
    }
    ++allocations_;
    return block;
  }

  void deallocate(void* block, std::size_t bytes) noexcept override {
    ::operator delete(block, alignment(bytes));
    live_ -= static_cast<int64_t>(bytes);
  }

  MemoryStats stats() const override { return {live_, 0, peak_, allocations_}; }
  void reset_peak() override { peak_ = live_.load(); }

 private:
  std::atomic<int64_t> live_{0}, peak_{0}, allocations_{0};
};

}  // namespace

Allocator& allocator(Device device) {
  // Never destroyed: tensors at namespace scope or in thread storage may outlive every static.
  static auto* cpu = new CpuAllocator;
  if (device.is_cpu()) return *cpu;
  return cuda::allocator(device.index);
}

void set_memory_poisoning(bool on) { poisoning = on; }
bool memory_poisoning() { return poisoning; }

}  // namespace halo
