// Streams made by create_stream(), and events on them.
#pragma once

#include <utility>
#include <vector>

#include <cuda_runtime.h>

namespace halo::cuda {

/// An event without timing, destroyed with the object.
class Event {
 public:
  Event();
  ~Event();
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept;

  void record(cudaStream_t stream);
  bool passed() const;
  cudaEvent_t handle() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Whether what is queued on `stream` is recorded instead of run.
bool is_capturing(cudaStream_t stream);

/// Streams of `device` other than `home` that have work left: those made and not yet destroyed, and the default stream.
/// None in a program that makes no stream. Streams being captured are left out, as what they record runs later, and a
/// `home` being captured has no others, as its blocks are its graph's alone.
std::vector<cudaStream_t> busy_streams(int device, cudaStream_t home);

}  // namespace halo::cuda
