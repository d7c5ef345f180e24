// Many channels out of few: what the host decides and the kernels of *.cuh read.
#pragma once

#include "../../device/fast_divide.h"
#include "../small_groups/small_groups.h"

namespace halo::cuda::conv::few_sources {

inline constexpr int kSources = 4, kMostResults = 64;  ///< channels
inline constexpr int kMostTaps = 12, kTapRows = 3;
inline constexpr int kReach = 60;        ///< columns between taps of a row
inline constexpr int kMostWeights = 32;  ///< of a result channel, of weight gradients and of float32
/// Of forward and backward_input: warps that make 16 results of each channel at a time, such runs in shared memory;
/// bytes of a channel there, with what is left of a line; parts of the source there.
constexpr int makers(std::size_t element_size) { return element_size == 2 ? 12 : 8; }
constexpr int runs_kept(std::size_t element_size) { return element_size == 2 ? 4 : 3; }
inline constexpr int kRingBytes = 1664, kParts = 8;
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
  bool whole;             ///< results of a block are whole 16-byte pieces
  int sets, set_results;  ///< blocks that divide the result channels, those of each
  int strip, strips;      ///< rows of a block, blocks of a column
  int words;              ///< of a source position in shared memory: its channels, of half types two
  int pitch;              ///< positions of a source row there
  int ring;               ///< all positions there, a power of two
  FastDivide in_row;      ///< result columns
  FastDivide by_pitch;
  FastDivide columns, rows, depths;  ///< of weight gradients: stages of a row, and rows
  int64_t steps = 0;                 ///< stages of a group
  int splits = 0;                    ///< blocks of a group
  double predicted_ms = 0;
};

}  // namespace halo::cuda::conv::few_sources
