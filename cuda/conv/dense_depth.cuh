// The order of the dense engine's depth, shared by the kernel that gathers and the one that prepares weights.
#pragma once

#include "dense_params.h"

namespace halo::cuda::conv {

/// Which channel of a chunk and which window tap depth element `k` (0..7) of step `step` is.
struct DenseDepth {
  int channel, tap;
};

/// May lie beyond the last channel or tap: such elements have zero weights.
__device__ inline DenseDepth dense_depth(const DenseParams& p, const DensePhase& phase, int step, int k) {
  if (!p.folded) return {k, step};
  const int flat = step * 8 + k;
  if (p.chunk_channels == 4) return {flat % 4, flat / 4};
  const int taps = phase.window[0] * phase.window[1] * phase.window[2];
  return {flat / taps, flat % taps};
}

}  // namespace halo::cuda::conv
