// Storage: one block of memory, shared by a tensor and its views.
#pragma once

#include <halo/core/allocator.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace halo {

class Storage {
 public:
  /// `bytes` from the device's allocator, given back when the last tensor on it goes.
  Storage(std::size_t bytes, Device device);
  /// Memory of somebody else; `release` is called when the last tensor on it goes.
  Storage(void* data, std::size_t bytes, Device device, std::function<void()> release);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

  /// Counts in-place changes, so that autograd can tell a saved value that was changed.
  uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  void bump_version() { version_.fetch_add(1, std::memory_order_relaxed); }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_;
  Allocator* allocator_ = nullptr;
  std::function<void()> release_;
  std::atomic<uint64_t> version_{0};
};

}  // namespace halo
