// Input gradients of strided convolutions with few channels a group, which are also transposed convolutions: what the
// host decides and phases_kernel.cuh reads.
//
// As small_groups.h has it, a result at position q * stride + phase is a sum over the taps of that phase, at source
// position q + offset(tap). A lane loads a window of neighbouring source positions once for all phases of the width.
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include <cstddef>
#include <cstdint>

#include "../device/fast_divide.h"
#include "small_groups.h"

namespace halo::cuda::conv::phases {

inline constexpr int kMostPhases = 4;      ///< of an axis
inline constexpr int kMostUnits = 48;      ///< of the sum, over all phases of depth and height
inline constexpr int kRows = 2;            ///< phases of depth and height that a warp works on at once
inline constexpr int kPositions = 32;      ///< q of a warp, four neighbours a lane
inline constexpr int kShifts = 4;          ///< of four positions in a window, at most
inline constexpr int kSourceChannels = 8;  ///< of a unit
inline constexpr int kTapBits = kShifts * kMostPhases;

/// A window of one source row in eight channels, and the taps that read it. Place of a tap, also among bits: shift in
/// the window times kMostPhases, plus phases of the width after its own.
struct Unit {
  int64_t offset;            ///< bytes from what an item reads first
  int depth, height, width;  ///< source position, counted from there
  uint32_t taps;             ///< bits; above kTapBits those of the round's phases that read it
  int words;                 ///< positions of the window that taps read
  int taken;                 ///< of its channels, units before have these first ones
  int channel;               ///< its first
  int fragment;              ///< its first weights
  int window;                ///< row of Plan::width_taps
  int outer_tap[kRows];      ///< flat taps of depth and height there
};

struct Plan {
  int64_t batch;
  int groups, source_channels, result_channels;  ///< of a group
  int source[3], result[3], phases[3], origin[3];
  int64_t weight_group, weight_result, weight_source;  ///< pitches of the weight; taps are contiguous
  int channel_bytes;                                   ///< between source channels
  int64_t result_plane;                                ///< elements
  int rounds;
  int unit_count;
  int shifts;        ///< of the windows: 2 or 4
  int column_tiles;  ///< 8 result channels each
  int fragments;     ///< weights of 8 x 8 channels
  FastDivide columns, tiles[3];
  int lead;      ///< positions by which the first tile of a row begins before it, so that windows are aligned
  bool aligned;  ///< four source positions are one access
  int warps;
  int items = 0;  ///< of a group
  int64_t blocks = 0;
  std::size_t shared_bytes = 0;
  double predicted_ms = 0;
  int first_unit[kMostPhases * kMostPhases / kRows + 1];  ///< of each round of phases of depth and height
  int8_t width_taps[small_groups::kMostAxisTaps][kTapBits];
  Unit units[kMostUnits];
};

/// Warps of a block, as many as registers allow.
constexpr int most_warps(int width_phases, int size) { return size == 4 && width_phases > 2 ? 12 : 16; }

/// Bytes in which a warp turns its results into rows.
constexpr int stage_bytes(int width_phases, int size) {
  return 2 * (4 * ((kPositions * width_phases * size + 127) / 128 * 128) + 128);
}

/// `blocks` is 0 where there is none.
Plan plan_phases(const ConvProblem& problem, const ConvConfig& config);

}  // namespace halo::cuda::conv::phases
