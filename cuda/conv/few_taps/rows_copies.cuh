// What the host decides for rows_kernel.cuh, and what the copy engine brings and takes away.
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include <cstddef>
#include <cstdint>

#include "../../device/async_copy.cuh"
#include "../../device/fast_divide.h"
#include "../../device/store_box.cuh"
#include "../../device/wgmma.cuh"
#include "../small_groups/small_groups.h"

namespace halo::cuda::conv::few_taps_rows {

inline constexpr int kTaps = 3;             ///< of the width
inline constexpr int kSourceChannels = 32;  ///< at most
inline constexpr int kChunk = 16;           ///< source positions that a warp works on at once
inline constexpr int kMostWarps = 12;       ///< that multiply
inline constexpr int kLoaders = 4;          ///< warps that copy the source
inline constexpr int kStorers = 2;          ///< warps of a stage that give the copy engine its orders
inline constexpr int kStages = 2;           ///< items in shared memory
inline constexpr int kLine = 128;           ///< bytes; the copy engine writes whole ones,
inline constexpr int kBeside = 32;          ///< from as far behind 32 bytes, else it is a third slower
inline constexpr int kZeroBytes = 4 << 10;  ///< a copy of zeros
inline constexpr int kBarrierBytes = 128;

inline constexpr int kThreads = (kMostWarps + kLoaders + kStages * kStorers) * 32;
inline constexpr int kRegisters = 120, kLoaderRegisters = 40, kStorerRegisters = 80, kLaunchRegisters = 96;
static_assert(kMostWarps % 4 == 0 && kLoaders == 4 && kStages * kStorers == 4);  // warpgroups, which share registers
static_assert(kMostWarps * kRegisters + 4 * (kLoaderRegisters + kStorerRegisters) == kThreads / 32 * kLaunchRegisters);

/// Of eight result channels, of an item: as many bytes of half types as of float32.
constexpr int channel_tiles(std::size_t element_size) { return element_size == 2 ? 2 : 1; }

/// Neighbouring rows of an item, all with taps or all without.
struct Run {
  int first, rows;
  bool tapped;
  int stage;  ///< element of a channel's stage where there is room for it, for what precedes it in a line and follows
};

/// A row with taps.
struct TappedRow {
  int row;     ///< of the item
  int tap;     ///< element of the weights
  int source;  ///< row of the item's source
  int run;
};

/// An item: result rows from q * phases - rotation on to the next item's, of some channels of an image. It begins with
/// rows without taps and ends with one with taps, so that all rows with taps have zeros before and behind them.
struct Plan {
  small_groups::GroupProblem problem;
  int taps, tap[kTaps], shift[kTaps];  ///< source position p reaches result column p * stride + shift
  int least_shift, most_shift;
  int rotation, runs, tapped;
  Run run[small_groups::kMostPhases];
  TappedRow tapped_row[small_groups::kMostPhases];
  int source_first, source_rows;       ///< of an item, from row q on
  int stage_pitch, source_pitch;       ///< elements; of result and source channels
  bool aligned;                        ///< the source's rows are whole 16 bytes
  FastDivide heights, depths, images;  ///< items of a slice, slices of a plane, planes of a group of channels
  FastDivide depth_phases;
  int shares;  ///< warps that share a row
  int64_t items, blocks = 0;
  std::size_t shared_bytes = 0;
  double predicted_ms = 0;
};

template <class T>
inline constexpr int kLineElements = kLine / static_cast<int>(sizeof(T));

/// Where an item lies.
struct Place {
  int group, image, depth, q;
  int top;     ///< its first row
  int phase;   ///< of the depth
  int source;  ///< depth of the source; below 0 where there is none, so that all rows are zero

  __device__ __forceinline__ Place(const Plan& plan, int item) {
    const small_groups::GroupProblem& p = plan.problem;
    uint32_t at[4];
    const uint32_t slices = plan.heights.divide(static_cast<uint32_t>(item), at[0]);
    group = static_cast<int>(plan.images.divide(plan.depths.divide(slices, at[1]), at[2]));
    const auto q0 = static_cast<int>(plan.depth_phases.divide(at[1], at[3]));
    q = static_cast<int>(at[0]);
    depth = static_cast<int>(at[1]);
    image = static_cast<int>(at[2]);
    phase = static_cast<int>(at[3]);
    top = q * p.phases[1] - plan.rotation;
    source = p.taps[0].count[phase] == 0 ? -1 : q0 + p.origin[0] + p.taps[0].offset[phase][0];
    if (source >= p.source[0]) source = -1;
  }
};

/// Rows of an item's source: where they are in memory. In shared memory they are as far behind 16 bytes as there.
template <class T>
struct Source {
  const T* row;    ///< the first, of the first channel, or where it would be
  int first, end;  ///< of the item's rows: those that exist

  __device__ __forceinline__ Source(const Plan& plan, const T* data, const Place& place) {
    const small_groups::GroupProblem& p = plan.problem;
    const int h = place.q + plan.source_first;
    row = data + int64_t{place.image} * p.source_channels * p.source_rows.plane_pitch +
          place.source * p.source_rows.outer_pitch + int64_t{h} * p.source_rows.inner_pitch;
    first = max(0, -h);
    end = place.source < 0 ? 0 : min(plan.source_rows, p.source[1] - h);
  }
};
template <class T>
__device__ __forceinline__ int behind_16_bytes(const T* at) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(at) % 16 / sizeof(T));
}

/// The first boundary of `bytes` (a power of two) that is not before `at`, or the last that is not behind it.
template <class T>
__device__ __forceinline__ T* boundary(T* at, int bytes, bool before) {
  const auto address = reinterpret_cast<uintptr_t>(at) + (before ? 0 : static_cast<unsigned>(bytes) - 1);
  return reinterpret_cast<T*>(address & ~uintptr_t{static_cast<unsigned>(bytes) - 1});
}

/// The source in shared memory: places of rows for two items, of which one that follows another has all but the last.
template <class T>
struct SourceRing {
  T* data;
  int first = 0;  ///< place of an item's first row

  __device__ __forceinline__ T* row(const Plan& plan, int row) const {
    const int place = first + row < 2 * plan.source_rows ? first + row : first + row - 2 * plan.source_rows;
    return data + place * kSourceChannels * plan.source_pitch;
  }
  __device__ __forceinline__ SourceRing next(const Plan& plan, bool follows) const {
    const int place = first + (follows ? 1 : plan.source_rows);
    return {data, place < 2 * plan.source_rows ? place : place - 2 * plan.source_rows};
  }
};

/// Starts the copies of an item's source, by kLoaders warps: all 16 bytes that its rows touch, but nothing that is not
/// the tensor's. Channels that do not exist are zero from the beginning; rows that do not exist keep what they were.
/// `follows`: its other rows are there, as the item before had them.
template <class T>
__device__ __forceinline__ void load_source(const Plan& plan, const T* data, const Place& place,
                                            const SourceRing<T>& ring, bool follows, int warp) {
  constexpr int kWide = 16 / static_cast<int>(sizeof(T));
  const small_groups::GroupProblem& p = plan.problem;
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const Source<T> source(plan, data, place);
  const T* const end = data + p.source_rows.elements;
  for (int row = follows ? max(source.first, plan.source_rows - 1) : source.first; row < source.end; ++row) {
    for (int channel = warp; channel < p.source_channels; channel += kLoaders) {
      const T* const begin = source.row + channel * p.source_rows.plane_pitch + row * p.source_rows.inner_pitch;
      const int behind = behind_16_bytes(begin);
      T* const target = ring.row(plan, row) + channel * plan.source_pitch;
      for (int i = lane * kWide; i < behind + p.source[2]; i += 32 * kWide) {
        const T* const at = begin - behind + i;
        if (at >= data && at + kWide <= end) {
          device::copy_async<16>(static_cast<uint32_t>(__cvta_generic_to_shared(target + i)), at, 16);
        } else {  // the tensor's ends
          for (int e = max(i, behind); e < min(i + kWide, behind + p.source[2]); ++e) target[e] = begin[e - behind];
        }
      }
    }
  }
}

/// The stage of an item: where the rows of its channels are in shared and in global memory.
template <class T>
struct Stage {
  T* data;
  int pitch;
  T* result;  ///< row 0 of the item's first channel, or where it would be
  int64_t plane;
  int width;

  __device__ __forceinline__ T* global(int channel, int row) const {
    return result + channel * plane + int64_t{row} * width;
  }
  /// A row of `run`: as far behind kBeside bytes as in global memory.
  __device__ __forceinline__ T* shared(const Run& run, int channel, int row) const {
    const int room = channel * pitch + run.stage + kLineElements<T>;
    const uint32_t apart = beside() + static_cast<uint32_t>(channel) * static_cast<uint32_t>(plane) +
                           static_cast<uint32_t>(run.first * width) - static_cast<uint32_t>(room);
    return data + room + (apart & (kBeside / sizeof(T) - 1)) + (row - run.first) * width;
  }
  /// Elements of row 0 behind kBeside bytes: stages of the same hold rows at the same places.
  __device__ __forceinline__ uint32_t beside() const {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(result) / sizeof(T)) & (kBeside / sizeof(T) - 1);
  }
};

/// Sends a run of a channel: with taps, all lines that it touches; else the whole lines between.
template <class T>
__device__ __forceinline__ void store_run(const Plan& plan, const Stage<T>& stage, const Run& run, int channel,
                                          const Place& place, uint32_t zeros) {
  const int height = plan.problem.result[1], top = place.top;
  const int first = max(run.first, -top), last = min(run.first + run.rows, height - top);
  if (first >= last) return;
  T* const begin = stage.global(channel, first);
  T* const end = stage.global(channel, last);
  const bool opens = top + first == 0, closes = top + last == height;  // the slice: elements of others are next
  T* const from = opens ? boundary(begin, 16, false) : boundary(begin, kLine, run.tapped);
  T* const to = closes ? boundary(end, 16, true) : boundary(end, kLine, !run.tapped);
  const bool sums = place.source >= 0 && run.tapped;
  const T* const rows = sums ? stage.shared(run, channel, first) : nullptr;
  if (sums) {
    device::store_bulk(from, static_cast<uint32_t>(__cvta_generic_to_shared(rows + (from - begin))),
                       static_cast<int>((to - from) * sizeof(T)));
  } else {
    constexpr int kMost = kZeroBytes / static_cast<int>(sizeof(T));
    for (T* at = from; at < to; at += kMost)
      device::store_bulk(at, zeros, min(kZeroBytes, static_cast<int>((to - at) * sizeof(T))));
  }
  for (T* at = begin; opens && at < from; ++at) *at = sums ? rows[at - begin] : T{};
  for (T* at = to; closes && at < end; ++at) *at = sums ? rows[at - begin] : T{};
}

}  // namespace halo::cuda::conv::few_taps_rows
