// Input gradients of strided convolutions with few channels a group, straight from global memory.
//
// A warp makes 32 neighbouring positions q of one row in 8 result channels, in all phases: those of depth and height
// two at a time, those of the width together. A lane (g, t) = (lane / 4, lane % 4) has positions 4 g to 4 g + 3: the
// m-th and the one two further are its two rows of tensor-core tile m. It loads a window of source positions, of which
// every tap finds its four; neighbouring taps of depth and height find the window in the first-level cache. Weights lie
// in shared memory as fragments, in the order of the sum. Results turn into rows in shared memory, whatever alignment
// those have.
//
// Split operands, and zeros that stand for what does not exist, make results that are not finite where plain sums have
// finite ones: those are computed again at the end, in plain float32.
#pragma once

#include "phases.h"
#include "phases_store.cuh"
#include "phases_window.cuh"
#include "plain_sum.cuh"

namespace halo::cuda::conv::phases {

template <class T>
struct Arguments {
  const T* source;
  const T* weight;
  T* result;
};

struct Place {
  int64_t image;
  int q[3];
  int column_tile;
};

__device__ __forceinline__ Place place_of(const Plan& plan, int item) {
  Place place;
  uint32_t tile, at;
  uint32_t rest = plan.columns.divide(static_cast<uint32_t>(item), tile);
#pragma unroll
  for (int axis = 2; axis >= 0; --axis) {
    rest = plan.tiles[axis].divide(rest, at);
    place.q[axis] = static_cast<int>(at) * (axis == 2 ? kPositions : 1);
  }
  place.q[2] -= plan.lead;
  place.image = rest;
  place.column_tile = static_cast<int>(tile);
  return place;
}

template <class T>
__device__ __forceinline__ Start start_of(const Plan& plan, const Place& place, const T* source, int group, int lane) {
  Start start;
  start.depth = place.q[0] + plan.origin[0];
  start.height = place.q[1] + plan.origin[1];
  start.width = place.q[2] + plan.origin[2] + lane / 4 * 4;
  // Channels that do not exist have no weight: any other stands for them.
  const int first = min(lane_channel<T>(lane % 4, 0), plan.source_channels - 1);
  const int second = min(lane_channel<T>(lane % 4, 1), plan.source_channels - 1);
  const int64_t channel = (place.image * plan.groups + group) * plan.source_channels + first;
  start.next = (second - first) * plan.channel_bytes;
  start.from = reinterpret_cast<const unsigned char*>(
      source + ((channel * plan.source[0] + start.depth) * plan.source[1] + start.height) * plan.source[2] +
      start.width);
  return start;
}

/// The first result of an item's row in its first phases, but for the column.
template <class T>
__device__ __forceinline__ T* result_of(const Plan& plan, const Place& place, T* result, int group) {
  const int64_t channel = (place.image * plan.groups + group) * plan.result_channels + place.column_tile * 8;
  return result +
         ((channel * plan.result[0] + place.q[0] * plan.phases[0]) * plan.result[1] + place.q[1] * plan.phases[1]) *
             plan.result[2];
}

/// The weights of the block's group as the tensor core reads them.
template <class T>
__device__ void prepare(const Plan& plan, const T* weight, int lane, int warp, uint32_t* to) {
  for (int u = warp; u < plan.unit_count; u += plan.warps) {
    const Unit& unit = plan.units[u];
    int fragment = unit.fragment;
    for (int at = 0; at < kRows * kTapBits; ++at) {
      const int row = at / kTapBits, place = at % kTapBits;
      if ((unit.taps >> (kTapBits + row) & unit.taps >> place & 1) == 0) continue;
      const int tap = unit.outer_tap[row] + plan.width_taps[unit.window][place];
      for (int tile = 0; tile < plan.column_tiles; ++tile) {
        const int column = tile * 8 + lane / 4;
        T value[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int channel = lane_channel<T>(lane % 4, c);
          const bool exists = column < plan.result_channels && channel >= unit.taken && channel < plan.source_channels;
          value[c] =
              exists ? weight[column * plan.weight_result + (unit.channel + channel) * plan.weight_source + tap] : T{};
        }
        uint32_t* const own = to + ((tile * plan.fragments + fragment) * 32 + lane) * kWeightWords<T>;
        if constexpr (sizeof(T) == 4) {
          const device::Tf32Pair first = device::split_tf32_unguarded(value[0]);
          const device::Tf32Pair second = device::split_tf32_unguarded(value[1]);
          *reinterpret_cast<uint4*>(own) = uint4{first.high, second.high, first.low, second.low};
        } else {
          *own = value[0].bits | uint32_t{value[1].bits} << 16;
        }
      }
      ++fragment;
    }
  }
}

/// The results of a warp's items that are not finite, again, as plain float32 chains.
template <class T>
__device__ __noinline__ void plain_results(const Plan& plan, const PlainSumOf<T>& plain, T* results, int item, int step,
                                           int group) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (; item < plan.items; item += step) {
    const Place place = place_of(plan, item);
    const int channels = min(8, plan.result_channels - place.column_tile * 8);
    const int column = place.q[2] * plan.phases[2], rows = plan.phases[0] * plan.phases[1];
    const int end = min(kPositions * plan.phases[2], plan.result[2] - column);
    for (int i = 0; i < rows * channels; ++i) {
      const int row = i / channels, channel = place.column_tile * 8 + i % channels;
      const int d = place.q[0] * plan.phases[0] + row / plan.phases[1];
      const int h = place.q[1] * plan.phases[1] + row % plan.phases[1];
      if (d >= plan.result[0] || h >= plan.result[1]) continue;
      const int64_t across = int64_t{group} * plan.result_channels + channel;
      const int64_t flat = (int64_t{d} * plan.result[1] + h) * plan.result[2] + column;
      T* const to = results + (place.image * plan.groups * plan.result_channels + across) * plan.result_plane + flat;
      for (int at = max(0, -column) + lane; at < end; at += 32) {
        if (!isfinite(device::to_accumulator(to[at])))
          to[at] = device::from_accumulator<T>(plain.at(place.image, across, flat + at));
      }
    }
  }
}

template <class T, int Phases>
inline constexpr int kThreads = 32 * most_warps(Phases, static_cast<int>(sizeof(T)));

template <class T, int Phases, int Shifts, bool Aligned>
__global__ void __launch_bounds__(kThreads<T, Phases>, 1)
    phases_kernel(const __grid_constant__ Plan plan, const __grid_constant__ Arguments<T> arguments,
                  const __grid_constant__ PlainSumOf<T> plain) {
  constexpr int kStageBytes = StageRows<T, Phases>::kBytes;
  extern __shared__ __align__(128) unsigned char shared[];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const auto group = static_cast<int>(blockIdx.y);
  unsigned char* const stage = shared + warp * kStageBytes;
  auto* const weights = reinterpret_cast<uint32_t*>(shared + plan.warps * kStageBytes);
  prepare(plan, arguments.weight + group * plan.weight_group, lane, warp, weights);
  __syncthreads();

  const int64_t plane = plan.result_plane;
  const int step = static_cast<int>(gridDim.x) * plan.warps;
  int item = static_cast<int>(blockIdx.x) * plan.warps + warp;
  Start start = start_of(plan, place_of(plan, item), arguments.source, group, lane);
  uint32_t taps = plan.units[0].taps;
  Loaded<T, Shifts, Aligned> loaded;
  if (item < plan.items) loaded.load(plan, plan.units[0], start);

  float poison[4] = {};  // NaN after a result that is not finite
  while (item < plan.items) {
    const Place place = place_of(plan, item);
    item += step;
    const uint32_t* own = weights + (place.column_tile * plan.fragments * 32 + lane) * kWeightWords<T>;
    const int channels = min(8, plan.result_channels - place.column_tile * 8);
    const int column = place.q[2] * Phases;
    const int begin = max(0, -column), end = min(kPositions * Phases, plan.result[2] - column);
    T* const result = result_of(plan, place, arguments.result, group) + column;
    int u = 0, phase_d = 0, phase_h = 0;
    for (int round = 0; round < plan.rounds; ++round) {
      float sums[kRows][Phases][2][4] = {};
#pragma unroll 1
      for (const int last = plan.first_unit[round + 1]; u < last; ++u) {
        const Window<T, Phases, Shifts, Aligned> window(loaded);
        const uint32_t rows = taps >> kTapBits, own_taps = taps & ((1u << kTapBits) - 1);
        // What comes next, of the next item perhaps; after the last one some that is not used. No load in a branch, or
        // the warp waits for it where the branch ends.
        int next = u + 1;
        if (next == plan.unit_count) {
          next = 0;
          if (item < plan.items) start = start_of(plan, place_of(plan, item), arguments.source, group, lane);
        }
        taps = plan.units[next].taps;
        loaded.load(plan, plan.units[next], start);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          if ((rows >> r & 1) != 0) window.multiply(own, own_taps, sums[r]);
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const bool exists = place.q[0] * plan.phases[0] + phase_d < plan.result[0] &&
                            place.q[1] * plan.phases[1] + phase_h < plan.result[1];
        if (exists && phase_d < plan.phases[0]) {
          T* const row = result + (phase_d * plan.result[1] + phase_h) * plan.result[2];
#pragma unroll
          for (int i = 0; i < Phases * 8; ++i) poison[i % 4] = fmaf((&sums[r][0][0][0])[i], 0.0f, poison[i % 4]);
          write_stage<T, Phases>(stage, sums[r], lane);
          __syncwarp();
          write_rows<T, Phases>(stage, row, plane, begin, end, channels, lane);
          __syncwarp();
        }
        if (++phase_h == plan.phases[1]) phase_h = 0, ++phase_d;
      }
    }
  }
  const float any = poison[0] + poison[1] + (poison[2] + poison[3]);
  if (__any_sync(0xffffffffu, any != any))
    plain_results(plan, plain, arguments.result, static_cast<int>(blockIdx.x) * plan.warps + warp, step, group);
}

}  // namespace halo::cuda::conv::phases
