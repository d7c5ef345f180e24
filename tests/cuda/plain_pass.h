// The passes as plain loops, for tests of plans.
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

/// Calls f(x, w, y) with the places of the numbers of every product of the convolution.
template <class F>
void for_each_product(const ConvProblem& p, const F& f) {
  const int64_t in = p.in_channels_per_group(), out = p.out_channels_per_group();
  for (int64_t row = 0; row < p.batch * p.out_channels * p.output_positions(); ++row) {
    const int64_t flat = row % p.output_positions(), co = row / p.output_positions() % p.out_channels;
    const int64_t n = row / p.output_positions() / p.out_channels;
    const int64_t o[3] = {flat / (p.output[1] * p.output[2]), flat / p.output[2] % p.output[1], flat % p.output[2]};
    for (int64_t tap = 0; tap < p.taps(); ++tap) {
      const int64_t k[3] = {tap / (p.kernel[1] * p.kernel[2]), tap / p.kernel[2] % p.kernel[1], tap % p.kernel[2]};
      int64_t from = 0;
      bool inside = true;
      for (std::size_t axis = 0; axis < 3; ++axis) {
        const int64_t i = o[axis] * p.stride[axis] + k[axis] * p.dilation[axis] - p.padding_before[axis];
        inside = inside && i >= 0 && i < p.input[axis];
        from = from * p.input[axis] + i;
      }
      for (int64_t c = 0; inside && c < in; ++c) {
        f(static_cast<std::size_t>((n * p.in_channels + co / out * in + c) * p.input_positions() + from),
          static_cast<std::size_t>((co * in + c) * p.taps() + tap), static_cast<std::size_t>(row));
      }
    }
  }
}

/// Forward or backward_input.
inline Values plain(const ConvProblem& p, bool forward, const Values& source, const Values& weight) {
  Values target(static_cast<std::size_t>(forward ? p.y_numel() : p.x_numel()), 0.0f);
  for_each_product(p, [&](std::size_t x, std::size_t w, std::size_t y) {
    (forward ? target[y] : target[x]) += source[forward ? x : y] * weight[w];
  });
  return target;
}

}  // namespace halo::cuda::conv
