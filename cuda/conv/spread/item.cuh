// Few channels out of many, unit stride (spread.cu): what the warps that multiply and those that add share.
#pragma once

#include "../../device/shared_words.cuh"
#include "spread.h"

namespace halo::cuda::conv {

/// A work item: some lines of some planes of targets, and the source that reaches them. Positions of sums are counted
/// from what the first source position reaches with its first tap.
struct SpreadItem {
  int n;
  int first_plane, end_plane, first_line, lines;  ///< sums
  int source_line, source_lines;                  ///< first, and how many
  int tiles;                                      ///< of a source plane

  __host__ __device__ SpreadItem(const SpreadParams& p, int index) {
    const int h = index % static_cast<int>(p.lines_of.divisor), rest = index / static_cast<int>(p.lines_of.divisor);
    const int d = rest % static_cast<int>(p.planes_of.divisor);
    n = rest / static_cast<int>(p.planes_of.divisor);
    const auto least = [](int a, int b) { return a < b ? a : b; };
    first_plane = d * p.tile_planes - p.shift[0];
    end_plane = first_plane + least(p.tile_planes, p.target_extent[0] - d * p.tile_planes);
    first_line = h * p.tile_lines - p.shift[1];
    lines = least(p.tile_lines, p.target_extent[1] - h * p.tile_lines);
    source_line = first_line < p.reach[1] ? 0 : first_line - p.reach[1];
    source_lines = least(p.source_extent[1], first_line + lines) - source_line;
    if (source_lines < 0) source_lines = 0;
    const int step = kSpreadRows - p.reach[2];
    tiles = (source_lines * p.line + step - 1) / step;
  }
  /// Planes of the source.
  __host__ __device__ int first_source(const SpreadParams& p) const {
    return first_plane < p.reach[0] ? 0 : first_plane - p.reach[0];
  }
  __host__ __device__ int end_source(const SpreadParams& p) const {
    return end_plane < p.source_extent[0] ? end_plane : p.source_extent[0];
  }
};

/// Where row `row` of a tile lies in a source plane, or -1: rows before the first line, between lines and after the
/// last are zero.
__host__ __device__ inline int spread_row(const SpreadParams& p, const SpreadItem& item, int tile, int row) {
  const int flat = tile * (kSpreadRows - p.reach[2]) - p.reach[2] + row;
  if (flat < 0) return -1;
  uint32_t w;
  const auto line = static_cast<int>(p.by_line.divide(static_cast<uint32_t>(flat), w));
  if (line >= item.source_lines || static_cast<int>(w) >= p.source_extent[2]) return -1;
  return (item.source_line + line) * p.source_extent[2] + static_cast<int>(w);
}

template <int Columns, int Products>
struct SpreadTraits {
  static constexpr int kColumns = Columns;
  static constexpr bool kAccurate = Products == 3;
  static constexpr int kStepFloats = Columns * 8 * (kAccurate ? 2 : 1);  // high and low parts, or one
  static constexpr int kResultFloats = Columns * kSpreadPitch;
  static constexpr int kMultipliers = 256;  // threads; the others add up
  static constexpr int kMultiplierRegisters = 208, kAdderRegisters = 88;
  static constexpr int kLaunchRegisters = 65536 / kSpreadThreads / 8 * 8;
  static_assert(kMultipliers * kMultiplierRegisters + (kSpreadThreads - kMultipliers) * kAdderRegisters <=
                kSpreadThreads * kLaunchRegisters);
};

/// Shared memory: bytes from its start.
template <class Traits>
struct SpreadShared {
  uint32_t weights, results, barriers, sums;
  __device__ explicit SpreadShared(uint32_t base)
      : weights(base),
        results(weights + kSpreadSteps * Traits::kStepFloats * 4),
        barriers(results + 2 * Traits::kResultFloats * 4),
        sums(barriers + 64) {}
  __device__ uint32_t full(int buffer) const { return barriers + static_cast<uint32_t>(buffer) * 16; }
  __device__ uint32_t empty(int buffer) const { return full(buffer) + 8; }
  __device__ uint32_t result(int buffer) const {
    return results + static_cast<uint32_t>(buffer * Traits::kResultFloats) * 4;
  }
};

/// Place of the weight that links source channel `channel` with column `column`, or -1.
__host__ __device__ inline int64_t spread_weight(const SpreadParams& p, int channel_tile, int channel, int column) {
  const int own = column / p.taps, tap = column - own * p.taps, target = channel_tile * p.tile_channels + own;
  if (own >= p.tile_channels || target >= p.target_channels || channel >= p.channels) return -1;
  return p.forward ? (int64_t{target} * p.channels + channel) * p.taps + p.taps - 1 - tap
                   : (int64_t{channel} * p.target_channels + target) * p.taps + tap;
}

}  // namespace halo::cuda::conv
