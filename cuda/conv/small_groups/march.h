// Convolutions with few channels a group whose threads march over rows: what the host decides
// and the kernels of march_gather.cuh and march_weight.cuh read.
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include <cstdint>

#include "../../device/fast_divide.h"

namespace halo::cuda::conv::small_groups {

inline constexpr int kMarchThreads = 128;

inline constexpr int kMarchColumns = 2;  ///< of a thread, neighbours: more bytes on their way than of one
inline constexpr int kMarchSteps = 3;    ///< whose loads are on their way at once; a multiple of the rows of taps

inline constexpr int kFewSums = 36;

/// Channels and taps that a thread keeps the sums of. Weight gradients of more are made by several blocks.
struct MarchShape {
  int results, sources, height, width;
  double issued;  ///< share of its instruction slots that a multiprocessor uses, measured
  constexpr int sums() const { return results * sources * height * width; }
};
inline constexpr MarchShape kMarchShapes[] = {
    {2, 2, 3, 3, 0.57}, {2, 4, 3, 3, 0.63}, {2, 2, 3, 1, 0.5},
    {4, 4, 3, 1, 0.43}, {2, 2, 1, 3, 0.5},  {4, 4, 1, 3, 0.43},
};

template <int Shape>
inline constexpr int kMarchSums = kMarchShapes[Shape].sums();
/// Blocks of a multiprocessor that registers leave room for.
template <int Shape>
inline constexpr int kMarchBlocks = kMarchSums<Shape> > kFewSums ? 3 : 4;

/// One operand: extents and pitches in elements.
struct MarchSide {
  int extent[3];
  int channels;  ///< of a group
  int64_t plane;
};

/// A thread takes strips: `strip` rows of kMarchColumns columns.
struct MarchPlan {
  int shape = 0;             ///< of kMarchShapes
  MarchSide source, result;  ///< what windows are read from, and what has a window; of backward_weight: x and y
  int kernel[3], step[3], dilation_depth;
  int origin[3];                                       ///< source position of the first tap of the first result
  bool flipped;                                        ///< backward_input: the last tap is the first one
  int64_t weight_group, weight_result, weight_source;  ///< pitches of the weight
  int strip;
  // The order of strips: kMarchColumns columns of the result, strips below each other, depths, images; of blocks:
  // splits, tiles of taps along each axis, tiles of source and of result channels, groups. Forward and backward_input
  // have one tile of taps and of source channels.
  FastDivide columns, strips, depths, tap_tiles[3], source_tiles, result_tiles;
  int64_t items;  ///< strips, over the batch
  int groups;
  int splits;  ///< blocks that share one set of weights and divide the strips
  int64_t blocks = 0;
  double predicted_ms = 0;
};

/// `blocks` is 0 if there is none.
MarchPlan march_plan(const ConvProblem& problem, const ConvConfig& config);

}  // namespace halo::cuda::conv::small_groups
