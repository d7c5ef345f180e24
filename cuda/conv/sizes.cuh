// ConvProblem as kernels see it: plain numbers, and the two maps between input and output positions.
#pragma once

#include <halo/ops/conv_problem.h>

#include <cstdint>

namespace halo::cuda::conv {

struct Position {
  int64_t at[3];
};

/// Position of flat index `flat` in a dense box.
__device__ inline Position unflatten(int64_t flat, const int64_t (&extents)[3]) {
  const int64_t plane = extents[1] * extents[2];
  const int64_t rest = flat % plane;
  return {{flat / plane, rest / extents[2], rest % extents[2]}};
}

struct Sizes {
  int64_t batch, in_channels, out_channels;
  int64_t in_per_group, out_per_group;
  int64_t input_positions, output_positions, taps;
  int64_t input[3], output[3], kernel[3], stride[3], dilation[3], padding[3];

  explicit Sizes(const ConvProblem& p)
      : batch(p.batch),
        in_channels(p.in_channels),
        out_channels(p.out_channels),
        in_per_group(p.in_channels_per_group()),
        out_per_group(p.out_channels_per_group()),
        input_positions(p.input_positions()),
        output_positions(p.output_positions()),
        taps(p.taps()) {
    for (std::size_t axis = 0; axis < 3; ++axis) {
      input[axis] = p.input[axis];
      output[axis] = p.output[axis];
      kernel[axis] = p.kernel[axis];
      stride[axis] = p.stride[axis];
      dilation[axis] = p.dilation[axis];
      padding[axis] = p.padding_before[axis];
    }
  }

  /// Flat input position that output `o` reads through tap `k`, or -1 where that is padding.
  __device__ int64_t input_at(const Position& o, const Position& k) const {
    int64_t flat = 0;
    for (int axis = 0; axis < 3; ++axis) {
      const int64_t i = o.at[axis] * stride[axis] + k.at[axis] * dilation[axis] - padding[axis];
      if (i < 0 || i >= input[axis]) return -1;
      flat = flat * input[axis] + i;
    }
    return flat;
  }

  /// Flat output position whose window has input `i` under tap `k`, or -1 where there is none.
  __device__ int64_t output_at(const Position& i, const Position& k) const {
    int64_t flat = 0;
    for (int axis = 0; axis < 3; ++axis) {
      const int64_t scaled = i.at[axis] + padding[axis] - k.at[axis] * dilation[axis];
      const int64_t o = scaled / stride[axis];
      if (scaled < 0 || o * stride[axis] != scaled || o >= output[axis]) return -1;
      flat = flat * output[axis] + o;
    }
    return flat;
  }
};

}  // namespace halo::cuda::conv
