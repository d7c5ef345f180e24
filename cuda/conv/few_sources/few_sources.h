// Many channels out of few: what the host decides and the kernels of *.cuh read.
#pragma once

#include "../../device/fast_divide.h"
#include "../small_groups/small_groups.h"

namespace halo::cuda::conv::few_sources {

inline constexpr int kSources = 4, kMostResults = 64;  ///< channels
inline constexpr int kMostTaps = 12, kTapRows = 3;
inline constexpr int kReach = 60;        ///< columns between taps of a row
inline constexpr int kMostWeights = 32;  ///< of a result channel, of weight gradients
inline constexpr int kMakers = 11;       ///< warps of a block that make results and have them written
inline constexpr int kPositions = 40;    ///< of a warp at a time
inline constexpr int kRun = kMakers * kPositions;
inline constexpr int kRingBytes = 2048;  ///< of the results of a channel in shared memory
inline constexpr int kSets = 4;          ///< of source rows there: no run reads more
inline constexpr int kPositionBytes = kSources * 2;
/// Positions of a stage of weight gradients; the same of rows that are not whole pieces.
inline constexpr int kStep = 128;
constexpr int runs_step(std::size_t element_size) { return element_size == 2 ? 384 : 128; }

/// `results`: of forward or backward_input, or channels of y.
struct Plan {
  int64_t images = 0;  ///< batch * groups * depth
  int groups, depth, channels, results;
  int source_rows, source_width, result_rows, result_width;
  int64_t source_plane, result_plane;        ///< pitches of channels
  int64_t source_slice, result_slice;        ///< of depths
  int64_t source_elements, result_elements;  ///< of the whole tensors
  int64_t weight_group, weight_result, weight_source;
  int first_row, first_column;  ///< of the source, for the first result
  int lead;                     ///< columns from a whole piece of four to that
  int taps, tap_rows;
  int reach;                                              ///< columns from the first tap to the last
  int tap[kMostTaps], row[kMostTaps], column[kMostTaps];  ///< weight, and source position beside the first
  bool in_pieces;         ///< rows of both sides are whole pieces of four, as weight gradients want them
  bool whole;             ///< rows of the source are whole pieces of four, channels of results of eight
  int sets, set_results;  ///< blocks that divide the result channels, those of each
  int strip, strips;      ///< rows of a block, blocks of a column
  int part;               ///< source rows of a set in shared memory
  int pitch;              ///< positions of a source row in shared memory, 0 modulo 8: taps of two rows meet no bank
  FastDivide in_row;      ///< result columns
  FastDivide by_ring;     ///< source rows in shared memory
  FastDivide pieces;      ///< of four positions of a source row in shared memory
  FastDivide columns, rows, depths;  ///< of weight gradients: stages of a row, and rows
  int64_t steps = 0;                 ///< stages of a group
  int splits = 0;                    ///< blocks of a group
  double predicted_ms = 0;
};

}  // namespace halo::cuda::conv::few_sources
