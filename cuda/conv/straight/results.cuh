// How results of kernel.cuh leave: row by row out of a warp's stage, or computed again.
//
// Where rows are not whole 16-byte pieces, an item computes a few positions more than its own, so that each piece is
// written by the item in which it begins.
#pragma once

#include "../../device/activation.cuh"
#include "../../device/packs.cuh"
#include "../plain_sum.cuh"
#include "operands.cuh"

namespace halo::cuda::conv::straight {

/// Elements of channel c's row between a 16-byte boundary and the item's first one, in memory and in the stage.
template <class T>
struct Shift {
  unsigned low, plane;
  __device__ __forceinline__ Shift(const T* result, int64_t plane_pitch)
      : low(static_cast<unsigned>(reinterpret_cast<uintptr_t>(result) / sizeof(T))),
        plane(static_cast<unsigned>(plane_pitch)) {}
  __device__ __forceinline__ int operator()(int c) const {
    return static_cast<int>((low + static_cast<unsigned>(c) * plane) % kWide<T>);
  }
};

/// An item's own results again, as plain float32 chains: the very ones that write_rows writes.
template <class T>
__device__ __noinline__ void plain_results(const Plan& plan, const Arguments<T>& arguments, const PlainSumOf<T>& plain,
                                           const Place& place, int row, int column, int channel, int columns,
                                           int channels) {
  constexpr int kLast = kWide<T> - 1;
  const int64_t plane = plan.problem.result_rows.plane_pitch;
  const int own = plan.own * plan.problem.phases[2];
  T* const result = arguments.result + (place.image * plan.problem.result_channels + channel) * plane +
                    int64_t{row} * plan.problem.result[2] + column;
  const Shift<T> shift_of(result, plane);
  __syncwarp();
  for (int i = static_cast<int>(threadIdx.x % 32); i < columns * channels; i += 32) {
    const int c = i / columns, at = i % columns, shift = shift_of(c);
    const int begin = column == 0 ? 0 : -shift & kLast, end = own + (-(shift + own) & kLast);
    if (at < begin || at >= end) continue;
    float value = plain.at(place.image, channel + c, int64_t{row} * plan.problem.result[2] + column + at);
    if (arguments.bias != nullptr) value += device::to_accumulator(arguments.bias[channel + c]);
    result[c * plane + at] = device::from_accumulator<T>(device::call_activation(arguments.activation, value));
  }
}

/// Rows of the stage to their places, 16 bytes a lane: the pieces that begin in the item's `own` elements of `columns`,
/// and with `first`, at the beginning of a row, what lies before them.
template <class T>
__device__ __forceinline__ void write_rows(const Plan& plan, const T* stage, T* result, int own, int columns,
                                           int channels, bool first, const Shift<T>& shift_of, int lane) {
  const int64_t plane = plan.problem.result_rows.plane_pitch;
  __syncwarp();
  const auto packs = static_cast<int>(plan.row_packs.divisor);
#pragma unroll 2
  for (int i = lane; i < channels * packs; i += 32) {
    uint32_t pack;
    const auto c = static_cast<int>(plan.row_packs.divide(static_cast<uint32_t>(i), pack));
    const int shift = shift_of(c), from = static_cast<int>(pack) * kWide<T> + (-shift & (kWide<T> - 1));
    const T* const source = stage + c * plan.stage_pitch + shift + from;
    T* const to = result + c * plane + from;
    if (from + kWide<T> <= columns) {
      if (from < own) *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(source);
    } else if (from < own) {
      for (int h = 0; h < columns - from; ++h) to[h] = source[h];
    }
  }
  if (first) {
    for (int c = lane; c < channels; c += 32) {
      const int shift = shift_of(c), head = min(-shift & (kWide<T> - 1), columns);
      for (int h = 0; h < head; ++h) result[c * plane + h] = stage[c * plan.stage_pitch + shift + h];
    }
  }
  __syncwarp();
}

}  // namespace halo::cuda::conv::straight
