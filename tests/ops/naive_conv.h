// The first link of the chain of trust: convolution as its definition says, in float64, one loop an index.
#pragma once

#include <halo/ops/conv_problem.h>

#include "tests/testing.h"

namespace halo {

/// How a failing case prints itself.
inline void PrintTo(const ConvProblem& problem, std::ostream* out) { *out << problem.str(); }

namespace testing {

/// Calls f(x index, w index, y index) for every product of the form.
template <class F>
void for_each_product(const ConvProblem& p, F&& f) {
  const int64_t cg = p.in_channels_per_group(), kg = p.out_channels_per_group();
  for (int64_t n = 0; n < p.batch; ++n)
    for (int64_t k = 0; k < p.out_channels; ++k)
      for (int64_t c = 0; c < cg; ++c)
        for (int64_t od = 0; od < p.output[0]; ++od)
          for (int64_t oh = 0; oh < p.output[1]; ++oh)
            for (int64_t ow = 0; ow < p.output[2]; ++ow)
              for (int64_t kd = 0; kd < p.kernel[0]; ++kd)
                for (int64_t kh = 0; kh < p.kernel[1]; ++kh)
                  for (int64_t kw = 0; kw < p.kernel[2]; ++kw) {
                    const int64_t id = od * p.stride[0] - p.padding_before[0] + kd * p.dilation[0];
                    const int64_t ih = oh * p.stride[1] - p.padding_before[1] + kh * p.dilation[1];
                    const int64_t iw = ow * p.stride[2] - p.padding_before[2] + kw * p.dilation[2];
                    if (id < 0 || id >= p.input[0] || ih < 0 || ih >= p.input[1] || iw < 0 || iw >= p.input[2])
                      continue;
                    const int64_t channel = k / kg * cg + c;
                    const int64_t x =
                        (((n * p.in_channels + channel) * p.input[0] + id) * p.input[1] + ih) * p.input[2] + iw;
                    const int64_t w = (((k * cg + c) * p.kernel[0] + kd) * p.kernel[1] + kh) * p.kernel[2] + kw;
                    const int64_t y =
                        (((n * p.out_channels + k) * p.output[0] + od) * p.output[1] + oh) * p.output[2] + ow;
                    f(static_cast<std::size_t>(x), static_cast<std::size_t>(w), static_cast<std::size_t>(y));
                  }
}

inline Tensor naive_conv(ConvPass pass, const ConvProblem& p, const Tensor& first, const Tensor& second) {
  const auto a = first.to_vector<double>(), b = second.to_vector<double>();
  const Shape shape = pass == ConvPass::Forward         ? p.y_shape()
                      : pass == ConvPass::BackwardInput ? p.x_shape()
                                                        : p.w_shape();
  std::vector<double> out(static_cast<std::size_t>(shape.numel()), 0.0);
  for_each_product(p, [&](std::size_t x, std::size_t w, std::size_t y) {
    switch (pass) {
      case ConvPass::Forward: out[y] += a[x] * b[w]; break;         // (x, w)
      case ConvPass::BackwardInput: out[x] += a[y] * b[w]; break;   // (g, w)
      case ConvPass::BackwardWeight: out[w] += a[x] * b[y]; break;  // (x, g)
    }
  });
  return from_vector(out, shape);
}

/// Of `problems`, those small enough for numerical differences.
inline std::vector<ConvProblem> small(std::vector<ConvProblem> problems) {
  std::erase_if(problems, [](const ConvProblem& p) { return p.x_numel() + p.w_numel() > 400; });
  return problems;
}

/// Problems that cross rank, stride, dilation, padding, groups and odd extents; values per axis differ.
inline std::vector<ConvProblem> conv_problems() {
  const auto conv = [](Shape x, Shape w, ConvOptions o) { return ConvProblem::conv("conv", x, w, o); };
  const auto transposed = [](Shape x, Shape w, ConvOptions o) {
    return ConvProblem::transposed("conv_transpose", x, w, o);
  };
  return {
      conv({2, 3, 11}, {5, 3, 4}, {.stride = 2, .padding = 3, .padding_after = 1}),
      conv({1, 1, 1}, {1, 1, 1}, {}),
      conv({3, 6, 13}, {6, 1, 3}, {.padding = 2, .dilation = 2, .groups = 6}),
      conv({2, 4, 17}, {12, 1, 5}, {.stride = 3, .padding = 4, .groups = 4}),
      conv({2, 5, 9, 7}, {7, 5, 3, 2}, {.stride = {1, 2}, .padding = {0, 1}, .dilation = {2, 1}}),
      conv({1, 12, 8, 11}, {9, 4, 3, 3}, {.stride = {2, 1}, .padding = {1, 2}, .groups = 3}),
      conv({2, 3, 31, 29}, {16, 3, 11, 11}, {.stride = 4, .padding = 2}),
      conv({1, 17, 23, 19}, {19, 17, 3, 3}, {.padding = 1}),
      conv({2, 16, 5, 37}, {33, 16, 1, 1}, {}),
      conv({1, 2, 7, 8, 9}, {3, 2, 3, 2, 4}, {.stride = {2, 1, 3}, .padding = {1, 0, 2}, .dilation = {1, 3, 1}}),
      conv({1, 8, 5, 6, 7}, {8, 2, 2, 3, 3}, {.padding = 1, .groups = 4}),
      conv({2, 3, 10}, {4, 3, 4}, {.stride = 3, .auto_padding = AutoPadding::Same}),
      conv({2, 3, 10}, {4, 3, 4}, {.dilation = 2, .auto_padding = AutoPadding::Causal}),
      conv({1, 2, 9, 9}, {2, 2, 2, 2}, {.stride = 5}),
      transposed({2, 5, 7}, {5, 3, 4}, {.stride = 3, .padding = 2, .dilation = 2, .output_padding = 1}),
      transposed({1, 1, 3}, {1, 1, 3}, {.dilation = 3, .output_padding = 2}),
      transposed({2, 6, 5, 4}, {6, 2, 3, 4}, {.stride = {2, 3}, .padding = {1, 2}, .groups = 3}),
      transposed({1, 4, 3, 4, 5}, {4, 3, 3, 5, 5}, {.stride = {2, 1, 2}, .padding = {1, 0, 2}}),
      transposed({2, 3, 7}, {3, 2, 5}, {.stride = 2, .auto_padding = AutoPadding::Same}),
      transposed({2, 3, 7}, {3, 2, 2}, {.stride = 4, .auto_padding = AutoPadding::Causal}),
  };
}

}  // namespace testing
}  // namespace halo
