// Kernels of one tap at memory speed: what the host decides and pointwise_kernel.cuh reads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../device/fast_divide.h"

namespace halo::cuda::conv::pointwise {

inline constexpr int kChunk = 32;               ///< source channels of a stage
inline constexpr int kBoxBytes = kChunk * 128;  ///< 32 words of each
inline constexpr int kGroupThreads = 128;       ///< two such warpgroups multiply, a third one brings
inline constexpr int kThreads = 3 * kGroupThreads;
inline constexpr int kColumns = 64;               ///< result channels of a warpgroup
inline constexpr int kStepBytes = kColumns * 32;  ///< of weights that one product reads
inline constexpr int kResultBytes = 8 * kColumns * 128;
inline constexpr int kMostStages = 12;
/// Dynamic shared memory beside weights and stages: a warp's results each, barriers, and up to a multiple of 1024.
inline constexpr int kFixedBytes = kResultBytes + 2 * 8 * kMostStages + 1024;
inline constexpr int kStaticBytes = 2 * kColumns * 4;  ///< the bias

/// Planes as words of four bytes. A block's tile has 128 of them, with up to 64 result channels 256.
struct Plan {
  int words;  ///< of a plane
  int source_channels, result_channels;
  int chunks;         ///< of source channels
  int column_groups;  ///< of a block's result channels: 1 or 2
  int column_blocks;  ///< blocks side by side
  int stages;
  int weight_bytes;
  int64_t weight_source, weight_result;  ///< pitches
  FastDivide tiles;                      ///< of an image
  int64_t items;                         ///< tiles of all images
  bool smooth = false;                   ///< an activation other than max(y, slope * y)
  float slope = 1;
  int blocks = 0;
  std::size_t shared_bytes = 0;
  double predicted_ms = 0;

  int stage_bytes() const { return kBoxBytes * 8 / column_groups; }
};

}  // namespace halo::cuda::conv::pointwise
