// Pooling windows as kernels see them: any rank, dilation and adaptive windows, by the formulas of ops/pool_axis.h.
#pragma once

#include <halo/ops/pool_problem.h>

#include <algorithm>
#include <cstdint>

#include "../device/divide.h"

namespace halo::cuda {

/// PoolProblem as a kernel sees it.
struct PoolSizes {
  PoolAxis axes[3];
  Divide output[3], input[3];
  bool count_include_pad;
  bool narrow;  ///< positions in a plane and taps of a window are 32-bit numbers
  bool eight;   ///< windows are two neighbours on each axis
  int64_t divisor_override;

  explicit PoolSizes(const PoolProblem& p)
      : count_include_pad(p.count_include_pad),
        narrow(p.input_positions() <= INT32_MAX && p.taps() <= INT32_MAX),
        divisor_override(p.divisor_override) {
    const int64_t inputs = p.planes() * p.input_positions(), outputs = p.planes() * p.output_positions();
    for (std::size_t axis = 0; axis < 3; ++axis) {
      axes[axis] = p.axes[axis];
      output[axis] = Divide(p.axes[axis].output, outputs);
      input[axis] = Divide(p.axes[axis].input, inputs);
    }
    eight =
        std::all_of(axes, axes + 3, [](const PoolAxis& a) { return !a.adaptive && a.dilation == 1 && a.kernel == 2; });
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
    if (!sizes.narrow) return each_by<int64_t>(sizes, visit);
    const bool whole = axis[0].count == 2 && axis[1].count == 2 && axis[2].count == 2;
    if (sizes.eight && whole) return each_of_eight(sizes, visit);
    each_by<int>(sizes, visit);
  }
  __device__ int64_t divisor(const PoolSizes& sizes) const {
    if (sizes.divisor_override != 0) return sizes.divisor_override;
    int64_t product = 1;
    for (int a = 0; a < 3; ++a) product *= sizes.count_include_pad ? axis[a].padded : axis[a].count;
    return product;
  }

 private:
  /// Of a whole window of eight, whose loads go together: half of the time. (Of 27, in averages, nothing.)
  template <class Visit>
  __device__ void each_of_eight(const PoolSizes& sizes, Visit visit) const {
    const int rows = static_cast<int>(sizes.axes[1].input), columns = static_cast<int>(sizes.axes[2].input);
    const int first = (static_cast<int>(axis[0].begin) * rows + static_cast<int>(axis[1].begin)) * columns +
                      static_cast<int>(axis[2].begin);
#pragma unroll
    for (int tap = 0; tap < 8; ++tap) {
      visit(first + (tap / 4 * rows + tap / 2 % 2) * columns + tap % 2, tap);
    }
  }
  template <class Index, class Visit>
  __device__ void each_by(const PoolSizes& sizes, Visit visit) const {
    Index begin[3], count[3], step[3], first_tap[3], input[3], kernel[3];
    for (int a = 0; a < 3; ++a) {
      begin[a] = static_cast<Index>(axis[a].begin), count[a] = static_cast<Index>(axis[a].count);
      step[a] = static_cast<Index>(axis[a].step), first_tap[a] = static_cast<Index>(axis[a].first_tap);
      input[a] = static_cast<Index>(sizes.axes[a].input), kernel[a] = static_cast<Index>(sizes.axes[a].kernel);
    }
    for (Index d = 0; d < count[0]; ++d) {
      const Index depth = begin[0] + d * step[0], depth_tap = first_tap[0] + d;
      for (Index h = 0; h < count[1]; ++h) {
        const Index row = (depth * input[1] + begin[1] + h * step[1]) * input[2] + begin[2];
        const Index row_tap = (depth_tap * kernel[1] + first_tap[1] + h) * kernel[2] + first_tap[2];
        for (Index w = 0; w < count[2]; ++w) visit(row + w * step[2], row_tap + w);
      }
    }
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
