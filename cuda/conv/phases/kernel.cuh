// Input gradients of strided convolutions with few channels a group, on the tensor cores.
//
// A warp makes 64 neighbouring positions q of one row, in all phases and result channels: those of depth and height two
// at a time (one where the width has more than two), those of the width together, channels by eight. A lane (g, t) =
// (lane / 4, lane % 4) has positions 8 g to 8 g + 7: the m-th and the one four further are its two rows of tensor-core
// tile m. It reads a window of source positions, of which every tap finds its eight. Weights lie in shared memory as
// fragments, in the order of the sum, and so do the warp's own source rows, where they are aligned: as soon as an item
// has read a row for the last time, the same row of the next item is copied there. Results turn into rows in shared
// memory, whatever alignment those have. Where tiles of 48 positions leave fewer beside a row, a lane has six, where
// rows have at most 32, four, straight from global memory.
//
// Split operands, and zeros that stand for what does not exist, make results that are not finite where plain sums have
// finite ones: those are computed again at the end, in plain float32.
#pragma once

#include "../plain_sum.cuh"
#include "phases.h"
#include "store.cuh"
#include "window.cuh"

namespace halo::cuda::conv::phases {

template <class T>
using Arguments = small_groups::GatherArguments<T>;

struct Place {
  int64_t image;
  int q[3];
};

__device__ __forceinline__ Place place_of(const Plan& plan, int item) {
  Place place;
  uint32_t at, rest = static_cast<uint32_t>(item);
#pragma unroll
  for (int axis = 2; axis >= 0; --axis) {
    rest = plan.tiles[axis].divide(rest, at);
    place.q[axis] = static_cast<int>(at) * (axis == 2 ? plan.positions : 1);
  }
  place.q[2] -= plan.lead;
  place.image = rest;
  return place;
}

template <class Feed, class T>
__device__ __forceinline__ Start start_of(const Plan& plan, const Place& place, const T* source, int group, int lane) {
  const int64_t channel = (place.image * plan.groups + group) * plan.source_channels;
  Start start{nullptr, 0, place.q[0] + plan.origin[0], place.q[1] + plan.origin[1], place.q[2] + plan.origin[2]};
  start = Feed::start(plan, start, lane);
  start.from += reinterpret_cast<intptr_t>(
      source + ((channel * plan.source[0] + start.depth) * plan.source[1] + start.height) * plan.source[2] +
      start.width);
  return start;
}

/// The first result of an item's row in its first phases and channel, but for the column.
template <class T>
__device__ __forceinline__ T* result_of(const Plan& plan, const Place& place, T* result, int group) {
  const int64_t channel = (place.image * plan.groups + group) * plan.result_channels;
  return result +
         ((channel * plan.result[0] + place.q[0] * plan.phases[0]) * plan.result[1] + place.q[1] * plan.phases[1]) *
             plan.result[2];
}

/// The weights of the block's group as the tensor core reads them.
template <class T>
__device__ void prepare(const Plan& plan, const T* weight, int lane, int warp, uint32_t* to) {
  for (int tile = 0; tile < plan.column_tiles; ++tile, to += plan.fragments * 32 * kWeightWords<T>) {
    const int column = tile * 8 + lane / 4;
#pragma unroll 4
    for (int f = warp; f < plan.fragments; f += plan.warps) {
      const Fragment fragment = plan.fragment[f];
      T value[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int lane_own = lane_channel<T>(lane % 4, c), channel = fragment.channel + lane_own;
        const bool exists =
            column < plan.result_channels && lane_own >= fragment.taken && channel < plan.source_channels;
        const int64_t at = column * plan.weight_result + channel * plan.weight_source + fragment.tap;
        value[c] = exists ? weight[at] : T{};
      }
      uint32_t* const own = to + (f * 32 + lane) * kWeightWords<T>;
      if constexpr (sizeof(T) == 4) {
        const device::Tf32Pair first = device::split_tf32_unguarded(value[0]);
        const device::Tf32Pair second = device::split_tf32_unguarded(value[1]);
        *reinterpret_cast<uint4*>(own) = uint4{first.high, second.high, first.low, second.low};
      } else {
        *own = value[0].bits | uint32_t{value[1].bits} << 16;
      }
    }
  }
}

/// The results of a warp's items that are not finite, again, as plain float32 chains.
template <class T>
__device__ __noinline__ void plain_results(const Plan& plan, const PlainSumOf<T>& plain, T* results, int item, int step,
                                           int group) {
  for (; item < plan.items; item += step) {
    const Place place = place_of(plan, item);
    const int channels = plan.result_channels;
    const int column = place.q[2] * plan.phases[2], rows = plan.phases[0] * plan.phases[1];
    const int end = min(plan.positions * plan.phases[2], plan.result[2] - column);
    for (int i = 0; i < rows * channels; ++i) {
      const int row = i / channels, channel = i % channels;
      const int d = place.q[0] * plan.phases[0] + row / plan.phases[1];
      const int h = place.q[1] * plan.phases[1] + row % plan.phases[1];
      if (d >= plan.result[0] || h >= plan.result[1]) continue;
      const int64_t across = int64_t{group} * plan.result_channels + channel;
      const int64_t flat = (int64_t{d} * plan.result[1] + h) * plan.result[2] + column;
      T* const to = results + (place.image * plan.groups * plan.result_channels + across) * plan.result_plane + flat;
      const int begin = max(0, -column);
      repair_row(plain, to + begin, end - begin, place.image, across, flat + begin);
    }
  }
}

template <class T, int Lane, bool Aligned>
inline constexpr int kThreads = 32 * most_warps(Lane, static_cast<int>(sizeof(T)), Aligned);
template <int Phases>
inline constexpr int kRowsAtOnce = rows_at_once(Phases);

/// Lane: positions of one.
template <class T, int Lane, int Phases, int Shifts, bool Aligned>
__global__ void __launch_bounds__(kThreads<T, Lane, Aligned>, 1)
    phases_kernel(const __grid_constant__ Plan plan, const __grid_constant__ Arguments<T> arguments,
                  const __grid_constant__ PlainSumOf<T> plain) {
  using Rows = StageRows<T, Lane, Phases>;
  using Feed = Feed<T, Lane, Shifts, Aligned>;
  constexpr int kRows = kRowsAtOnce<Phases>;
  extern __shared__ __align__(128) unsigned char shared[];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const auto group = static_cast<int>(blockIdx.y);
  auto* const weights = reinterpret_cast<uint32_t*>(shared);
  unsigned char* const stages = shared + plan.column_tiles * plan.fragments * 128 * kWeightWords<T>;
  unsigned char* const stage = stages + warp * Rows::kBytes;
  prepare(plan, arguments.weight + group * plan.weight_group, lane, warp, weights);
  __syncthreads();

  const int64_t plane = plan.result_plane;
  const int step = static_cast<int>(gridDim.x) * plan.warps;
  int item = static_cast<int>(blockIdx.x) * plan.warps + warp;
  if (item >= plan.items) return;
  Start start = start_of<Feed>(plan, place_of(plan, item), arguments.source, group, lane);
  uint32_t taps = plan.units[0].taps;
  Feed feed(plan, stages + plan.warps * Rows::kBytes + warp * plan.sources_bytes, lane);
  if constexpr (Feed::kShared) {
    for (int i = 0; i < plan.source_count; ++i) feed.fetch(plan, plan.sources[i], start, lane);
    device::copy_async_wait_all();
  }
  feed.load(plan, plan.units[0], start);

  float poison[4] = {};  // not finite after a result that is not
  while (item < plan.items) {
    const Place place = place_of(plan, item);
    item += step;
    const bool more = item < plan.items;
    const int column = place.q[2] * Phases;
    const int begin = max(0, -column), end = min(Rows::kElements, plan.result[2] - column);
    T* result = result_of(plan, place, arguments.result, group) + column;
    if (Feed::kShared && more) start = start_of<Feed>(plan, place_of(plan, item), arguments.source, group, lane);
    WeightStream<T> own(weights, lane);
    for (int left = plan.result_channels; left > 0; left -= 8, result += 8 * plane) {
      const int channels = min(8, left);
      int u = 0, phase_d = 0, phase_h = 0;
      for (int round = 0; round < plan.rounds; ++round) {
        float sums[kRows][Phases][Lane / 2][4] = {};
#pragma unroll 1
        for (const int last = plan.first_unit[round + 1]; u < last; ++u) {
          const Window<T, Lane, Phases, Shifts, Aligned> window(feed);
          const uint32_t rows = taps >> kTapBits, own_taps = taps & ((1u << kTapBits) - 1);
          if constexpr (Feed::kShared) {
            const int refill = plan.units[u].refill;
            __syncwarp();
            if (refill >= 0 && left <= 8 && more) feed.fetch(plan, plan.sources[refill], start, lane);
            device::copy_async_commit();
          }
          // What comes next, of the next item perhaps; after the last one some that is not used. No load in a branch,
          // or the warp waits for it where the branch ends.
          int next = u + 1;
          if (next == plan.unit_count) {
            next = 0;
            if (!Feed::kShared && left <= 8 && more)
              start = start_of<Feed>(plan, place_of(plan, item), arguments.source, group, lane);
          }
          taps = plan.units[next].taps;
          feed.load(plan, plan.units[next], start);
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
            for (int i = 0; i < Phases * Lane * 2; i += 2)
              poison[i / 2 % 4] = fmaf((&sums[r][0][0][0])[i], (&sums[r][0][0][0])[i + 1], poison[i / 2 % 4]);
            write_stage<T, Lane, Phases>(stage, sums[r], lane);
            __syncwarp();
            write_rows<T, Lane, Phases>(stage, row, plane, begin, end, channels, lane);
            __syncwarp();
          }
          if (++phase_h == plan.phases[1]) phase_h = 0, ++phase_d;
        }
      }
    }
  }
  const float any = poison[0] + poison[1] + (poison[2] + poison[3]);
  if (__any_sync(0xffffffffu, !isfinite(any)))
    plain_results(plan, plain, arguments.result, static_cast<int>(blockIdx.x) * plan.warps + warp, step, group);
}

}  // namespace halo::cuda::conv::phases
