#include <halo/core/cuda_backend.h>
#include <halo/core/error.h>
#include <halo/core/event.h>

namespace halo {

Event::Event(Device device) : device_(device) {
  if (device.is_cuda()) handle_ = cuda::create_event(device.index);
}

void Event::check_device(const char* op, Device other) const {
  if (!(other == device_)) fail("Event::", op, ": expected the event's device, ", device_, ", got ", other);
}

void Event::record(const Stream& stream) {
  check_device("record", stream.device());
  if (device_.is_cuda()) {
    cuda::record_event(device_.index, handle_.get(), stream.handle());
  } else {
    time_ = std::chrono::steady_clock::now();
  }
  recorded_ = true;
}

bool Event::query() const { return device_.is_cpu() || cuda::event_reached(device_.index, handle_.get()); }

void Event::synchronize() const {
  if (device_.is_cuda()) cuda::synchronize_event(device_.index, handle_.get());
}

void Event::wait(const Stream& stream) const {
  if (device_.is_cpu()) return;
  if (stream.device().is_cpu()) return synchronize();
  cuda::stream_wait_event(stream.device().index, stream.handle(), handle_.get());
}

double Event::elapsed_time(const Event& end) const {
  check_device("elapsed_time", end.device_);
  if (!recorded_ || !end.recorded_) fail("Event::elapsed_time: both events expected recorded");
  if (device_.is_cpu()) return std::chrono::duration<double, std::milli>(end.time_ - time_).count();
  synchronize();
  end.synchronize();
  return cuda::elapsed_between(device_.index, handle_.get(), end.handle_.get());
}

}  // namespace halo
