// What the host and the kernels of the portable engine share: shapes of tiles and parameters.
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include "../../device/fast_divide.h"
#include "../plain_sum.cuh"
#include "../sizes.cuh"

namespace halo::cuda::conv {

inline constexpr int kPortableThreads = 128;
inline constexpr int kPortableDepth = 16;            ///< of one stage of forward and backward_input, in products
inline constexpr int kPortablePositions = 32;        ///< of one stage of backward_weight
inline constexpr int64_t kPortableMostTaps = 2048;   ///< their table lies in shared memory
inline constexpr int64_t kPortableExtent = 1 << 24;  ///< strides, paddings and reaches of kernels stay below

/// A tile of `rows() x columns()` results: four warps, each with 64 rows and `eights` times 8 columns.
struct PortableShape {
  int warps_m, warps_n, eights;
  double clocks, weight_clocks;  ///< of one k8 step of all blocks of an H200's multiprocessor, float32-accurate
  constexpr int rows() const { return warps_m * 64; }
  constexpr int columns() const { return warps_n * eights * 8; }
  /// Of forward and backward_input on a multiprocessor, by registers; backward_weight has kPortableWeightBlocks.
  constexpr int blocks() const { return rows() * eights > 512 ? 2 : 3; }
};
inline constexpr int kPortableWeightBlocks = 2;

inline constexpr PortableShape kPortableShapes[] = {{4, 1, 1, 850, 1140},  {4, 1, 2, 1100, 1350},
                                                    {4, 1, 4, 1100, 1800}, {2, 2, 3, 1340, 1240},
                                                    {2, 2, 4, 1640, 1420}, {1, 4, 4, 1340, 1580}};

/// One axis of one phase. Position q of the phase reads the source at q * in_step + shift + v * shift_step through its
/// tap v, and stands for the target's positions q * out_step + origin + j, j < group.
struct PortableAxis {
  int positions, in_step, out_step, origin, group;
  int taps, shift, shift_step;
};

/// Neighbouring positions of the target side by side as columns, where channels alone are too few for a tile: their
/// taps are those of the whole window, and a tap that a position does not have is a zero in its column. In
/// backward_input `group` is a multiple of the stride.
__host__ __device__ inline PortableAxis portable_grouped_axis(const Sizes& s, int axis, int group, bool forward) {
  const int stride = static_cast<int>(s.stride[axis]), dilation = static_cast<int>(s.dilation[axis]);
  const int padding = static_cast<int>(s.padding[axis]), reach = (static_cast<int>(s.kernel[axis]) - 1) * dilation;
  const int target = static_cast<int>(forward ? s.output[axis] : s.input[axis]);
  PortableAxis a{(target + group - 1) / group, forward ? group * stride : group / stride, group, 0, group, 0, 0, 1};
  if (forward) {
    a.shift = -padding;
    a.taps = (group - 1) * stride + reach + 1;
  } else {
    const int least = padding - reach;  // of what the stride divides
    a.shift = least >= 0 ? least / stride : -((stride - 1 - least) / stride);
    a.taps = (group - 1 + padding) / stride - a.shift + 1;
  }
  return a;
}

/// One position a row. Forward has one phase. Backward_input has one for each residue of the input's position modulo
/// the stride: it meets the taps k with (residue + padding - k * dilation) divisible by the stride, which are evenly
/// spaced, or none.
__host__ __device__ inline PortableAxis portable_axis(const Sizes& s, int axis, int residue, bool forward) {
  const int stride = static_cast<int>(s.stride[axis]), dilation = static_cast<int>(s.dilation[axis]);
  const int padding = static_cast<int>(s.padding[axis]), kernel = static_cast<int>(s.kernel[axis]);
  if (forward) return {static_cast<int>(s.output[axis]), stride, 1, 0, 1, kernel, -padding, dilation};
  const int input = static_cast<int>(s.input[axis]);
  PortableAxis a{};
  a.positions = input > residue ? (input - residue + stride - 1) / stride : 0;
  a.in_step = a.group = 1;
  a.out_step = stride;
  a.origin = residue;
  const auto meets = [&](int tap) { return (residue + padding - tap * dilation) % stride == 0; };
  int first = 0, step = 1;
  while (first < kernel && !meets(first)) ++first;
  if (first == kernel) return a;
  while (first + step < kernel && !meets(first + step)) ++step;
  a.taps = (kernel - first + step - 1) / step;
  a.shift = (residue + padding - first * dilation) / stride;
  a.shift_step = a.taps > 1 ? -(step * dilation) / stride : 0;
  return a;
}

/// The kernel's tap that tap v of the phase is for position j of a group, or -1.
__host__ __device__ inline int portable_kernel_tap(const Sizes& s, int axis, const PortableAxis& a, int j, int v,
                                                   bool forward) {
  const int64_t from = a.shift + int64_t{v} * a.shift_step, to = a.origin + j;
  const int64_t reach = (forward ? from - to * s.stride[axis] : to - from * s.stride[axis]) + s.padding[axis];
  const int64_t tap = reach / s.dilation[axis];
  return reach >= 0 && tap * s.dilation[axis] == reach && tap < s.kernel[axis] ? static_cast<int>(tap) : -1;
}

/// Forward and backward_input. `plain.source` is x or y, of which `channels` a group are summed over; `target` is the
/// other one, with `outputs` channels a group.
struct PortableParams {
  PlainSum plain;
  const float* prepared;  ///< weights: [phase][group][stage][column][16], see prepare_kernel
  const float* bias;      ///< null: none
  float* target;
  Activation activation;
  int phases[3];
  int group[3];  ///< neighbouring positions that are columns of one row; 1: none. Column (j, channel), channels fastest
  int source[3];                           ///< its extents
  int channels, outputs, columns, groups;  ///< columns: outputs times the positions of a group
  int stages;                              ///< of the phase with most taps
  int column_tiles;                        ///< of `tile_columns` each
  int tile_columns;
  int64_t source_plane, target_plane;
  int64_t source_step[3];  ///< bytes from one channel to the next three
};

/// The geometry of `axis` in a phase.
__host__ __device__ inline PortableAxis portable_axis_of(const PortableParams& p, int axis, int residue) {
  const Sizes& sizes = p.plain.sizes;
  return p.group[axis] > 1 ? portable_grouped_axis(sizes, axis, p.group[axis], p.plain.forward)
                           : portable_axis(sizes, axis, residue, p.plain.forward);
}

struct PortableWeightParams {
  Sizes sizes;
  const float* x;
  const float* y;
  double* partial;                ///< [weight][split]
  FastDivide by_plane, by_width;  ///< of outputs
  int groups, splits, row_tiles, column_tiles;
  int64_t stages;
  int source[3];                 ///< extents of x
  int64_t x_step[3], y_step[3];  ///< bytes from one channel to the next three
};

}  // namespace halo::cuda::conv
