// Forward and backward_input as plain loops, for tests of plans.
#pragma once

#include <halo/ops/conv_problem.h>

#include <cstdint>
#include <random>
#include <vector>

namespace halo::cuda::conv {

using Values = std::vector<float>;

/// Small integers, so that every sum is exact.
inline Values integers(int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  Values v(static_cast<std::size_t>(count));
  for (float& value : v) value = static_cast<float>(static_cast<int>(generator() % 7) - 3);
  return v;
}

/// The pass as plain loops: scatter of every product.
inline Values plain(const ConvProblem& p, bool forward, const Values& source, const Values& w) {
  Values target(static_cast<std::size_t>(forward ? p.y_numel() : p.x_numel()), 0.0f);
  const int64_t in = p.in_channels_per_group(), out = p.out_channels_per_group();
  for (int64_t row = 0; row < p.batch * p.out_channels * p.output_positions(); ++row) {
    const int64_t flat = row % p.output_positions(), co = row / p.output_positions() % p.out_channels;
    const int64_t n = row / p.output_positions() / p.out_channels;
    for (int64_t tap = 0; tap < p.taps(); ++tap) {
      const int64_t o[3] = {flat / (p.output[1] * p.output[2]), flat / p.output[2] % p.output[1], flat % p.output[2]};
      const int64_t k[3] = {tap / (p.kernel[1] * p.kernel[2]), tap / p.kernel[2] % p.kernel[1], tap % p.kernel[2]};
      int64_t from = 0;
      bool inside = true;
      for (std::size_t axis = 0; axis < 3; ++axis) {
        const int64_t i = o[axis] * p.stride[axis] + k[axis] * p.dilation[axis] - p.padding_before[axis];
        inside = inside && i >= 0 && i < p.input[axis];
        from = from * p.input[axis] + i;
      }
      if (!inside) continue;
      for (int64_t c = 0; c < in; ++c) {
        const auto x = static_cast<std::size_t>((n * p.in_channels + co / out * in + c) * p.input_positions() + from);
        const auto weight = static_cast<std::size_t>((co * in + c) * p.taps() + tap);
        const auto y = static_cast<std::size_t>(row);
        (forward ? target[y] : target[x]) += source[forward ? x : y] * w[weight];
      }
    }
  }
  return target;
}

}  // namespace halo::cuda::conv
