// Transposed convolutions whose results have few taps: the result is nearly all the traffic.
//
// A block's source lies in shared memory as the tensor core reads it, split: 16 bytes of a position's channels, then
// those of the next position, so that another tap is the same operand some positions further on. A warp owns 16 result
// channels, the rows of the products, whose weights stay in its registers, and has their piece of a row in shared
// memory, in which the phases without taps are zero once and for all. The other phases' results are put between the
// zeros, and the copy engine takes the rows away; what is not whole lines at their ends leaves by single elements. Rows
// without any tap are copies of zeros on the way.
//
// Split operands, and zeros that stand for what does not exist, make results that are not finite where plain sums have
// finite ones: such results are computed again, in plain float32.
#pragma once

#include "../../device/async_copy.cuh"
#include "../../device/load_where.cuh"
#include "../../device/store_box.cuh"
#include "../positions.cuh"
#include "few_taps.h"

namespace halo::cuda::conv::few_taps {

template <class T>
using Arguments = small_groups::GatherArguments<T>;

template <class T>
inline constexpr int kWide = 16 / static_cast<int>(sizeof(T));
template <class T>
inline constexpr unsigned kLineElements = kLine / sizeof(T);
template <class T>
inline constexpr unsigned kSkewElements = kSkew / sizeof(T);

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
  place.q[2] = static_cast<int>(at) * plan.own;
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

/// What a thread brings of an item's source: channels of its warp's pieces at every 32nd position.
template <class T>
struct Source {
  static constexpr int kEach = kWide<T>, kPieces = kChannels / kEach / kWarps;
  uint32_t word[kPieces][kEach][kRuns];

  /// Starts to load; zeros where nothing exists.
  __device__ __forceinline__ void load(const Plan& plan, const T* data, int item, int warp, int lane) {
    const small_groups::GroupProblem& p = plan.problem;
    const Place place = place_of(plan, static_cast<uint32_t>(item), 0, true);
    const int d = place.q[0] + p.origin[0] + p.taps[0].offset[place.outer / p.phases[1]][0];
    const int h = place.q[1] + p.origin[1] + p.taps[1].offset[place.outer % p.phases[1]][0];
    const bool row = place.exists && d >= 0 && d < p.source[0] && h >= 0 && h < p.source[1];
    const int at = place.q[2] + p.origin[2] + lane;
    const T* from = data +
                    (int64_t{place.image} * p.source_channels + warp * kPieces * kEach) * p.source_rows.plane_pitch +
                    d * p.source_rows.outer_pitch + h * p.source_rows.inner_pitch + at;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
      for (int c = 0; c < kEach; ++c, from += p.source_rows.plane_pitch) {
        asm volatile("" : "+l"(from));  // the runs as offsets that are known when compiled
        const bool channel = row && (warp * kPieces + piece) * kEach + c < p.source_channels;
        const auto width = static_cast<unsigned>(channel ? p.source[2] : 0);
#pragma unroll
        for (int run = 0; run < kRuns; ++run)
          word[piece][c][run] = device::load_one<T>(from + 32 * run, static_cast<unsigned>(at + 32 * run) < width);
      }
    }
  }

  /// Splits and stores what has been loaded.
  template <bool Split>
  __device__ __forceinline__ void store(const Plan& plan, uint32_t to, int warp, int lane) const {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
      for (int run = 0; run < kRuns; ++run) {
        const int row = 32 * run + lane;
        if (row >= plan.source_rows) break;
        const uint32_t at = to + (warp * kPieces + piece) * plan.piece_pitch + row * 16;
        store_position<T, Split>(at, plan.part_bytes, [&](int i) {
          if constexpr (sizeof(T) == 4) return word[piece][i][run];
          return __byte_perm(word[piece][2 * i][run], word[piece][2 * i + 1][run], 0x5410);
        });
      }
    }
  }
};

/// A warp's weights of one tap as the tensor core takes them, row g being its channel g. Steps of 8 source channels, of
/// half types 16.
template <class T, bool Split>
struct Weights {
  static constexpr int kPer = 4 / static_cast<int>(sizeof(T)), kSteps = kChannels / (8 * kPer);
  small_groups::Operand<4, Split> step[kSteps];

  /// `from`: the weight of the warp's first channel; `channels`: of those that exist.
  __device__ __forceinline__ void load(const small_groups::GroupProblem& p, const T* from, int channels, int lane) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i % 2 * 8, channel = (k * 8 + lane % 4 + i / 2 * 4) * kPer;
        float value[kPer];
#pragma unroll
        for (int e = 0; e < kPer; ++e) {
          const bool exists = row < channels && channel + e < p.source_channels;
          value[e] =
              exists ? device::to_accumulator(from[row * p.weight_result + (channel + e) * p.weight_source]) : 0.0f;
        }
        if constexpr (kPer == 2) {
          step[k].high[i] = device::pack_word<T>(value);
        } else {
          step[k].set_rounded(i, value[0]);
        }
      }
    }
  }
};

/// sums += the products of one tap at kChunk positions. Split: small ones first, in a sum of their own, since the
/// tensor core cuts off what falls below the last place of a sum.
template <class T, bool Split>
__device__ __forceinline__ void add_tap(float (&sums)[kChunk / 2], const Weights<T, Split>& weights, uint64_t source,
                                        uint32_t step, uint32_t part) {
  using W = Weights<T, Split>;
  float own[Split ? kChunk / 2 : 1];
  device::wgmma_fence();
  if constexpr (Split) {
#pragma unroll
    for (int k = 0; k < W::kSteps; ++k) {
      const uint64_t high = device::descriptor_after(source, k * step);
      device::wgmma_tf32(own, weights.step[k].low, high, k > 0);
      device::wgmma_tf32(own, weights.step[k].high, device::descriptor_after(high, part), 1);
    }
  }
#pragma unroll
  for (int k = 0; k < W::kSteps; ++k) {
    const uint64_t high = device::descriptor_after(source, k * step);
    if constexpr (Split) {
      device::wgmma_tf32(own, weights.step[k].high, high, 1);
    } else if constexpr (sizeof(T) == 4) {
      device::wgmma_tf32(sums, weights.step[k].high, high, 1);
    } else {
      device::wgmma_half<T>(sums, weights.step[k].high, high);
    }
  }
  device::wgmma_commit();
  device::wgmma_wait<0>();
  if constexpr (Split) {
    device::wgmma_pin(own);
#pragma unroll
    for (int i = 0; i < kChunk / 2; ++i) sums[i] += own[i];
  } else {
    device::wgmma_pin(sums);
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
    const auto skew = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(row + e) % kSkew);
    device::store_bulk(row + e, zeros + skew, min(kMost, end - e) * static_cast<int>(sizeof(T)));
  }
  for (int e = end; e < count; ++e) row[e] = T{};
}

/// Replaces what is not finite in a warp's rows. `flat`: position of their first element.
template <class T>
__device__ __noinline__ void repair(const PlainSumOf<T>& plain, T* stage, int pitch, unsigned low, unsigned plane,
                                    int64_t image, int channel, int channels, int64_t flat, int count) {
  __syncwarp();
  for (int c = 0; c < channels; ++c) {
    const unsigned shift = (low + static_cast<unsigned>(c) * plane) & (kSkewElements<T> - 1);
    repair_row(plain, stage + c * pitch + shift, count, image, channel + c, flat);
  }
}

template <class T, bool Split>
__global__ void __launch_bounds__(kThreads, blocks_of(sizeof(T)))
    few_taps_kernel(const __grid_constant__ Plan plan, const __grid_constant__ Arguments<T> arguments,
                    const __grid_constant__ PlainSumOf<T> plain) {
  extern __shared__ __align__(128) unsigned char shared[];
  const small_groups::GroupProblem& p = plan.problem;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int g = lane / 4, t = lane % 4;
  for (int i = static_cast<int>(threadIdx.x) * 16; i < static_cast<int>(plan.shared_bytes); i += kThreads * 16)
    *reinterpret_cast<uint4*>(shared + i) = uint4{};
  device::fence_async_proxy();
  __syncthreads();
  const uint32_t zeros = device::shared_address(shared), pieces = zeros + plan.zeros;
  T* const stage = reinterpret_cast<T*>(shared + plan.zeros + (Split ? 2 : 1) * plan.part_bytes) +
                   warp * kWarpChannels * plan.stage_pitch;
  const int first_channel = warp * kWarpChannels;
  const int channels = min(kWarpChannels, p.result_channels - first_channel);
  const auto plane = static_cast<unsigned>(p.result_rows.plane_pitch);
  const int step = static_cast<int>(gridDim.x), stride = p.phases[2];
  const auto piece_pitch = static_cast<uint32_t>(plan.piece_pitch), part = static_cast<uint32_t>(plan.part_bytes);
  const uint64_t operand = positions_descriptor(pieces, piece_pitch);

  const bool overlaps = plan.own < plan.positions;
  Weights<T, Split> weights[kTaps];
  int outer = -1;
  // Of the rows in the stage; another multiple of the stride leaves the same phases zero, unless it wraps around.
  unsigned shifted = 0;
  const unsigned within = (stride & (stride - 1)) == 0 ? stride - 1 : kSkewElements<T> - 1;
  int item = static_cast<int>(blockIdx.x), empty = item;
  Source<T> source;
  if (item < plan.items) source.load(plan, arguments.source, item, warp, lane);
  for (; item < plan.items; item += step) {
    __syncthreads();  // the item before has been multiplied
    source.template store<Split>(plan, pieces, warp, lane);
    device::fence_async_proxy();
    __syncthreads();
    if (item + step < plan.items) source.load(plan, arguments.source, item + step, warp, lane);
    const Place place = place_of(plan, static_cast<uint32_t>(item), 0, true);
    if (!place.exists) continue;

    if (place.outer != outer) {
      outer = place.outer;
      const T* const from = arguments.weight + first_channel * p.weight_result +
                            p.taps[0].tap[outer / p.phases[1]][0] * p.tap_pitch[0] +
                            p.taps[1].tap[outer % p.phases[1]][0] * p.tap_pitch[1];
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
        if (tap < plan.taps) weights[tap].load(p, from + plan.tap[tap], channels, lane);
      }
    }

    const int column = place.q[2] * stride, count = min(plan.positions * stride, p.result[2] - column);
    const int64_t flat =
        place.row_d * p.result_rows.outer_pitch + place.row_h * p.result_rows.inner_pitch + int64_t{column};
    T* const result = arguments.result +
                      (int64_t{place.image} * p.result_channels + first_channel) * p.result_rows.plane_pitch + flat;
    const auto low = static_cast<unsigned>(reinterpret_cast<uintptr_t>(result) / sizeof(T));
    device::store_wait_read();
    __syncwarp();
    if ((low & within) != shifted && channels > 0) {
      shifted = low & within;
      for (int i = lane * kWide<T>; i < kWarpChannels * plan.stage_pitch; i += 32 * kWide<T>)
        *reinterpret_cast<uint4*>(stage + i) = uint4{};
      __syncwarp();
    }
    const auto shift_of = [&](int c) {
      return static_cast<int>((low + static_cast<unsigned>(c) * plane) & (kSkewElements<T> - 1));
    };
    T* const rows[2] = {stage + g * plan.stage_pitch + shift_of(g),
                        stage + (g + 8) * plan.stage_pitch + shift_of(g + 8)};
    float poison[2] = {};
#pragma unroll 1
    for (int q = 0; q * stride < count; q += kChunk) {
      float sums[kChunk / 2] = {};
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
        if (tap >= plan.taps) break;
        const auto at = static_cast<uint32_t>(q + plan.offset[tap]) * device::kGranule;
        add_tap(sums, weights[tap], device::descriptor_after(operand, at), 2 * piece_pitch, part);
        if (!plan.last[tap]) continue;
        if (channels > 0) {
          const int first = (q + 2 * t) * stride + plan.phase[tap];
          T *to[2] = {rows[0] + first, rows[1] + first}, *next[2] = {to[0] + stride, to[1] + stride};
#pragma unroll
          for (int i = 0; i < kChunk / 2; i += 4) {  // columns 2 i + 2 t and the next of rows g and g + 8
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              poison[h] = fmaf(sums[i + 2 * h], 0.0f, poison[h]);
              poison[h] = fmaf(sums[i + 2 * h + 1], 0.0f, poison[h]);
              *to[h] = device::from_accumulator<T>(sums[i + 2 * h]);
              *next[h] = device::from_accumulator<T>(sums[i + 2 * h + 1]);
              to[h] += 8 * stride;
              next[h] += 8 * stride;
            }
          }
        }
#pragma unroll
        for (int i = 0; i < kChunk / 2; ++i) sums[i] = 0;
      }
    }
    if (__any_sync(0xffffffffu, poison[0] + poison[1] != 0)) {
      repair(plain, stage, plan.stage_pitch, low, plane, place.image, first_channel, channels, flat, count);
    }
    device::fence_async_proxy();
    __syncwarp();
    // Whole lines, up to that in which the next item of the row begins; at the row's ends, or where items do not
    // overlap at theirs, what is less by elements.
    const int c = lane % kWarpChannels;
    if (c < channels) {
      T* const row = result + c * p.result_rows.plane_pitch;
      const T* const staged = stage + c * plan.stage_pitch + shift_of(c);
      const bool first = !overlaps || column == 0;
      const int begin = head_of(row);
      const int limit = overlaps ? min(count, plan.own * stride + begin) : count;
      const int end = begin + body_of<T>(limit - begin);
      if (lane < kWarpChannels) {
        if (end > begin) {
          device::store_bulk(row + begin, static_cast<uint32_t>(__cvta_generic_to_shared(staged + begin)),
                             (end - begin) * static_cast<int>(sizeof(T)));
        }
        if (first) {
          for (int e = 0; e < min(begin, limit); ++e) row[e] = staged[e];
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
