// One result of forward or backward_input as a plain chain: what a fast kernel falls back on for results that are not
// finite.
#pragma once

#include "../device/number.cuh"
#include "sizes.cuh"

namespace halo::cuda::conv {

/// Sums the products of one result as plain float32 does (double as it does): channel by channel, tap by tap. T: what
/// operands are stored as.
template <class T>
struct PlainSumOf {
  Sizes sizes;
  const T* source;
  const T* weights;
  bool forward;

  __device__ device::Accumulator<T> at(int64_t n, int64_t channel, int64_t flat) const {
    device::Accumulator<T> sum = 0;
    const int64_t own = forward ? sizes.out_per_group : sizes.in_per_group;
    const int64_t across = forward ? sizes.in_per_group : sizes.out_per_group;
    const int64_t plane = forward ? sizes.input_positions : sizes.output_positions;
    const Position position = unflatten(flat, forward ? sizes.output : sizes.input);
    const int64_t first = channel / own * across;
    const int64_t total = forward ? sizes.in_channels : sizes.out_channels;
    for (int64_t c = 0; c < across; ++c) {
      const T* from = source + (n * total + first + c) * plane;
      const int64_t row = forward ? channel * across + c : (first + c) * own + channel % own;
      for (int64_t t = 0; t < sizes.taps; ++t) {
        const Position tap = unflatten(t, sizes.kernel);
        const int64_t i = forward ? sizes.input_at(position, tap) : sizes.output_at(position, tap);
        if (i >= 0) {
          sum = fma(device::to_accumulator(from[i]), device::to_accumulator(weights[row * sizes.taps + t]), sum);
        }
      }
    }
    return sum;
  }
};

using PlainSum = PlainSumOf<float>;

/// Computes those of `count` neighbouring results that are not finite again: a warp's work. `image`, `channel`, `flat`:
/// those of the first, which lies at `row`; `bias`: of the channel, or null.
template <class T>
__device__ __forceinline__ void repair_row(const PlainSumOf<T>& plain, T* row, int count, int64_t image,
                                           int64_t channel, int64_t flat, const T* bias = nullptr) {
  for (int e = static_cast<int>(threadIdx.x % 32); e < count; e += 32) {
    if (isfinite(device::to_accumulator(row[e]))) continue;
    float sum = plain.at(image, channel, flat + e);
    if (bias != nullptr) sum += device::to_accumulator(*bias);
    row[e] = device::from_accumulator<T>(sum);
  }
}

}  // namespace halo::cuda::conv
