#include <halo/core/storage.h>

#include <algorithm>
#include <utility>

namespace halo {
namespace {

thread_local ChangeLog* change_log = nullptr;

}  // namespace

Storage::Storage(std::size_t bytes, Device device) : bytes_(bytes), device_(device), allocator_(&allocator(device)) {
  if (bytes > 0) data_ = allocator_->allocate(bytes);
}

Storage::Storage(void* data, std::size_t bytes, Device device, std::function<void()> release)
    : data_(data), bytes_(bytes), device_(device), release_(std::move(release)) {}

Storage::~Storage() {
  if (release_) release_();
  if (allocator_ != nullptr && data_ != nullptr) allocator_->deallocate(data_, bytes_);
}

void Storage::bump_version() {
  version_.fetch_add(1, std::memory_order_relaxed);
  if (change_log != nullptr) change_log->changed.push_back(weak_from_this());
}

void Storage::succeed(const Storage& before) {
  version_.store(std::max(version(), before.version()) + 1, std::memory_order_relaxed);
}

StorageAttachment& Storage::attachment(std::unique_ptr<StorageAttachment> (*make)()) {
  std::call_once(attach_once_, [&] { attachment_ = make(); });
  return *attachment_;
}

ChangeLog::ChangeLog() : outer_(change_log) { change_log = this; }
ChangeLog::~ChangeLog() { change_log = outer_; }

}  // namespace halo
