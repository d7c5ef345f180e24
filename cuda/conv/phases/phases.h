// Input gradients of strided convolutions with few channels a group, which are also transposed convolutions: what the
// host decides and kernel.cuh reads.
//
// As small_groups/small_groups.h has it, a result at position q * stride + phase is a sum over the taps of that phase,
// at source position q + offset(tap). A lane reads a window of neighbouring source positions once for all phases of the
// width.
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include <cstddef>
#include <cstdint>

#include "../../device/fast_divide.h"
#include "../small_groups/small_groups.h"

namespace halo::cuda::conv::phases {

inline constexpr int kMostPhases = 4;            ///< of an axis
inline constexpr int kMostUnits = 48;            ///< of the sum, over all phases of depth and height
inline constexpr int kMostRows = 2;              ///< phases of depth and height that a warp works on at once, at most
inline constexpr int kWide = 8;                  ///< neighbouring q of a lane
inline constexpr int kMiddle = 6;                ///< where fewer positions then lie beside a row
inline constexpr int kNarrow = 4;                ///< where rows have no more than 32
inline constexpr int kMostFragments = 448;       ///< of the weights
inline constexpr int kMostSources = kMostUnits;  ///< source rows in eight channels that an item reads
inline constexpr int kSourceFours = 24;          ///< of four positions in one of them, at most
inline constexpr int kShifts = 4;                ///< of a lane's positions in a window, at most
inline constexpr int kSourceChannels = 8;        ///< of a unit
inline constexpr int kTapBits = kShifts * kMostPhases;

/// A window of one source row in eight channels, and the taps that read it. Place of a tap, also among bits: shift in
/// the window times kMostPhases, plus phases of the width after its own.
struct Unit {
  int64_t offset;            ///< bytes from what an item reads first
  int depth, height, width;  ///< source position, counted from there
  uint32_t taps;             ///< bits; above kTapBits those of the round's phases that read it
  int shared;                ///< bytes from a warp's sources to the window
  int refill;                ///< its source, where no later unit of the item reads that, or -1
};

/// Weights of eight source channels by eight result channels, in the order of the sum.
struct Fragment {
  int16_t tap;     ///< flat
  int8_t channel;  ///< first source channel
  int8_t taken;    ///< of the source channels, fragments before have these first ones
};

/// What a warp holds of one source row in eight channels.
struct Source {
  int64_t offset;  ///< bytes from what an item reads first
  int depth, height, channel;
  int shared;  ///< bytes from a warp's sources
};

struct Plan : small_groups::GroupSizes {
  int channel_bytes;     ///< between source channels
  int64_t result_plane;  ///< elements
  int rounds;
  int unit_count, source_count;
  int shifts;        ///< of the windows: 2 or 4
  int column_tiles;  ///< 8 result channels each
  int fragments;
  FastDivide tiles[3];
  int lane_positions;  ///< kWide, kMiddle or kNarrow
  int positions;       ///< q of a warp: eight times as many
  int lead;            ///< positions by which the first tile of a row begins before it, so that windows are aligned
  bool aligned;        ///< four source positions are one access
  // A warp's sources, where they are aligned:
  int first_width;                ///< least of the units'
  int fours;                      ///< of a row
  int pitch, pair_pitch, second;  ///< bytes between rows: of t, on top of t / 2, of a lane's second channel
  int ahead;                      ///< units between the refill of a source and its next use, at least
  int sources_bytes;
  int warps;
  int items = 0;  ///< of a group
  int64_t blocks = 0;
  std::size_t shared_bytes = 0;
  double predicted_ms = 0;
  int first_unit[kMostPhases * kMostPhases + 1];  ///< of each round of phases of depth and height
  Unit units[kMostUnits];
  Source sources[kMostSources];
  Fragment fragment[kMostFragments];
};

/// Warps of a block, as many as registers allow. `aligned`: with sources in shared memory.
constexpr int most_warps(int lane_positions, int size, bool aligned) {
  if (size == 4) return lane_positions == kNarrow || (lane_positions == kMiddle && !aligned) ? 12 : 8;
  return lane_positions == kNarrow ? 16 : 12;
}

/// Phases of depth and height that a warp works on at once.
constexpr int rows_at_once(int width_phases) { return width_phases > 2 ? 1 : kMostRows; }

/// Bytes in which a warp turns its results into rows.
constexpr int stage_bytes(int lane_positions, int width_phases, int size) {
  return 2 * (4 * ((8 * lane_positions * width_phases * size + 127) / 128 * 128) + 128);
}

/// `blocks` is 0 where there is none.
Plan plan_phases(const ConvProblem& problem, const ConvConfig& config);

}  // namespace halo::cuda::conv::phases
