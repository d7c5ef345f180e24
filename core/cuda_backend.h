// What core needs of the CUDA backend. Defined in cuda/ or, in a build without CUDA, by cuda/stub.cpp, where everything
// but the queries throws DeviceError.
#pragma once

#include <halo/core/allocator.h>
#include <halo/core/philox.h>

#include <cstddef>
#include <memory>
#include <string>

namespace halo {
class Shape;
class Tensor;
struct Scalar;
struct TensorOptions;
}  // namespace halo

namespace halo::cuda {

/// GPUs that can be used: 0 in a build without CUDA, without a driver, or where none is visible. Never throws.
int device_count();
/// One line on why device_count() is 0 (build, driver version found and needed), or the GPU's name.
std::string describe(int device);

DeviceProperties properties(int device);
/// Makes `device` CUDA's current one on this thread; returns the one before.
int exchange_current_device(int device);
void restore_current_device(int device) noexcept;

/// Whether this thread is recording a graph (cuda/graph.h) instead of running what it queues.
bool recording_graph();

Allocator& allocator(int device);
std::shared_ptr<void> create_stream(int device);
void synchronize_stream(int device, void* stream);
bool stream_finished(int device, void* stream);
void stream_wait(int device, void* stream, int other_device, void* other);
void synchronize(int device);

/// An event that keeps the time, and what core/event.h does with it.
std::shared_ptr<void> create_event(int device);
void record_event(int device, void* event, void* stream);
bool event_reached(int device, void* event);
void synchronize_event(int device, void* event);
void stream_wait_event(int device, void* stream, void* event);
/// Milliseconds from one to the other, both reached.
double elapsed_between(int device, void* start, void* end);

/// Opens and closes a range of this thread in NVIDIA's profilers.
void begin_profiler_range(const char* name);
void end_profiler_range() noexcept;

/// Copies bytes between host and device or between devices, in order with the current stream of the device concerned.
/// Host memory may be reused when the call returns.
void copy_bytes(void* target, Device target_device, const void* source, Device source_device, std::size_t bytes);
/// target = source elementwise with conversion; same GPU, same shape, any strides, any dtypes.
void copy_elements(const Tensor& source, const Tensor& target);
/// Every element of `target` (any strides) = value.
void fill(const Tensor& target, const Scalar& value);

/// Element i of `target`, dense and int64, = i.
void arange(const Tensor& target);

enum class Distribution { Uniform, Normal };
/// A new tensor whose element i is core/philox.h's draw i after `state`.
Tensor random(Distribution distribution, PhiloxState state, const Shape& shape, const TensorOptions& options);

}  // namespace halo::cuda
