// Streams: ordered queues of GPU work. On the CPU every call is done when it returns.
#pragma once

#include <halo/core/device.h>

#include <memory>
#include <optional>

namespace halo {

/// A handle on a CUDA stream; copies share it. The default-constructed stream is the device's default queue.
class Stream {
 public:
  explicit Stream(Device device) : device_(device) {}
  /// A new stream that does not wait for the default one. On the CPU: the CPU's own (a no-op).
  static Stream create(Device device);

  Device device() const { return device_; }
  /// The cudaStream_t, null for the default stream and the CPU.
  void* handle() const { return handle_.get(); }
  void synchronize() const;
  /// Whether everything given to it so far is done.
  bool query() const;
  /// Work given to this stream from now on waits for what `other` has been given so far.
  void wait(const Stream& other) const;
  bool operator==(const Stream& other) const { return device_ == other.device_ && handle_ == other.handle_; }

 private:
  Device device_;
  std::shared_ptr<void> handle_;
};

/// The stream that operations on `device` go to on this thread.
Stream current_stream(Device device);

/// Makes `stream` the current stream of its device, on this thread, for a scope.
class StreamGuard {
 public:
  explicit StreamGuard(const Stream& stream);
  ~StreamGuard();
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

 private:
  Device device_;
  std::optional<Stream> previous_;
};

}  // namespace halo
