// What the host and the kernels of the portable engine share: shapes of tiles, parameters, and the launchers.
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include "../device/fast_divide.h"
#include "plain_sum.cuh"
#include "sizes.cuh"

namespace halo::cuda::conv {

inline constexpr int kPortableThreads = 128;
inline constexpr int kPortableDepth = 16;            ///< of one stage of forward and backward_input, in products
inline constexpr int kPortablePositions = 32;        ///< of one stage of backward_weight
inline constexpr int64_t kPortableMostTaps = 2048;   ///< their table lies in shared memory
inline constexpr int64_t kPortableExtent = 1 << 24;  ///< strides, paddings and reaches of kernels stay below

/// A tile of `rows() x columns()` results: four warps, each with 64 rows and `eights` times 8 columns.
struct PortableShape {
  int warps_m, warps_n, eights;
  constexpr int rows() const { return warps_m * 64; }
  constexpr int columns() const { return warps_n * eights * 8; }
};

inline constexpr PortableShape kPortableShapes[] = {{4, 1, 1}, {4, 1, 2}, {4, 1, 4}, {2, 2, 3}, {2, 2, 4}, {1, 4, 4}};

/// One axis of one phase. Position q of the phase reads the source at q * in_step + shift + j * shift_step through its
/// tap j, which is the kernel's tap first_tap + j * tap_step, and is the target's position q * out_step + origin.
struct PortableAxis {
  int positions, in_step, out_step, origin;
  int taps, shift, shift_step, first_tap, tap_step;
};

/// Forward has one phase. Backward_input has one for each residue of the input's position modulo the stride: it meets
/// the taps k with (residue + padding - k * dilation) divisible by the stride, which are evenly spaced, or none.
__host__ __device__ inline PortableAxis portable_axis(const Sizes& s, int axis, int residue, bool forward) {
  const int stride = static_cast<int>(s.stride[axis]), dilation = static_cast<int>(s.dilation[axis]);
  const int padding = static_cast<int>(s.padding[axis]), kernel = static_cast<int>(s.kernel[axis]);
  if (forward) return {static_cast<int>(s.output[axis]), stride, 1, 0, kernel, -padding, dilation, 0, 1};
  const int input = static_cast<int>(s.input[axis]);
  PortableAxis a{};
  a.positions = input > residue ? (input - residue + stride - 1) / stride : 0;
  a.in_step = 1;
  a.out_step = stride;
  a.origin = residue;
  const auto meets = [&](int tap) { return (residue + padding - tap * dilation) % stride == 0; };
  while (a.first_tap < kernel && !meets(a.first_tap)) ++a.first_tap;
  if (a.first_tap == kernel) return a;
  a.tap_step = 1;
  while (a.first_tap + a.tap_step < kernel && !meets(a.first_tap + a.tap_step)) ++a.tap_step;
  a.taps = (kernel - a.first_tap + a.tap_step - 1) / a.tap_step;
  a.shift = (residue + padding - a.first_tap * dilation) / stride;
  a.shift_step = a.taps > 1 ? -(a.tap_step * dilation) / stride : 0;
  return a;
}

/// Forward and backward_input. `plain.source` is x or y, of which `channels` a group are summed over; `target` is the
/// other one, with `columns` channels a group.
struct PortableParams {
  PlainSum plain;
  const float* prepared;  ///< weights: [phase][group][stage][column][16], see prepare_kernel
  const float* bias;      ///< null: none
  float* target;
  Activation activation;
  int phases[3];
  int source[3];  ///< its extents
  int channels, columns, groups;
  int stages;        ///< of the phase with most taps
  int column_tiles;  ///< of `tile_columns` each
  int tile_columns;
  int64_t source_plane, target_plane;
};

struct PortableWeightParams {
  Sizes sizes;
  const float* x;
  const float* y;
  double* partial;                ///< [weight][split]
  FastDivide by_plane, by_width;  ///< of outputs
  int groups, splits, row_tiles, column_tiles;
  int64_t stages;
  int source[3];  ///< extents of x
};

/// Products 3: float32-accurate; 1: TF32.
template <int Products>
void portable_multiply(int shape, const PortableParams& params, dim3 grid, int most_taps, cudaStream_t stream);
template <int Products>
void portable_multiply_weight(int shape, const PortableWeightParams& params, dim3 grid, cudaStream_t stream);

}  // namespace halo::cuda::conv
