// What the dense engine's kernels are told. Plain data, filled by plan.cpp.
//
// The engine computes one gather: with `source` the activation that is read and `target` the one that is written,
//   target[n, co, U q + j0 + j] = sum over window taps t and source channels ci of
//                                 source[n, ci, S q + off_min + t * tap_step] * weight(j, co, ci, t)
// on each axis, 0 <= j < J. The GEMM's rows are q, its columns (co, j), its depth (ci, t). Source is x in forward, g in
// backward_input.
//   forward         U = J, S = J * stride. J > 1 puts neighbouring outputs side by side as columns: few channels fill
//                   the tensor core that way, for a window of kernel + J - 1 taps.
//   backward_input  U = J, S = J / stride, J a multiple of the stride: its phases are columns. Or U = stride, S = 1,
//                   J = 1: each phase j0 is a set of work items with its own taps.
#pragma once

#include <halo/cuda/device/fast_divide.h>
#include <halo/ops/activation.h>

#include <cstdint>

namespace halo::cuda::conv {

inline constexpr int kDenseMaxPhases = 16;
inline constexpr int kStepsPerStage = 4;  ///< k8 steps whose weights travel together

inline constexpr int kLongSteps = 72;  ///< k8 steps from which partial sums are promoted half as often

inline constexpr int kWindowTaps = 3;  ///< taps along width that threads slide along, if they do

/// Rows of a warp that the epilogue stores together, and words of the buffer in which it turns them.
constexpr int dense_store_rows(int row_tiles) { return row_tiles < 2 ? 16 : 32; }
constexpr int dense_turn_words(int row_tiles) { return 8 * (dense_store_rows(row_tiles) + 4); }

/// Words from column to column of the results handed to storing warps: 4 mod 32, so that neither side has bank
/// conflicts.
constexpr int dense_result_pitch(int rows) { return rows + 4; }

/// Whether a compiled shape has a kernel with windows: where its threads have registers for them.
constexpr bool dense_may_slide(bool accurate, bool storers, int columns) {
  return !accurate && storers && columns >= 128;
}

/// Whether two blocks of a compiled shape may share weights: where results take the room that weights would need.
constexpr bool dense_may_pair(bool storers, int columns) { return storers && columns >= 128; }

/// Whether tiles of a compiled shape may be flat: a thread then keeps the place of each of its rows, and must have
/// registers for that beside two sets of accumulators.
constexpr bool dense_may_be_flat(bool accurate, bool storers, int columns, int row_tiles) {
  return accurate && (storers || (columns < 64 ? row_tiles == 2 : columns <= 96 && row_tiles == 1));
}

/// Whether the loads of fragments run two units ahead of their products instead of one: more registers again.
constexpr bool dense_loads_early(bool accurate, bool storers, int columns, int row_tiles) {
  return dense_may_be_flat(accurate, storers, columns, row_tiles) && (storers || columns <= 64);
}

/// An offset or address that makes any sum with it negative: nothing is stored there.
inline constexpr int64_t kDenseNowhere = -(int64_t{1} << 62);

/// A GEMM column: where its outputs go.
struct DenseColumn {
  int64_t offset;  ///< bytes from the row's first output, or kDenseNowhere
  uint32_t j;      ///< its place in the group: jd | jh << 10 | jw << 20
  float bias;
};

/// A subset of outputs with its own taps (a phase of a strided backward_input); otherwise there is one.
struct DensePhase {
  int off_min[3];
  int window[3];
  int j0[3];
  int steps;              ///< k8 steps a channel chunk
  int table;              ///< first step in the offset table
  int64_t weight_offset;  ///< floats
};

/// How to find the tap of (column phase j, window tap t) along one axis.
struct DenseAxisMap {
  int stride, dilation, padding, kernel, tap_step;
  int group;  ///< J
};

struct DenseParams {
  const void* source;
  const float* weights;
  const void* bias;  ///< or null
  void* target;
  int64_t source_numel;
  int64_t source_plane, target_plane;  ///< positions a channel
  int64_t target_numel;                ///< distance between the partial results of two splits
  Activation activation;
  float negative_slope;  ///< of (leaky) relu, at most 1; 1 for none and for smooth activations
  bool smooth;           ///< the activation is applied in a second look at the results
  bool finish;  ///< the second look may happen here; off where the partial sums of splits are still to be added

  DenseAxisMap map[3];
  int source_extent[3], target_extent[3];
  int out_step[3], in_step[3], tap_step[3];  ///< U; S and the distance of window taps, both in fill_steps
  int channels;                              ///< source channels a group
  int target_channels;                       ///< a group
  uint32_t last_j;                           ///< the last place of a group
  int span_log2;       ///< 2^span_log2 neighbouring columns are neighbouring positions along width
  int row_words;       ///< as many neighbouring rows write one aligned piece or nothing: 4, 2 or 1
  int chunk_channels;  ///< source channels whose halos are in shared memory together
  bool
      folded;  ///< a k8 step mixes taps: depth is flat over a chunk's (channel, tap), or (tap, channel) with 4 channels

  int tile[3];       ///< rows of one work item: depth x height x width, width a multiple of 8
  bool flat;         ///< a tile's width counts positions of whole lines one after the other, and its height is 1
  int halo_height;   ///< rows of one channel's halo a depth slice
  int halo_pitch;    ///< words a halo row
  bool boxed;        ///< the copy engine brings a chunk's halos as one box
  int fill_words;    ///< words of a halo row that one copy brings: 4, 2 or 1, or 8 of half types; source rows agree
                     ///< modulo these
  int fill_step[3];  ///< only every fill_step-th source position of an axis is ever read, so only those are brought
  int halo_words;    ///< words a channel that copying warps fill
  int plane_pitch;   ///< words from channel to channel
  int plane_skew;    ///< extra words for channels 2, 3, 6, 7 of a chunk
  int halo_stage_words;
  int halo_stages, weight_stages;
  int table_steps;  ///< steps of all phases
  bool long_sums;   ///< promote every second stage: such sums have room for the error (kernel.cuh)
  bool resident;    ///< all weights stay in shared memory

  int chunks, chunks_per_split;
  int work_items;  ///< of a block, or of a pair of blocks
  int pair;  ///< 1: two blocks of a cluster take neighbouring tiles and share the weights' way from memory; else 0
  uint32_t tile_count;  ///< tiles of rows, images and groups included
  FastDivide column_tiles, phases, splits, tiles_w, tiles_h, tiles_d, groups;
  FastDivide by_halo_pitch, by_halo_height;
  FastDivide by_slice, by_line;  ///< rows of a tile's slice of depth; positions of its line
  DensePhase phase[kDenseMaxPhases];
};

}  // namespace halo::cuda::conv
