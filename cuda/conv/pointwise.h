// Kernels of one tap at memory speed: what the host decides and pointwise_kernel.cuh reads.
#pragma once

#include <halo/core/host_device.h>

#include <cstddef>
#include <cstdint>

#include "../device/fast_divide.h"

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

}  // namespace halo::cuda::conv::pointwise
