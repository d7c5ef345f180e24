// What all threads of a kernel of one tap share: the plan, its arguments, shared memory, the order of tiles, and the
// weights.
#pragma once

#include <halo/core/host_device.h>

#include <cstddef>
#include <cstdint>

#include "../../device/async_copy.cuh"
#include "../../device/fast_divide.h"
#include "../../device/mbarrier.cuh"
#include "../../device/number.cuh"
#include "../../device/shared_words.cuh"
#include "../../device/tf32_split.cuh"
#include "../../device/wgmma.cuh"
#include "../plain_sum.cuh"
#include "../small_groups/small_groups.h"
#include <cuda.h>

namespace halo::cuda::conv::pointwise {

inline constexpr int kChunk = 32;               ///< source channels of a stage
inline constexpr int kBoxBytes = kChunk * 128;  ///< 32 words of each
inline constexpr int kGroupThreads = 128;       ///< two such warpgroups multiply, a third one brings (and stores)
inline constexpr int kThreads = 3 * kGroupThreads;
inline constexpr int kColumns = 64;               ///< result channels of a warpgroup
inline constexpr int kStepBytes = kColumns * 32;  ///< of weights that one product reads
inline constexpr int kResultBytes = 8 * kColumns * 128;
inline constexpr int kLine = 128;  ///< bytes of results that are written together where planes begin anywhere
inline constexpr int kMostStages = 12;
/// Dynamic shared memory beside weights, results and stages: barriers, and up to a multiple of 1024.
inline constexpr int kFixedBytes = 2 * 8 * (kMostStages + 1) + 1024;
inline constexpr int kStaticBytes = 2 * kColumns * 4;        ///< the bias
inline constexpr int kLinesBytes = (2 * kColumns + 4) * 16;  ///< ragged: where results go

/// Planes as words of four bytes. A block's tile has 128 of them, with up to 64 result channels 256.
struct Plan {
  int words;  ///< of a plane, the last one perhaps in part
  int source_channels, result_channels;
  int chunks;         ///< of source channels
  int column_groups;  ///< of a block's result channels: 1 or 2
  int column_blocks;  ///< blocks side by side
  int stages;
  int weight_bytes;
  int64_t weight_source, weight_result;  ///< pitches
  FastDivide tiles;                      ///< items of an image
  int64_t items;                         ///< of all images: a tile each, or a run of them (ragged)
  bool smooth = false;                   ///< an activation other than max(y, slope * y)
  float slope = 1;
  int blocks = 0;
  std::size_t shared_bytes = 0;
  double predicted_ms = 0;

  // Planes that begin anywhere, of any length (`ragged`): an item is a run of neighbouring tiles. Rows of shared memory
  // lie as in memory modulo 16 bytes.
  bool ragged = false;
  bool same_leads = false;  ///< planes are whole granules, so that channels begin at the same place of one
  int plane = 0;            ///< elements
  int shift = 0;            ///< elements by which tiles begin before the plane, so that the source's are at granules
  int plane_tiles = 0;      ///< of an image
  int run = 1;              ///< tiles of an item
  int source_pitch = 0;     ///< bytes, of a stage's channels
  int result_pitch = 0;     ///< of result channels: a tile behind what of the one before is not written yet

  /// Of 32 words each, of a tile.
  HALO_HOST_DEVICE int boxes() const { return 8 / column_groups; }
  int stage_bytes() const { return ragged ? kChunk * source_pitch : boxes() * kBoxBytes; }
  int result_bytes() const { return ragged ? column_groups * kColumns * result_pitch + kLinesBytes : kResultBytes; }
};

using device::barrier_wait;

template <class T>
struct Arguments {
  small_groups::GatherArguments<T> tensors;
  PlainSumOf<T> plain;
  CUtensorMap source, result;  ///< words x channels x images, unless Ragged
};

/// Shared memory, by address.
template <bool Ragged>
struct Layout {
  uint32_t stage_bytes, weights, results, stages, full, empty, staged, stored, lines;
  __device__ Layout(const Plan& plan, const void* memory)
      : stage_bytes(Ragged ? kChunk * plan.source_pitch : plan.boxes() * kBoxBytes),
        weights((device::shared_address(memory) + 1023) / 1024 * 1024),
        results(weights + plan.weight_bytes),
        stages(results + (Ragged ? plan.column_groups * kColumns * plan.result_pitch : kResultBytes)),
        full(stages + plan.stages * stage_bytes),
        empty(full + kMostStages * 8),
        staged(empty + kMostStages * 8),
        stored(staged + 8),
        lines(stored + 8) {}
};

/// A block's tiles in order: `for (Walk at; at.find(plan); at.next())`. Ragged: a run of neighbours an item, of which
/// `begins` and `ends` are the first and the last.
template <bool Ragged>
struct Walk {
  int64_t item = blockIdx.x;
  int image = 0, tile = 0, step = 0;
  bool begins = true, ends = true;

  __device__ __forceinline__ bool find(const Plan& plan) {
    if (item >= plan.items) return false;
    uint32_t at;
    image = static_cast<int>(plan.tiles.divide(static_cast<uint32_t>(item), at));
    tile = static_cast<int>(at);
    if constexpr (Ragged) {
      tile = tile * plan.run + step;
      begins = step == 0;
      ends = step + 1 == plan.run || tile + 1 == plan.plane_tiles;
    }
    return true;
  }
  __device__ __forceinline__ void next() {
    if (Ragged && !ends) {
      ++step;
    } else {
      step = 0;
      item += gridDim.x;
    }
  }
};

/// A place in the ring of stages and the parity of its round.
struct Cursor {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

template <class T>
__device__ __forceinline__ T* shared_element(uint32_t address) {
  return static_cast<T*>(__cvta_shared_to_generic(address));
}
/// Which of eight source or result channels is the e-th of lanes with lane % 4 = c. Ragged float32: four lanes'
/// channels are neighbours, so that words of planes of an odd length are in different banks.
template <class T, bool Ragged>
__device__ constexpr int channel_of_lane(int c, int e) {
  return Ragged && sizeof(T) == 4 ? c + 4 * e : 2 * c + e;
}
/// The result channel of a column of the block.
template <class T, bool Ragged>
__device__ constexpr int channel_of_column(int column) {
  return column / 8 * 8 + channel_of_lane<T, Ragged>(column % 8 / 2, column % 2);
}

/// What a lane multiplies of a chunk, in steps of 32 bytes of weights a column: 8 channels of float32, 16 of half
/// types.
template <class T, bool Split>
struct Fragments {
  static constexpr bool kHalf = sizeof(T) == 2;
  static constexpr int kTiles = kHalf ? 4 : 2;  ///< 64 rows each
  static constexpr int kSteps = kHalf ? 2 : 4;
  uint32_t high[kSteps][kTiles][4], low[Split ? kSteps : 1][kTiles][4];

  /// `raw`: 16 bytes of channels 8 s + 2 c + {0, 1}.
  __device__ __forceinline__ void set(int step, const uint32_t (&raw)[4][2][4]) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kHalf) {
          const auto& pair = raw[2 * step + i / 2];
          high[step][m][i] = __byte_perm(pair[0][m], pair[1][m], i % 2 == 0 ? 0x5410 : 0x7632);
        } else {
          const float x = __uint_as_float(raw[step][i / 2][2 * m + i % 2]);
          if constexpr (Split) {
            const device::Tf32Pair two = device::split_tf32_unguarded(x);
            high[step][m][i] = two.high;
            low[step][m][i] = two.low;
          } else {
            high[step][m][i] = device::round_tf32_by_cut(x);
          }
        }
      }
    }
  }
};

/// A lane's results of one channel, in fours of words.
template <class T, bool Split>
__device__ __forceinline__ void words_of(uint32_t (&word)[4], const float (&sum)[Fragments<T, Split>::kTiles][32],
                                         int j, int e) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if constexpr (sizeof(T) == 2) {
      const float two[2] = {sum[k][4 * j + e], sum[k][4 * j + 2 + e]};
      word[k] = device::pack_word<T>(two);
    } else {
      word[k] = __float_as_uint(sum[k / 2][4 * j + k % 2 * 2 + e]);
    }
  }
}

/// The block's weights in shared memory, as the tensor core reads them: parts, column groups, steps. A warp lays out a
/// step at a time, all its loads under way together.
template <class T, bool Split, bool Ragged>
__device__ void prepare(const Plan& plan, const small_groups::GatherArguments<T>& tensors, uint32_t to, int first) {
  constexpr int kPer = 4 / sizeof(T), kEach = kColumns * 8 / 32;  // channels of a word, words of a lane
  const int lane = static_cast<int>(threadIdx.x % 32), k = lane % 8;
  const int steps = plan.chunks * Fragments<T, Split>::kSteps, all = plan.column_groups * steps;
  for (int i = static_cast<int>(threadIdx.x / 32); i < all; i += kThreads / 32) {
    const int group = first + i / steps * kColumns;
    const int channel = i % steps * (8 * kPer) + (kPer == 2 ? k * 2 : channel_of_lane<T, Ragged>(k % 4, k / 4));
    T value[kEach][kPer];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int column = group + channel_of_column<T, Ragged>(lane / 8 + 4 * j);
#pragma unroll
      for (int h = 0; h < kPer; ++h) {
        const bool exists = column < plan.result_channels && channel + h < plan.source_channels;
        const int64_t at = int64_t{column} * plan.weight_result + (channel + h) * plan.weight_source;
        value[j][h] = tensors.weight[exists ? at : 0];
        if (!exists) value[j][h] = T{};
      }
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const uint32_t at = to + i * kStepBytes + device::core_matrix_word(lane / 8 + 4 * j, k) * 4;
      if constexpr (kPer == 2) {
        device::store_shared(at, value[j][0].bits | uint32_t{value[j][1].bits} << 16);
      } else if constexpr (Split) {
        const device::Tf32Pair two = device::split_tf32_unguarded(value[j][0]);
        device::store_shared(at, two.high);
        device::store_shared(at + all * kStepBytes, two.low);
      } else {
        device::store_shared(at, device::round_tf32(value[j][0]));
      }
    }
  }
}

}  // namespace halo::cuda::conv::pointwise
