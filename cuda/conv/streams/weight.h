// backward_weight of strided convolutions of few channels a group: what the host decides and weight_kernel reads.
#pragma once

#include "streams.h"

namespace halo::cuda::conv::streams {

inline constexpr int kMostDepthTaps = 3;  ///< backward_weight
/// Warps of a block, of which one or two fill the rings, as registers allow.
constexpr int weight_warps(int rows, int width_taps, bool half) {
  return half || (rows == 1 && width_taps <= 5) ? 16 : 12;
}
/// Bytes on both sides of the rings that lanes may read in vain; those in front are zeros.
inline constexpr int kWeightMargin = 128;
/// Words from one sum of all lanes to the next: other banks.
inline constexpr int kSumPitch = 33;

// Of weight_rows.cu.
inline constexpr int kRowSteps = 3;       ///< of the tensor cores, 8 positions (half types 16), of a row at a time
inline constexpr int kMostRowTaps = 5;    ///< of the height
inline constexpr int kRowMargin = 2;      ///< heights of zeros above and below y
inline constexpr int kRowWarpgroups = 3;  ///< that multiply, as registers allow
constexpr int row_positions(int element_size) { return kRowSteps * 32 / element_size; }

struct WeightPlan {
  Plan x;    ///< and all else
  int live;  ///< depths of y that a unit is multiplied with, at most
  int64_t y_elements;
  int y_pitch, y_slot_bytes, y_slots;  ///< bytes from one result to the next, of a unit
  bool y_whole;                        ///< four positions from a multiple of four on lie in whole vectors
  bool by_rows;                        ///< on warpgroups; y_pitch is from one height to the next, of split y
  bool x_whole;                        ///< the same of all that they read
  int width_taps;                      ///< 3, 5 or 7: those of the width, or more
  int rows;                            ///< taps of the height of a warp
  int splits;                          ///< warps that divide the positions
  int fillers;                         ///< warps that fill the rings: one for both, or one each
  FastDivide by_row;                   ///< runs of 16 positions
};

template <class T>
struct WeightArguments {
  const T* x;
  const T* y;
  double* partials;  ///< [sharers, weights]
};

template <class T>
void launch_weight_rows(const WeightPlan& plan, const WeightArguments<T>& arguments, cudaStream_t stream);

/// `x.blocks` is 0 where there is none.
WeightPlan plan_weight(const ConvProblem& problem, const ConvConfig& config);

}  // namespace halo::cuda::conv::streams
