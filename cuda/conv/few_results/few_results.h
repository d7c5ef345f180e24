// Few channels out of many: what the host decides and the kernels of *.cuh read.
#pragma once

#include "../small_groups/small_groups.h"

namespace halo::cuda::conv::few_results {

inline constexpr int kTaps = 3;     ///< of height, of width
inline constexpr int kResults = 3;  ///< channels, at most
inline constexpr int kReach = 60;   ///< columns between the first and the last tap of a row
inline constexpr int kRaggedReach = 50;

struct Plan {
  int64_t images;  ///< batch * groups * depth
  int groups, depth, channels, results;
  int source_rows, source_width, result_rows, result_width;
  int64_t source_plane, result_plane;  ///< pitches of channels
  int64_t source_slice, result_slice;  ///< of depths
  bool ragged;                         ///< rows begin at any address
  int64_t weight_group, weight_result, weight_source;
  int first_row, first_column;  ///< of the source, for the first result
  int apart;                    ///< columns from one tap to the next
  int tap[kTaps][kTaps];        ///< weight by row and column offset
  int strip, strips;            ///< result rows of a block, blocks of a column of them
  int width, chunks;            ///< result columns of a block, blocks of a row
  int units;                    ///< stages of a source row
  int warps;                    ///< half types: that have columns
  int columns, side;            ///< float32: of a thread, and neighbouring ones
  int64_t blocks = 0;
  double predicted_ms = 0;
};

template <class T>
using Arguments = small_groups::GatherArguments<T>;

/// Where a block works.
struct Place {
  int chunk, first_result, last_result, depth;
  int64_t image_group;

  __device__ Place(const Plan& plan, int64_t block) {
    chunk = static_cast<int>(block % plan.chunks);
    block /= plan.chunks;
    first_result = static_cast<int>(block % plan.strips) * plan.strip;
    block /= plan.strips;
    depth = static_cast<int>(block % plan.depth);
    image_group = block / plan.depth;
    last_result = min(first_result + plan.strip, plan.result_rows);
  }
};

}  // namespace halo::cuda::conv::few_results
