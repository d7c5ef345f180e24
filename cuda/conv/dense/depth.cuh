// What the dense engine's depth and columns stand for, shared by the kernel that gathers and the one that prepares.
#pragma once

#include "params.h"

namespace halo::cuda::conv {

/// Which channel of a chunk and which window tap depth element `k` (0..7) of step `step` is.
struct DenseDepth {
  int channel, tap;
};

/// May lie beyond the last channel or tap: such elements have zero weights.
__host__ __device__ inline DenseDepth dense_depth(const DenseParams& p, const DensePhase& phase, int step, int k) {
  if (!p.folded) return {k, step};
  const int flat = step * 8 + k;
  if (p.chunk_channels == 4) return {flat % 4, flat / 4};
  const int taps = phase.window[0] * phase.window[1] * phase.window[2];
  return {flat / taps, flat % taps};
}

/// The kernel's tap along one axis that links output `j` of a group with source offset `offset`, or -1.
__host__ __device__ inline int dense_tap_at(const DenseAxisMap& m, bool forward, int j, int offset) {
  const int distance = forward ? offset + m.padding - m.stride * j : j + m.padding - m.stride * offset;
  if (distance < 0 || distance % m.dilation != 0) return -1;
  const int tap = distance / m.dilation;
  return tap < m.kernel ? tap : -1;
}

/// Flat kernel tap that group position `j` has at (step, k), or -1.
__host__ __device__ inline int dense_kernel_tap(const DenseParams& p, bool forward, const DensePhase& phase, int step,
                                                int k, int j) {
  const int tap = dense_depth(p, phase, step, k).tap;
  if (step >= phase.steps || tap >= phase.window[0] * phase.window[1] * phase.window[2]) return -1;
  const int at[3] = {tap / (phase.window[1] * phase.window[2]), tap / phase.window[2] % phase.window[1],
                     tap % phase.window[2]};
  const int own[3] = {j / (p.map[1].group * p.map[2].group), j / p.map[2].group % p.map[1].group, j % p.map[2].group};
  int flat = 0;
  for (int axis = 0; axis < 3; ++axis) {
    const int offset = phase.off_min[axis] + at[axis] * p.map[axis].tap_step;
    const int one = dense_tap_at(p.map[axis], forward, phase.j0[axis] + own[axis], offset);
    if (one < 0) return -1;
    flat = flat * p.map[axis].kernel + one;
  }
  return flat;
}

/// A column's target channel (of its group) and flat place among the J grouped positions.
struct DensePlace {
  int channel, j;
};

__host__ __device__ inline DensePlace dense_place(const DenseParams& p, int column) {
  const int group = p.map[0].group * p.map[1].group * p.map[2].group;
  return {column / group, column % group};
}

/// Where the column's outputs, of `element` bytes each, go; without the bias.
__host__ __device__ inline DenseColumn dense_column(const DenseParams& p, const DensePlace& own,
                                                    int64_t element = sizeof(float)) {
  if (own.channel >= p.target_channels) return {kDenseNowhere, 0, 0};
  const int w = own.j % p.map[2].group, h = own.j / p.map[2].group % p.map[1].group;
  const int d = own.j / (p.map[1].group * p.map[2].group);
  const int64_t within = (int64_t{d} * p.target_extent[1] + h) * p.target_extent[2] + w;
  return {(own.channel * p.target_plane + within) * element,
          static_cast<uint32_t>(d) << 20 | static_cast<uint32_t>(h) << 10 | static_cast<uint32_t>(w), 0};
}

}  // namespace halo::cuda::conv
