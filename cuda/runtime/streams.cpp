#include "streams.h"

#include <halo/core/cuda_backend.h>
#include <halo/cuda/launch.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "allocator.h"
#include "device.h"

namespace halo::cuda {
namespace {

/// Streams by device. Never destroyed, as tensors and streams at namespace scope may outlive every static.
struct Registry {
  std::mutex mutex;
  std::map<int, std::vector<cudaStream_t>> streams;
};

Registry& registry() {
  static auto* instance = new Registry;
  return *instance;
}

/// The answer of a query: "not ready" is no error for the next check to find.
bool finished(cudaError_t status, const char* what) {
  if (status == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check(status, what);
  return true;
}

void destroy_stream(int device, cudaStream_t stream) {
  // Its handle may be given to a new stream, which must find nothing unfinished under it; until then other threads ask
  // here whether it may be using a block that they free. Failures mean that the driver is gone already.
  cudaStreamSynchronize(stream);
  {
    std::lock_guard lock(registry().mutex);
    std::erase(registry().streams[device], stream);
  }
  cudaStreamDestroy(stream);
}

bool may_have_work(cudaStream_t stream) {
  return !is_capturing(stream) && cudaStreamQuery(stream) == cudaErrorNotReady;
}

}  // namespace

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &capture) != cudaSuccess || capture != cudaStreamCaptureStatusNone;
}

Event::Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "create event"); }

Event::~Event() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(event_, other.event_);
  return *this;
}

void Event::record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "record event"); }

bool Event::passed() const { return cudaEventQuery(event_) != cudaErrorNotReady; }

std::vector<cudaStream_t> busy_streams(int device, cudaStream_t home) {
  std::lock_guard lock(registry().mutex);
  const auto& made = registry().streams[device];
  std::vector<cudaStream_t> busy;
  if (made.empty()) return busy;
  const DeviceScope scope(device);
  const bool alive = std::ranges::find(made, home) != made.end();  // else its handle means nothing to CUDA
  if (alive && is_capturing(home)) return busy;
  if (home != nullptr && may_have_work(nullptr)) busy.push_back(nullptr);
  std::ranges::copy_if(made, std::back_inserter(busy), [&](cudaStream_t s) { return s != home && may_have_work(s); });
  cudaGetLastError();  // "not ready" is an answer, not an error for the next check to find
  return busy;
}

std::shared_ptr<void> create_stream(int device) {
  require_device(device);
  const DeviceScope scope(device);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create stream");
  std::lock_guard lock(registry().mutex);
  registry().streams[device].push_back(stream);
  return {stream, [device](void* handle) { destroy_stream(device, static_cast<cudaStream_t>(handle)); }};
}

void synchronize_stream(int device, void* stream) {
  require_device(device);
  const DeviceScope scope(device);
  check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "synchronize stream");
}

bool stream_finished(int device, void* stream) {
  require_device(device);
  const DeviceScope scope(device);
  return finished(cudaStreamQuery(static_cast<cudaStream_t>(stream)), "query stream");
}

void stream_wait(int device, void* stream, int other_device, void* other) {
  require_device(device);
  require_device(other_device);
  const DeviceScope other_scope(other_device);
  Event reached;
  reached.record(static_cast<cudaStream_t>(other));
  const DeviceScope scope(device);
  check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), reached.handle()), "stream wait");
}

std::shared_ptr<void> create_event(int device) {
  require_device(device);
  const DeviceScope scope(device);
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "create event");
  return {event, [](void* handle) { cudaEventDestroy(static_cast<cudaEvent_t>(handle)); }};
}

void record_event(int device, void* event, void* stream) {
  const DeviceScope scope(device);
  check(cudaEventRecord(static_cast<cudaEvent_t>(event), static_cast<cudaStream_t>(stream)), "record event");
}

bool event_reached(int device, void* event) {
  const DeviceScope scope(device);
  return finished(cudaEventQuery(static_cast<cudaEvent_t>(event)), "query event");
}

void synchronize_event(int device, void* event) {
  const DeviceScope scope(device);
  check(cudaEventSynchronize(static_cast<cudaEvent_t>(event)), "synchronize event");
}

void stream_wait_event(int device, void* stream, void* event) {
  require_device(device);
  const DeviceScope scope(device);
  check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(event)), "stream wait");
}

double elapsed_between(int device, void* start, void* end) {
  const DeviceScope scope(device);
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(start), static_cast<cudaEvent_t>(end)),
        "elapsed time");
  return static_cast<double>(milliseconds);
}

}  // namespace halo::cuda
