#include <halo/core/storage.h>

#include <utility>

namespace halo {

Storage::Storage(std::size_t bytes, Device device) : bytes_(bytes), device_(device), allocator_(&allocator(device)) {
  if (bytes > 0) data_ = allocator_->allocate(bytes);
}

Storage::Storage(void* data, std::size_t bytes, Device device, std::function<void()> release)
    : data_(data), bytes_(bytes), device_(device), release_(std::move(release)) {}

Storage::~Storage() {
  if (release_) release_();
  if (allocator_ != nullptr && data_ != nullptr) allocator_->deallocate(data_, bytes_);
}

}  // namespace halo
