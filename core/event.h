// Events: points in a stream of GPU work, to wait for and to take the time between.
#pragma once

#include <halo/core/device.h>
#include <halo/core/stream.h>

#include <chrono>
#include <memory>

namespace halo {

/// A point in a stream, set by record(). On the CPU, where every call is done when it returns, a point of time.
class Event {
 public:
  /// @throws DeviceError where the device is absent.
  explicit Event(Device device = Device::best());

  Device device() const { return device_; }
  /// Puts the event behind what `stream` (of the event's device) has been given so far.
  void record(const Stream& stream);
  void record() { record(current_stream(device_)); }
  /// Whether the work in front of it is done; true before the first record().
  bool query() const;
  /// Waits until it is.
  void synchronize() const;
  /// Work given to `stream` from now on waits for it; the stream may be another device's.
  void wait(const Stream& stream) const;
  void wait() const { wait(current_stream(device_)); }
  /// Milliseconds from this event to `end` of the same device; waits for both. Both have been recorded.
  double elapsed_time(const Event& end) const;

 private:
  void check_device(const char* op, Device other) const;

  Device device_;
  std::shared_ptr<void> handle_;  ///< of a GPU
  std::chrono::steady_clock::time_point time_{};
  bool recorded_ = false;
};

}  // namespace halo
