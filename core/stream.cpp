#include <halo/core/cuda_backend.h>
#include <halo/core/stream.h>

#include <utility>
#include <vector>

namespace halo {
namespace {

/// Overrides of this thread by GPU index; none means the default stream.
std::vector<std::optional<Stream>>& overrides() {
  thread_local std::vector<std::optional<Stream>> streams;
  return streams;
}

std::optional<Stream>& slot(Device device) {
  auto& streams = overrides();
  const auto index = static_cast<std::size_t>(device.index);
  if (streams.size() <= index) streams.resize(index + 1);
  return streams[index];
}

}  // namespace

Stream Stream::create(Device device) {
  Stream stream(device);
  if (device.is_cuda()) stream.handle_ = cuda::create_stream(device.index);
  return stream;
}

void Stream::synchronize() const {
  if (device_.is_cuda()) cuda::synchronize_stream(device_.index, handle());
}

bool Stream::query() const { return device_.is_cpu() || cuda::stream_finished(device_.index, handle()); }

void Stream::wait(const Stream& other) const {
  if (device_.is_cuda() && other.device_.is_cuda() && !(*this == other)) {
    cuda::stream_wait(device_.index, handle(), other.device_.index, other.handle());
  }
}

Stream current_stream(Device device) {
  if (device.is_cpu()) return Stream(device);
  return slot(device).value_or(Stream(device));
}

StreamGuard::StreamGuard(const Stream& stream) : device_(stream.device()) {
  if (device_.is_cuda()) previous_ = std::exchange(slot(device_), stream);
}

StreamGuard::~StreamGuard() {
  if (device_.is_cuda()) slot(device_) = previous_;
}

}  // namespace halo
