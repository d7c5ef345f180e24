// Device data for the convolution benchmark: fresh random numbers, poison, and sampled float64 references.
#pragma once

#include <halo/core/dtype.h>
#include <halo/ops/conv_problem.h>

#include <cstdint>

namespace halo::bench {

/// A raw device allocation.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  void* data() const { return data_; }
  float* floats() const { return static_cast<float*>(data_); }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

/// `count` uniform numbers in [-1, 1) with full mantissas, a function of `seed` and the index alone.
void fill_random(float* data, int64_t count, uint64_t seed);
/// Every byte 0xFF: a NaN that no kernel computes.
void poison(void* data, std::size_t bytes);
/// How many of `count` elements are still poison.
int64_t count_poison(const float* data, int64_t count);
int64_t count_poison(const void* data, DType dtype, int64_t count);

/// Rounds float32 numbers to bfloat16 or float16.
void narrow(const float* from, void* to, DType dtype, int64_t count);
/// And back, exactly.
void widen(const void* from, DType dtype, float* to, int64_t count);

struct SampleError {
  double relative = 0;    ///< ||result - float64|| / ||float64|| over the samples
  double sequential = 0;  ///< the same for one float32 chain of fma in index order; 0 for backward_weight
};

/// Compares `samples` elements of the result of `pass` (corners among them) with float64 sums over its operands.
SampleError sample_error(const ConvProblem& problem, ConvPass pass, const float* x, const float* w, const float* y,
                         int samples, uint64_t seed);

}  // namespace halo::bench
