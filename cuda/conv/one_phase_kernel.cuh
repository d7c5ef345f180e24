// Strided convolutions of the width whose taps are a stride apart: most of the traffic is the source, of which only
// every stride-th position is read.
//
// A warp has 32 positions of one row, all results of theirs, and a ring of the source's channels in shared memory,
// eight of which arrive while the others are multiplied. With g = lane / 4, t = lane % 4, a lane loads six neighbouring
// positions of the taps' phase, from 4 g on, of the channels t and t + 4: the operands of all taps of the results at
// 4 g to 4 g + 3, which are rows g and g + 8 of two products. Weights lie in shared memory as fragments.
//
// Zeros that stand for what does not exist make results that are not finite where plain sums have finite ones: such an
// item is computed again, in plain float32.
#pragma once

#include "../device/async_copy.cuh"
#include "../device/load_where.cuh"
#include "one_phase.h"
#include "plain_sum.cuh"
#include "small_groups_tile.cuh"

namespace halo::cuda::conv::one_phase {

template <class T>
using Arguments = small_groups::GatherArguments<T>;

inline constexpr int kWide = 8;                   ///< elements of 16 bytes
inline constexpr int kPitch = kGranules * kWide;  ///< elements between channels of the ring
inline constexpr int kWords = 64;                 ///< of the weights of one tap, eight source and eight result channels

struct Place {
  int image, row, q;
};

__device__ __forceinline__ Place place_of(const Plan& plan, int item) {
  uint32_t tile, row;
  const uint32_t image = plan.rows.divide(plan.tiles.divide(static_cast<uint32_t>(item), tile), row);
  return {static_cast<int>(image), static_cast<int>(row), static_cast<int>(tile) * kPositions};
}

/// What a warp copies of an item: lane / 4 is the channel of eight, lane % 4 the first granule.
template <class T>
struct Feed {
  const T* from;  ///< the row's element that the first tap reads first, of the lane's first channel
  int first;      ///< its position in the row
  bool inside;    ///< no granule leaves the row

  __device__ __forceinline__ Feed(const Plan& plan, const T* source, int item, int lane) {
    const small_groups::GroupProblem& p = plan.problem;
    const Place place = place_of(plan, item);
    first = place.q * p.step[2] + p.origin[2];
    const int row = place.row / p.result[1] * p.step[0] * p.source[1] + place.row % p.result[1] * p.step[1];
    from = source + (int64_t{place.image} * p.source_channels + lane / 4) * p.source_rows.plane_pitch +
           (int64_t{row} * p.source[2] + first);
    inside = first >= kWide - 1 && first + (plan.granules + 1) * kWide <= p.source[2];
  }

  /// Elements between a 16-byte boundary and what lies `channels` planes behind `from`.
  static __device__ __forceinline__ unsigned shift(const T* from, unsigned channels, unsigned plane) {
    return (static_cast<unsigned>(reinterpret_cast<uintptr_t>(from) / sizeof(T)) + channels * plane) % kWide;
  }

  /// Starts to copy eight channels.
  __device__ __forceinline__ void load(const Plan& plan, int step, T* ring, int lane) const {
    const small_groups::GroupProblem& p = plan.problem;
    const int channel = step * 8 + lane / 4;
    if (channel >= p.source_channels) return;
    const T* const row = from + step * 8 * p.source_rows.plane_pitch;
    const int shift = static_cast<int>(Feed::shift(row, 0, 0));
    T* const to = ring + channel * kPitch;
    if (inside) {
      const auto* source = reinterpret_cast<const unsigned char*>(row - shift) + lane % 4 * 16;
      const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to)) + lane % 4 * 16;
#pragma unroll
      for (int i = 0; i < kGranules / 4; ++i) {
        if (lane % 4 + 4 * i < plan.granules) device::copy_async<16>(address + i * 64, source + i * 64, 16);
      }
    } else {
      for (int e = lane % 4; e < kPitch - shift; e += 4) {
        const bool exists = first + e >= 0 && first + e < p.source[2];
        to[shift + e].bits = static_cast<uint16_t>(device::load_one<T>(row + e, exists));
      }
    }
  }
};

/// An item's results again, as plain float32 chains.
template <class T>
__device__ __noinline__ void plain_results(const Plan& plan, const PlainSumOf<T>& plain, const T* bias, T* result,
                                           const Place& place, int count) {
  const small_groups::GroupProblem& p = plan.problem;
  __syncwarp();
  for (int i = static_cast<int>(threadIdx.x % 32); i < p.result_channels * count; i += 32) {
    const int c = i / count;
    const int64_t flat = int64_t{place.row} * p.result[2] + place.q + i % count;
    float value = plain.at(place.image, c, flat);
    if (bias != nullptr) value += device::to_accumulator(bias[c]);
    result[(int64_t{place.image} * p.result_channels + c) * p.result_rows.plane_pitch + flat] =
        device::from_accumulator<T>(value);
  }
}

template <class T>
__global__ void __launch_bounds__(kMostWarps * 32, 1)
    one_phase_kernel(const __grid_constant__ Plan plan, const __grid_constant__ Arguments<T> arguments,
                     const __grid_constant__ PlainSumOf<T> plain) {
  extern __shared__ __align__(16) unsigned char shared[];
  const small_groups::GroupProblem& p = plan.problem;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int g = lane / 4, t = lane % 4;
  T* const ring = reinterpret_cast<T*>(shared + warp * kStageBytes);
  auto* const weights = reinterpret_cast<uint32_t*>(shared + plan.warps * kStageBytes);

  const int step = static_cast<int>(gridDim.x) * plan.warps;
  int item = static_cast<int>(blockIdx.x) * plan.warps + warp;
  for (int i = lane; i < kStageBytes / 16; i += 32) reinterpret_cast<uint4*>(ring)[i] = uint4{};
  __syncwarp();
  if (item < plan.items) {
    const Feed<T> feed(plan, arguments.source, item, lane);
    for (int k = 0; k < plan.steps; ++k) {
      feed.load(plan, k, ring, lane);
      device::copy_async_commit();
    }
  }
  // [step][tap][column tile][lane][channel t, t + 4]
  for (int i = static_cast<int>(threadIdx.x); i < plan.steps * kTaps * kColumnTiles * 64;
       i += static_cast<int>(blockDim.x)) {
    const int half = i % 2, at = i / 2 % 32, fragment = i / 64;
    const int column = fragment % kColumnTiles * 8 + at / 4, tap = fragment / kColumnTiles % kTaps;
    const int channel = fragment / kColumnTiles / kTaps * 8 + at % 4 + half * 4;
    const bool exists = column < p.result_channels && channel < p.source_channels && plan.tap[tap] >= 0;
    const float value =
        exists ? device::to_accumulator(
                     arguments.weight[column * p.weight_result + channel * p.weight_source + plan.tap[tap]])
               : 0.0f;
    weights[fragment * kWords + at * 2 + half] = __float_as_uint(value);  // exact in TF32
  }
  __syncthreads();

  const auto plane = static_cast<unsigned>(p.source_rows.plane_pitch);
  int offsets[kTaps + 3];
#pragma unroll
  for (int w = 0; w < kTaps + 3; ++w) offsets[w] = (4 * g + w) * p.step[2];

  for (; item < plan.items; item += step) {
    const Place place = place_of(plan, item);
    const bool more = item + step < plan.items;
    const Feed<T> here(plan, arguments.source, item, 0), next(plan, arguments.source, more ? item + step : item, lane);
    float sums[2][kColumnTiles][4];
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int c = n * 8 + 2 * t + i;
        const bool exists = arguments.bias != nullptr && c < p.result_channels;
        const float bias = exists ? device::to_accumulator(arguments.bias[c]) : 0.0f;
        sums[0][n][i] = sums[0][n][2 + i] = sums[1][n][i] = sums[1][n][2 + i] = bias;
      }
    }
    const uint32_t* own = weights + lane * 2;
#pragma unroll 1
    for (int k = 0; k < plan.steps; ++k) {
      // The groups of later steps of this item may still run: as many as there are, at most kSteps - 1.
      if (plan.steps == kSteps) {
        device::copy_async_wait<kSteps - 1>();
      } else {
        device::copy_async_wait<0>();
      }
      __syncwarp();
      small_groups::Operand<kTaps + 3, false> window[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int channel = k * 8 + t + i * 4;
        const T* const row = ring + channel * kPitch + Feed<T>::shift(here.from, static_cast<unsigned>(channel), plane);
#pragma unroll
        for (int w = 0; w < kTaps + 3; ++w) window[i].set(w, device::to_accumulator(row[offsets[w]]));
      }
      __syncwarp();
      if (more) next.load(plan, k, ring, lane);
      device::copy_async_commit();
      float part[2][kColumnTiles][4];
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap, own += kColumnTiles * kWords) {
        small_groups::Operand<2, false> b[kColumnTiles];
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
          const uint2 two = *reinterpret_cast<const uint2*>(own + n * kWords);
          b[n].high[0] = two.x, b[n].high[1] = two.y;
        }
        small_groups::Operand<4, false> a[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {  // rows g, g + 8 of channel t, then of t + 4
            const int w = tap + j + i % 2 * 2;
            a[j].high[i] = window[i / 2].high[w];
          }
        }
        if (tap == 0) {
          small_groups::multiply_tiles<true, false>(part, a, b);
        } else {
          small_groups::multiply_tiles<false, false>(part, a, b);
        }
      }
      small_groups::promote(sums, part);
    }

    const int count = min(kPositions, p.result[2] - place.q);
    T* const result = arguments.result +
                      (int64_t{place.image} * p.result_channels + 2 * t) * p.result_rows.plane_pitch +
                      (int64_t{place.row} * p.result[2] + place.q + 4 * g);
    float poison = 0;
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float four[4] = {sums[0][n][i], sums[1][n][i], sums[0][n][2 + i], sums[1][n][2 + i]};
#pragma unroll
        for (int e = 0; e < 4; ++e) poison = fmaf(four[e], 0.0f, poison);
        if (n * 8 + 2 * t + i >= p.result_channels) continue;
        T* const to = result + (n * 8 + i) * p.result_rows.plane_pitch;
        if (plan.packs && 4 * g + 4 <= count) {
          *reinterpret_cast<uint2*>(to) = uint2{device::pack_word<T>(four), device::pack_word<T>(four + 2)};
        } else {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            if (4 * g + e < count) to[e] = device::from_accumulator<T>(four[e]);
          }
        }
      }
    }
    if (__any_sync(0xffffffffu, poison != 0))
      plain_results(plan, plain, arguments.bias, arguments.result, place, count);
  }
}

}  // namespace halo::cuda::conv::one_phase
