// Transposed convolutions whose results have few taps: the result is nearly all the traffic.
//
// A warp owns 16 result channels, whose weights stay in its registers, and has their piece of a row in shared memory,
// in which the phases without taps are zero once and for all. The tensor core multiplies weights by a tile of the
// source, the other phases' results are put between the zeros, and the copy engine takes the rows away; what is not
// whole 16 bytes at their ends leaves by single elements. Rows without any tap are copies of zeros on the way.
//
// Split operands, and zeros that stand for what does not exist, make results that are not finite where plain sums have
// finite ones: such results are computed again, in plain float32.
#pragma once

#include "../device/async_copy.cuh"
#include "../device/store_box.cuh"
#include "../device/wgmma.cuh"
#include "few_taps.h"
#include "plain_sum.cuh"
#include "small_groups_tile.cuh"

namespace halo::cuda::conv::few_taps {

template <class T>
using Arguments = small_groups::GatherArguments<T>;

template <class T>
inline constexpr int kWide = 16 / static_cast<int>(sizeof(T));
template <class T>
inline constexpr unsigned kLineElements = kLine / sizeof(T);

/// Where an item lies: `piece` of the width at row q of `outer`'s phases.
struct Place {
  int outer, image, q[3];
  int row_d, row_h;
  bool exists;
};

__device__ __forceinline__ Place place_of(const Plan& plan, uint32_t rest, int first_outer, bool in_pieces) {
  const small_groups::GroupProblem& p = plan.problem;
  Place place;
  uint32_t at = 0;
  if (in_pieces) rest = plan.tiles[2].divide(rest, at);
  place.q[2] = static_cast<int>(at) * plan.own - plan.lead;
  rest = plan.tiles[1].divide(rest, at);
  place.q[1] = static_cast<int>(at);
  rest = plan.tiles[0].divide(rest, at);
  place.q[0] = static_cast<int>(at);
  rest = plan.images.divide(rest, at);
  place.image = static_cast<int>(at);
  place.outer = plan.outer[first_outer + static_cast<int>(rest)];
  place.row_d = place.q[0] * p.phases[0] + place.outer / p.phases[1];
  place.row_h = place.q[1] * p.phases[1] + place.outer % p.phases[1];
  place.exists = place.row_d < p.result[0] && place.row_h < p.result[1];
  return place;
}

/// Elements before the first boundary of a line.
template <class T>
__device__ __forceinline__ int head_of(const T* row) {
  return static_cast<int>(-static_cast<unsigned>(reinterpret_cast<uintptr_t>(row) / sizeof(T)) &
                          (kLineElements<T> - 1));
}

/// Whole 16 bytes of `count` elements.
template <class T>
__device__ __forceinline__ int body_of(int count) {
  return max(0, count) / kWide<T> * kWide<T>;
}

/// Starts the copies of an item's source. Channels that do not exist are zero from the beginning.
template <class T>
__device__ __forceinline__ void load_source(const Plan& plan, const T* data, int item, T* to, int thread, int threads) {
  const small_groups::GroupProblem& p = plan.problem;
  const Place place = place_of(plan, static_cast<uint32_t>(item), 0, true);
  const int d = place.q[0] + p.origin[0] + p.taps[0].offset[place.outer / p.phases[1]][0];
  const int h = place.q[1] + p.origin[1] + p.taps[1].offset[place.outer % p.phases[1]][0];
  const bool row = place.exists && d >= 0 && d < p.source[0] && h >= 0 && h < p.source[1];
  const int width = plan.granules ? kWide<T> : 1;
  const int first = place.q[2] + p.origin[2];
  const T* const from = data + int64_t{place.image} * p.source_channels * p.source_rows.plane_pitch +
                        d * p.source_rows.outer_pitch + h * p.source_rows.inner_pitch + first;
  const int count = p.source_channels * static_cast<int>(plan.pieces.divisor);
  for (int i = thread; i < count; i += threads) {
    uint32_t piece;
    const auto channel = static_cast<int>(plan.pieces.divide(static_cast<uint32_t>(i), piece));
    const int at = static_cast<int>(piece) * width;
    const bool exists = row && first + at >= 0 && first + at < p.source[2];
    const T* const source = from + channel * p.source_rows.plane_pitch + at;
    const auto target = static_cast<uint32_t>(__cvta_generic_to_shared(to + channel * plan.source_pitch + at));
    if (sizeof(T) == 2 || plan.granules) {
      device::copy_async<16>(target, exists ? source : data, exists ? 16 : 0);
    } else {
      device::copy_async<4>(target, exists ? source : data, exists ? 4 : 0);
    }
  }
}

/// A row that no tap reaches, of the lane's channel.
template <class T>
__device__ __forceinline__ void write_empty_row(const Plan& plan, T* result, uint32_t zeros, int index, int channel) {
  const small_groups::GroupProblem& p = plan.problem;
  constexpr int kMost = kZeroBytes / static_cast<int>(sizeof(T));
  const Place place = place_of(plan, static_cast<uint32_t>(index), plan.tapped, false);
  if (!place.exists) return;
  T* const row = result + (int64_t{place.image} * p.result_channels + channel) * p.result_rows.plane_pitch +
                 place.row_d * p.result_rows.outer_pitch + place.row_h * p.result_rows.inner_pitch;
  const int count = p.result[2], head = min(count, head_of(row)), end = head + body_of<T>(count - head);
  for (int e = 0; e < head; ++e) row[e] = T{};
  for (int e = head; e < end; e += kMost) {
    device::store_bulk(row + e, zeros, min(kMost, end - e) * static_cast<int>(sizeof(T)));
  }
  for (int e = end; e < count; ++e) row[e] = T{};
}

/// Replaces what is not finite in a warp's rows. `flat`: position of their first element.
template <class T>
__device__ __noinline__ void repair(const PlainSumOf<T>& plain, T* stage, int pitch, unsigned low, unsigned plane,
                                    int64_t image, int channel, int channels, int64_t flat, int skip, int count) {
  for (int i = static_cast<int>(threadIdx.x % 32); i < channels * count; i += 32) {
    const int c = i / count, e = i % count;
    if (e < skip) continue;
    T& value =
        stage[c * pitch + static_cast<int>((low + static_cast<unsigned>(c) * plane) & (kLineElements<T> - 1)) + e];
    if (!isfinite(device::to_accumulator(value)))
      value = device::from_accumulator<T>(plain.at(image, channel + c, flat + e));
  }
}

/// The products of kChunk positions that `tap` reads, column g of tile j being position 8 j + g. `from`: what the lane
/// reads first.
template <class T, bool Split>
__device__ __forceinline__ void add_tap(float (&sums)[1][kTiles][4], const T* from, int pitch,
                                        const small_groups::Operand<4, Split> (&weights)[kSteps][1]) {
  float part[1][kTiles][4];
#pragma unroll
  for (int k = 0; k < kSteps; ++k, from += 8 * pitch) {
    small_groups::Operand<2, Split> b[kTiles];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      b[j].set(0, device::to_accumulator(from[8 * j]));
      b[j].set(1, device::to_accumulator(from[4 * pitch + 8 * j]));
    }
    if (k == 0) {
      small_groups::multiply_tiles<true, Split>(part, weights[k], b);
    } else {
      small_groups::multiply_tiles<false, Split>(part, weights[k], b);
    }
  }
  small_groups::promote(sums, part);
}

/// The products of kChunk positions that neighbouring taps of one phase read, column g of tile j being position
/// 4 g + j: six positions of a lane are the operands of all of them.
template <class T, bool Split>
__device__ __forceinline__ void add_window(float (&sums)[1][kTiles][4], const T* from, int pitch,
                                           const small_groups::Operand<4, Split> (&weights)[kTaps][kSteps][1]) {
  constexpr int kWindow = kTiles + kWindowTaps - 1, kPerWord = 4 / static_cast<int>(sizeof(T));
#pragma unroll
  for (int k = 0; k < kSteps; ++k, from += 8 * pitch) {
    float part[1][kTiles][4];
    small_groups::Operand<2, Split> window[kWindow];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t words[kWindow / kPerWord];
      const T* const at = from + i * 4 * pitch;
      if constexpr (sizeof(T) == 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(at);
        const uint2 two = *reinterpret_cast<const uint2*>(at + 4);
        words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w, words[4] = two.x, words[5] = two.y;
      } else {
        const uint2 two = *reinterpret_cast<const uint2*>(at);
        words[0] = two.x, words[1] = two.y, words[2] = *reinterpret_cast<const uint32_t*>(at + 4);
      }
#pragma unroll
      for (int w = 0; w < kWindow; w += kPerWord) {
        float values[kPerWord];
        device::unpack_word<T>(words[w / kPerWord], values);
#pragma unroll
        for (int e = 0; e < kPerWord; ++e) window[w + e].set(i, values[e]);
      }
    }
#pragma unroll
    for (int tap = 0; tap < kWindowTaps; ++tap) {
      small_groups::Operand<2, Split> b[kTiles];
#pragma unroll
      for (int j = 0; j < kTiles; ++j) b[j] = window[tap + j];
      if (tap == 0) {
        small_groups::multiply_tiles<true, Split>(part, weights[tap][k], b);
      } else {
        small_groups::multiply_tiles<false, Split>(part, weights[tap][k], b);
      }
    }
    small_groups::promote(sums, part);
  }
}

template <class T, bool Split, bool Windows>
__global__ void __launch_bounds__(kMostWarps * 32, kBlocks)
    few_taps_kernel(const __grid_constant__ Plan plan, const __grid_constant__ Arguments<T> arguments,
                    const __grid_constant__ PlainSumOf<T> plain) {
  extern __shared__ __align__(128) unsigned char shared[];
  const small_groups::GroupProblem& p = plan.problem;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int g = lane / 4, t = lane % 4;
  for (int i = static_cast<int>(threadIdx.x) * 16; i < static_cast<int>(plan.shared_bytes);
       i += static_cast<int>(blockDim.x) * 16) {
    *reinterpret_cast<uint4*>(shared + i) = uint4{};
  }
  device::fence_async_proxy();
  __syncthreads();
  const auto zeros = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  T* const sources = reinterpret_cast<T*>(shared + plan.zeros);
  const int source_elements = kSteps * 8 * plan.source_pitch;
  T* const stage = sources + 2 * source_elements + warp * kWarpChannels * plan.stage_pitch;
  const int first_channel = warp * kWarpChannels;
  const int channels = min(kWarpChannels, p.result_channels - first_channel);
  const auto plane = static_cast<unsigned>(p.result_rows.plane_pitch);
  const int threads = plan.warps * 32, step = static_cast<int>(gridDim.x), stride = p.phases[2];

  const bool overlaps = plan.own < plan.positions;
  using Weights = small_groups::Operand<4, Split>;
  Weights weights[kTaps][kSteps][1];
  int outer = -1;
  unsigned shifted = 0;  // of the rows in the stage
  int item = static_cast<int>(blockIdx.x), empty = item;
  T* source = sources;
  if (item < plan.items) load_source(plan, arguments.source, item, source, static_cast<int>(threadIdx.x), threads);
  for (; item < plan.items; item += step) {
    device::copy_async_wait_all();
    __syncthreads();
    T* const next = source == sources ? sources + source_elements : sources;
    if (item + step < plan.items)
      load_source(plan, arguments.source, item + step, next, static_cast<int>(threadIdx.x), threads);
    const Place place = place_of(plan, static_cast<uint32_t>(item), 0, true);
    const T* const here = source + t * plan.source_pitch;
    source = next;
    if (!place.exists) continue;

    if (place.outer != outer) {
      outer = place.outer;
      const int outer_tap = p.taps[0].tap[outer / p.phases[1]][0] * p.tap_pitch[0] +
                            p.taps[1].tap[outer % p.phases[1]][0] * p.tap_pitch[1];
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int row = g + i % 2 * 8, channel = k * 8 + t + i / 2 * 4;
            const bool exists = row < channels && channel < p.source_channels && tap < plan.taps && plan.tap[tap] >= 0;
            const T* const from = arguments.weight + (first_channel + row) * p.weight_result +
                                  channel * p.weight_source + outer_tap + plan.tap[tap];
            const float value = exists ? device::to_accumulator(*from) : 0.0f;
            weights[tap][k][0].set(i, value);
            if constexpr (sizeof(T) == 4 && !Split)
              weights[tap][k][0].high[i] = device::split_tf32_unguarded(value).high;
          }
        }
      }
    }

    const int column = place.q[2] * stride, count = min(plan.positions * stride, p.result[2] - column);
    const int skip = max(0, -column);  // before the row
    const int64_t flat =
        place.row_d * p.result_rows.outer_pitch + place.row_h * p.result_rows.inner_pitch + int64_t{column};
    T* const result = arguments.result +
                      (int64_t{place.image} * p.result_channels + first_channel) * p.result_rows.plane_pitch + flat;
    const auto low = static_cast<unsigned>(reinterpret_cast<uintptr_t>(result) / sizeof(T));
    device::store_wait_read();
    __syncwarp();
    if ((low & (kLineElements<T> - 1)) != shifted) {
      shifted = low & (kLineElements<T> - 1);
      for (int i = lane * kWide<T>; i < kWarpChannels * plan.stage_pitch; i += 32 * kWide<T>)
        *reinterpret_cast<uint4*>(stage + i) = uint4{};
      __syncwarp();
    }
    const auto shift_of = [&](int c) {
      return static_cast<int>((low + static_cast<unsigned>(c) * plane) & (kLineElements<T> - 1));
    };
    T* const rows[2] = {stage + g * plan.stage_pitch + shift_of(g),
                        stage + (g + 8) * plan.stage_pitch + shift_of(g + 8)};
    float poison = 0;
#pragma unroll 1
    for (int q = 0; q * stride < count; q += kChunk) {
      float sums[1][kTiles][4];
      small_groups::clear(sums);
      const auto stage_sums = [&](int phase) {
        constexpr int kNext = Windows ? 4 : 1;  // positions between the columns of a lane
        int at = (q + 2 * kNext * t) * stride + phase;
#pragma unroll
        for (int j = 0; j < kTiles; ++j, at += (Windows ? 1 : 8) * stride) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            poison = fmaf(sums[0][j][i], 0.0f, poison);
            rows[i / 2][at + i % 2 * kNext * stride] = device::from_accumulator<T>(sums[0][j][i]);
          }
        }
      };
      if constexpr (Windows) {
        add_window(sums, here + 4 * g + q, plan.source_pitch, weights);
        stage_sums(plan.phase[0]);
      } else {
#pragma unroll
        for (int tap = 0; tap < kTaps; ++tap) {
          if (tap >= plan.taps) break;
          add_tap(sums, here + g + q + plan.offset[tap], plan.source_pitch, weights[tap]);
          if (!plan.last[tap]) continue;
          stage_sums(plan.phase[tap]);
          small_groups::clear(sums);
        }
      }
    }
    if (__any_sync(0xffffffffu, poison != 0)) {
      repair(plain, stage, plan.stage_pitch, low, plane, place.image, first_channel, channels, flat, skip, count);
    }
    device::fence_async_proxy();
    __syncwarp();
    // Whole lines, up to that in which the next item of the row begins; at the row's ends, or where items do not
    // overlap at theirs, what is less by elements.
    const int c = lane % kWarpChannels;
    if (c < channels) {
      T* const row = result + c * p.result_rows.plane_pitch;
      const T* const staged = stage + c * plan.stage_pitch + shift_of(c);
      const bool first = !overlaps || column <= 0;
      const int begin = first ? skip + head_of(row + skip) : head_of(row);
      const int limit = overlaps ? min(count, plan.own * stride + head_of(row)) : count;
      const int end = begin + body_of<T>(limit - begin);
      if (lane < kWarpChannels) {
        if (end > begin) {
          device::store_bulk(row + begin, static_cast<uint32_t>(__cvta_generic_to_shared(staged + begin)),
                             (end - begin) * static_cast<int>(sizeof(T)));
        }
        if (first) {
          for (int e = skip; e < min(begin, limit); ++e) row[e] = staged[e];
        }
      } else {
        for (int e = end; e < limit; ++e) row[e] = staged[e];
      }
    }
    // Empty rows on the way, in proportion.
    for (; empty < plan.empty_rows && int64_t{empty} * plan.items <= int64_t{item} * plan.empty_rows; empty += step) {
      if (lane < channels) write_empty_row(plan, arguments.result, zeros, empty, first_channel + lane);
    }
    device::store_commit();
  }
  for (; empty < plan.empty_rows; empty += step) {
    if (lane < channels) write_empty_row(plan, arguments.result, zeros, empty, first_channel + lane);
    device::store_commit();
  }
  device::store_wait();
}

}  // namespace halo::cuda::conv::few_taps
