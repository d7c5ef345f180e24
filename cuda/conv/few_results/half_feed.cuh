// Rows of half types on their way into shared memory, for half.cuh.
#pragma once

#include "../../device/async_copy.cuh"
#include "../../device/shared_words.cuh"
#include "../stage_ring.cuh"
#include "few_results.h"

namespace halo::cuda::conv::few_results {

inline constexpr int kHalfWarps = 12;  ///< that multiply
inline constexpr int kWarpTiles = 4;   ///< of 16 columns of the source
inline constexpr int kHalfColumns = kHalfWarps * kWarpTiles * 16;
inline constexpr int kFeeders = 128;  ///< threads that copy
inline constexpr int kHalfThreads = kHalfWarps * 32, kHalfBlock = kHalfThreads + kFeeders;
inline constexpr int kHalfChunk = 16;  ///< source channels of a stage
inline constexpr int kHalfStages = 6;
inline constexpr int kHalfPitch = kHalfColumns + 8;  ///< elements of a channel of a stage: no banks conflict
inline constexpr int kStageBytes = kHalfChunk * kHalfPitch * 2;

/// Orders `columns` columns of kHalfChunk channels, of which `channels` exist, in pieces of N elements. `from`: of the
/// first channel, column `begin`.
template <int N, class T>
__device__ __forceinline__ void feed_pieces(const Plan& plan, const T* from, int channels, int begin, int columns,
                                            uint32_t to) {
  constexpr int kBytes = N * int{sizeof(T)};
  for (int i = (static_cast<int>(threadIdx.x) - kHalfThreads) * N; i < columns; i += kFeeders * N) {
    const int left = begin + i < 0 ? 0 : plan.source_width - begin - i;  // columns that exist
    const int bytes = min(max(left, 0), N) * int{sizeof(T)};
    const T* source = from + i;
#pragma unroll
    for (int c = 0; c < kHalfChunk; ++c, source += plan.source_plane)
      device::copy_async<kBytes>(to + (c * kHalfPitch + i) * sizeof(T), source, c < channels ? bytes : 0);
  }
}

template <class T>
__device__ __forceinline__ void feed_stage(const Plan& plan, const T* from, int channels, int begin, int columns,
                                           uint32_t to) {
  if (plan.source_plane % 8 == 0 && reinterpret_cast<uintptr_t>(from) % device::kGranule == 0) {
    feed_pieces<8>(plan, from, channels, begin, columns, to);
  } else {
    feed_pieces<4>(plan, from, channels, begin, columns, to);
  }
}

/// Ragged rows of a block. Each lies in shared memory by as many elements behind a granule as it does in memory.
template <class T>
struct RaggedSource {
  const T* source;  ///< of the first channel, row 0, column `begin`
  int64_t plane;
  int channels, width;
  int begin, columns;  ///< that are read: `columns` from `begin` on

  /// Elements by which the row lies behind a granule, in each unit alike.
  __device__ __forceinline__ int lead(int row, int channel) const {
    const auto low = [](auto number) { return static_cast<uint32_t>(number); };
    return static_cast<int>(
        (low(reinterpret_cast<uintptr_t>(source) / sizeof(T)) + low(channel) * low(plane) + low(row) * low(width)) % 8);
  }
};

/// A thread that copies ragged rows: granules of one channel of each stage, eight threads a channel. The granule in
/// which the source's first column lies has other elements in front of it, which must be zeros: its elements are stored
/// one by one.
template <class T>
struct RaggedFeeder {
  static constexpr int kThreads = kFeeders / kHalfChunk;  ///< of a channel
  static constexpr int kStep = kThreads * 8;              ///< elements that they order at once

  const RaggedSource<T>& rows;
  int channel, element;
  uint32_t stages;  ///< of the channel

  __device__ RaggedFeeder(const RaggedSource<T>& rows, const unsigned char* shared, int thread)
      : rows(rows),
        channel(thread / kThreads),
        element(thread % kThreads),
        stages(device::shared_address(shared) + channel * kHalfPitch * int{sizeof(T)}) {}

  /// Orders row `row` of the channel of `unit`.
  __device__ __forceinline__ void order(int row, int unit, int stage) const {
    const int behind = rows.lead(row, channel), own = unit * kHalfChunk + channel;
    const T* const from = rows.source + own * rows.plane + int64_t{row} * rows.width;
    const T* granule = from - behind + element * 8;
    uint32_t to = stages + stage * kStageBytes + element * device::kGranule;
    const int existing = own < rows.channels ? rows.width - rows.begin + behind : 0;  // from the first granule on
    int at = 0;
    const auto step = [&] {
      at += kStep;
      granule += kStep;
      to += kStep * sizeof(T);
    };
    const auto part = [&] {  // granules that are not wanted, do not exist or do so in part
      const int mine = at + element * 8;
      if (mine < rows.columns + behind && (rows.begin >= 0 || rows.begin + mine != 0)) {
        const int left = rows.begin + mine < 0 ? 0 : existing - mine;
        device::copy_async<16>(to, granule, min(max(left, 0), 8) * int{sizeof(T)});
      }
      step();
    };
#pragma unroll 1
    while (at <= -rows.begin) part();
    // As far as all that is ordered at once exists, whatever the row's lead is.
    const int whole = min(rows.columns, rows.width - rows.begin) - kStep;
#pragma unroll 4
    for (; at <= whole; step()) device::copy_async<16>(to, granule, existing > 0 ? 16 : 0);
#pragma unroll 1
    while (at < rows.columns + 7) part();
  }

  /// The thread's element of the granule in which the row's first column lies.
  __device__ __forceinline__ uint32_t first_element(int row, int unit) const {
    const int own = unit * kHalfChunk + channel, column = element - rows.lead(row, channel);
    const bool exists = own < rows.channels && column >= 0 && column < rows.width;
    return exists ? rows.source[own * rows.plane + int64_t{row} * rows.width + column - rows.begin].bits : 0;
  }

  __device__ __forceinline__ void feed(int first, int last, int units, Ring ring) const {
    const uint32_t place = stages + (element - rows.begin) * int{sizeof(T)};  // of the first element
    const bool edge = rows.begin < 0 && rows.begin + rows.columns + 7 > 0;    // its granule is among what is read
    for (int row = first; row < last; ++row) {
      for (int unit = 0; unit < units; ++unit, ring.advance()) {
        const uint32_t bits = edge ? first_element(row, unit) : 0;  // on its way while the rest is ordered
        ring.wait_released();
        order(row, unit, ring.slot());
        device::copy_async_arrive(ring.copied());
        if (edge) device::store_shared_half(place + ring.slot() * kStageBytes, bits);
        device::barrier_arrive(ring.copied());
      }
    }
  }
};

}  // namespace halo::cuda::conv::few_results
