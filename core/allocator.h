// Memory: the allocator interface, its counters, and poisoning for tests.
#pragma once

#include <halo/core/device.h>

#include <cstddef>
#include <cstdint>

namespace halo {

/// Bytes and calls of one allocator since the start (or, for peaks, the last reset_peak).
struct MemoryStats {
  int64_t live_bytes = 0;    ///< handed out and not returned
  int64_t cached_bytes = 0;  ///< returned by users, kept for reuse
  int64_t peak_bytes = 0;    ///< largest live_bytes
  int64_t allocations = 0;   ///< calls that returned a block
  int64_t limit_bytes = 0;   ///< most that may be held, live and cached; 0: no limit
};

/// Hands out blocks of one device. Thread-safe. Blocks are aligned to 256 bytes.
class Allocator {
 public:
  virtual ~Allocator() = default;
  /// @throws OutOfMemoryError naming the bytes asked for; nothing is lost then.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void deallocate(void* block, std::size_t bytes) noexcept = 0;
  virtual MemoryStats stats() const = 0;
  virtual void reset_peak() = 0;
  /// Returns cached blocks to the system.
  virtual void release_cache() = 0;
  /// Sets MemoryStats::limit_bytes.
  virtual void set_limit(int64_t bytes) = 0;
};

/// The allocator of a device; lives as long as the process. @throws DeviceError where the device is absent.
Allocator& allocator(Device device);

/// Memory that Halo has on a device. What the driver and libraries take for themselves is not counted. All throw
/// DeviceError where the device is absent.
MemoryStats memory_statistics(Device device);
/// Starts `peak_bytes` again from what is live.
void reset_peak_memory(Device device);
/// Gives cached memory back to the system; waits for a GPU.
void empty_cache(Device device);
/// Allocations that would make Halo hold more than `bytes`, even with an empty cache, throw OutOfMemoryError from now
/// on. 0: no limit. What is held already stays.
void set_memory_limit(Device device, int64_t bytes);
int64_t memory_limit(Device device);

/// While on, every block an allocator hands out is filled with 0xFF bytes (NaN in every floating type), fresh or
/// reused.
void set_memory_poisoning(bool on);
bool memory_poisoning();

/// Poisoning for a scope.
class PoisonGuard {
 public:
  PoisonGuard() : previous_(memory_poisoning()) { set_memory_poisoning(true); }
  ~PoisonGuard() { set_memory_poisoning(previous_); }
  PoisonGuard(const PoisonGuard&) = delete;
  PoisonGuard& operator=(const PoisonGuard&) = delete;

 private:
  bool previous_;
};

}  // namespace halo
