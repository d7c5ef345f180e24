#include "conv_correlation.h"

#include <algorithm>

namespace halo::cpu {
namespace {

using Extents = ConvProblem::Extents;

/// Calls f(tap number, its offsets in the input).
template <class F>
void for_each_tap(const ConvProblem& p, F&& f) {
  int64_t number = 0;
  for (int64_t d = 0; d < p.kernel[0]; ++d) {
    for (int64_t h = 0; h < p.kernel[1]; ++h) {
      for (int64_t w = 0; w < p.kernel[2]; ++w) {
        f(number++, Extents{d * p.dilation[0], h * p.dilation[1], w * p.dilation[2]});
      }
    }
  }
}

/// The inputs i with (i + padding) % stride == residue on every axis: i + padding = stride q + residue meets output
/// q - (tap * dilation - residue) / stride for the taps with that residue. Positions are these q.
Correlation backward_correlation(const ConvProblem& p, const Extents& residue) {
  const ConvSizes s(p);
  Correlation q{.window = {.outputs = {}, .source = p.output, .step = {1, 1, 1}, .start = {}, .reach = {}, .taps = {}},
                .batch = p.batch,
                .groups = p.groups,
                .channels = s.kg,
                .results = s.cg,
                .tap_numbers = {},
                .group_pitch = s.kg * s.depth,
                .result_pitch = s.taps,
                .channel_pitch = s.depth,
                .to = p.input,
                .to_step = p.stride,
                .to_start = {}};
  for (std::size_t axis = 0; axis < 3; ++axis) {
    const int64_t stride = p.stride[axis], offset = residue[axis] - p.padding_before[axis];
    const int64_t first = offset >= 0 ? 0 : (-offset + stride - 1) / stride;  // the smallest q with i >= 0
    const int64_t last = p.input[axis] - 1 - offset;
    q.window.outputs[axis] = last < 0 ? 0 : std::max<int64_t>(0, last / stride - first + 1);
    q.window.reach[axis] = (p.kernel[axis] - 1) * p.dilation[axis] / stride;
    q.window.start[axis] = first - q.window.reach[axis];
    q.to_start[axis] = first * stride + offset;
  }
  for_each_tap(p, [&](int64_t number, const Extents& at) {
    Extents offset;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      if (at[axis] % p.stride[axis] != residue[axis]) return;
      offset[axis] = q.window.reach[axis] - at[axis] / p.stride[axis];
    }
    q.window.taps.push_back(offset);
    q.tap_numbers.push_back(number);
  });
  return q;
}

/// The residues that (input + padding) has on an axis, ascending: no more than inputs, however large the stride.
std::vector<int64_t> residues(const ConvProblem& p, std::size_t axis) {
  std::vector<int64_t> all(static_cast<std::size_t>(std::min(p.stride[axis], p.input[axis])));
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = (p.padding_before[axis] + static_cast<int64_t>(i)) % p.stride[axis];
  }
  std::ranges::sort(all);
  return all;
}

}  // namespace

Correlation forward_correlation(const ConvProblem& p) {
  const ConvSizes s(p);
  Correlation q{
      .window = {.outputs = p.output, .source = p.input, .step = p.stride, .start = {}, .reach = {}, .taps = {}},
      .batch = p.batch,
      .groups = p.groups,
      .channels = s.cg,
      .results = s.kg,
      .tap_numbers = {},
      .group_pitch = s.kg * s.depth,
      .result_pitch = s.depth,
      .channel_pitch = s.taps,
      .to = p.output,
      .to_step = {1, 1, 1},
      .to_start = {}};
  for (std::size_t axis = 0; axis < 3; ++axis) {
    q.window.start[axis] = -p.padding_before[axis];
    q.window.reach[axis] = (p.kernel[axis] - 1) * p.dilation[axis];
  }
  for_each_tap(p, [&](int64_t number, const Extents& at) {
    q.window.taps.push_back(at);
    q.tap_numbers.push_back(number);
  });
  return q;
}

std::vector<Correlation> backward_correlations(const ConvProblem& p) {
  std::vector<Correlation> all;
  const std::vector<int64_t> rows = residues(p, 1), columns = residues(p, 2);
  for (const int64_t d : residues(p, 0)) {
    for (const int64_t h : rows) {
      for (const int64_t w : columns) {
        Correlation q = backward_correlation(p, {d, h, w});
        if (q.window.outputs[0] * q.window.outputs[1] * q.window.outputs[2] > 0) all.push_back(std::move(q));
      }
    }
  }
  return all;
}

}  // namespace halo::cpu
