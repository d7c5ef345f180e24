// Storage: one block of memory, shared by a tensor and its views.
#pragma once

#include <halo/core/allocator.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace halo {

/// What a backend keeps with a storage's bytes and drops with them.
struct StorageAttachment {
  virtual ~StorageAttachment() = default;
};

class Storage : public std::enable_shared_from_this<Storage> {
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
  void bump_version();
  /// Counts on from `before`, whose place it takes in some tensor: values saved of that one are seen to be of another.
  void succeed(const Storage& before);

  /// False where others may change the bytes without telling: memory of somebody else, or lent to somebody.
  bool is_private() const { return allocator_ != nullptr && !lent_.load(std::memory_order_relaxed); }
  void lend() { lent_ = true; }
  /// What the backend keeps here, made by the first call.
  StorageAttachment& attachment(std::unique_ptr<StorageAttachment> (*make)());

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_;
  Allocator* allocator_ = nullptr;
  std::function<void()> release_;
  std::atomic<uint64_t> version_{0};
  std::atomic<bool> lent_{false};
  std::once_flag attach_once_;
  std::unique_ptr<StorageAttachment> attachment_;
};

/// Takes down which storages this thread changes in place while it lives: a captured graph changes them again.
class ChangeLog {
 public:
  ChangeLog();
  ~ChangeLog();
  ChangeLog(const ChangeLog&) = delete;
  ChangeLog& operator=(const ChangeLog&) = delete;

  std::vector<std::weak_ptr<Storage>> changed;

 private:
  ChangeLog* outer_;
};

}  // namespace halo
