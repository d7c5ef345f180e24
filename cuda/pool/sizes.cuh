// Pooling windows as kernels see them: any rank, dilation and adaptive windows, by the formulas of ops/pool_axis.h.
#pragma once

#include <halo/ops/pool_problem.h>

#include "../device/divide.h"

namespace halo::cuda {

/// PoolProblem as a kernel sees it.
struct PoolSizes {
  PoolAxis axes[3];
  Divide output[3], input[3];
  bool count_include_pad;
  int64_t divisor_override;

  explicit PoolSizes(const PoolProblem& p)
      : count_include_pad(p.count_include_pad), divisor_override(p.divisor_override) {
    const int64_t inputs = p.planes() * p.input_positions(), outputs = p.planes() * p.output_positions();
    for (std::size_t axis = 0; axis < 3; ++axis) {
      axes[axis] = p.axes[axis];
      output[axis] = Divide(p.axes[axis].output, outputs);
      input[axis] = Divide(p.axes[axis].input, inputs);
    }
  }
  __device__ int64_t input_positions() const { return axes[0].input * axes[1].input * axes[2].input; }
  __device__ int64_t output_positions() const { return axes[0].output * axes[1].output * axes[2].output; }
};

struct PoolPlace {
  int64_t plane, at[3];
  __device__ PoolPlace(const Divide (&extents)[3], int64_t i) : plane(i) {
    for (int axis = 2; axis >= 0; --axis) at[axis] = extents[axis].split(plane);
  }
};

/// The windows over one output, and a loop over their inputs: visit(flat position in the plane, flat tap).
struct OutputWindows {
  PoolWindow axis[3];
  __device__ OutputWindows(const PoolSizes& sizes, const PoolPlace& place) {
    for (int a = 0; a < 3; ++a) axis[a] = sizes.axes[a].window(place.at[a]);
  }
  template <class Visit>
  __device__ void each(const PoolSizes& sizes, Visit visit) const {
    for (int64_t d = 0; d < axis[0].count; ++d) {
      const int64_t depth = axis[0].begin + d * axis[0].step, depth_tap = axis[0].first_tap + d;
      for (int64_t h = 0; h < axis[1].count; ++h) {
        const int64_t row = depth * sizes.axes[1].input + axis[1].begin + h * axis[1].step;
        const int64_t row_tap = depth_tap * sizes.axes[1].kernel + axis[1].first_tap + h;
        for (int64_t w = 0; w < axis[2].count; ++w) {
          visit(row * sizes.axes[2].input + axis[2].begin + w * axis[2].step,
                row_tap * sizes.axes[2].kernel + axis[2].first_tap + w);
        }
      }
    }
  }
  __device__ int64_t divisor(const PoolSizes& sizes) const {
    if (sizes.divisor_override != 0) return sizes.divisor_override;
    int64_t product = 1;
    for (int a = 0; a < 3; ++a) product *= sizes.count_include_pad ? axis[a].padded : axis[a].count;
    return product;
  }
};

/// Loops over the windows that hold an input: visit(flat output position in the plane, flat tap, window places).
template <class Visit>
__device__ void each_window_over(const PoolSizes& sizes, const PoolPlace& input, Visit visit) {
  PoolRange range[3];
  for (int a = 0; a < 3; ++a) range[a] = sizes.axes[a].windows_over(input.at[a]);
  PoolPlace window = input;
  for (window.at[0] = range[0].first; window.at[0] <= range[0].last; ++window.at[0]) {
    const int64_t depth_tap = sizes.axes[0].tap_of(window.at[0], input.at[0]);
    if (depth_tap < 0) continue;
    for (window.at[1] = range[1].first; window.at[1] <= range[1].last; ++window.at[1]) {
      const int64_t row_tap = sizes.axes[1].tap_of(window.at[1], input.at[1]);
      if (row_tap < 0) continue;
      const int64_t row = window.at[0] * sizes.axes[1].output + window.at[1];
      for (window.at[2] = range[2].first; window.at[2] <= range[2].last; ++window.at[2]) {
        const int64_t tap = sizes.axes[2].tap_of(window.at[2], input.at[2]);
        if (tap < 0) continue;
        visit(row * sizes.axes[2].output + window.at[2],
              (depth_tap * sizes.axes[1].kernel + row_tap) * sizes.axes[2].kernel + tap, window);
      }
    }
  }
}

}  // namespace halo::cuda
