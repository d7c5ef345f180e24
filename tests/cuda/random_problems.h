// Convolutions for tests of kernels.
#pragma once

#include <halo/core/error.h>
#include <halo/ops/conv_problem.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

namespace halo::cuda::conv {

/// Problems whose extents all differ and are mostly prime: every rank, stride, dilation, grouping and padding crossed.
inline std::vector<ConvProblem> problems(int count, unsigned seed) {
  std::vector<ConvProblem> result;
  std::mt19937 generator(seed);
  const auto pick = [&](std::initializer_list<int64_t> from) { return from.begin()[generator() % from.size()]; };
  while (static_cast<int>(result.size()) < count) {
    const int rank = 1 + static_cast<int>(generator() % 3);
    const int64_t groups = pick({1, 1, 1, 1, 2, 3});
    const int64_t in = groups * pick({1, 3, 5, 8, 12, 16, 19, 32, 40}),
                  out = groups * pick({1, 3, 7, 8, 16, 24, 33, 64, 97});
    std::vector<int64_t> x{pick({1, 2, 3}), in};
    const bool transposed = generator() % 2 == 0;
    std::vector<int64_t> w = transposed ? std::vector{in, out / groups} : std::vector{out, in / groups};
    ConvOptions options;
    options.groups = groups;
    for (int axis = 0; axis < rank; ++axis) {
      x.push_back(rank == 1   ? pick({1, 7, 130, 389, 1021})
                  : rank == 2 ? pick({1, 5, 13, 31, 67})
                              : pick({1, 3, 7, 11, 18}));
      w.push_back(pick({1, 2, 3, 3, 4, 5, 7}));
      options.stride.push_back(pick({1, 1, 1, 2, 3, 4}));
      options.padding.push_back(pick({0, 0, 1, 2, 3}));
      options.padding_after.push_back(pick({0, 1, 2}));
      options.dilation.push_back(pick({1, 1, 1, 2, 3}));
    }
    if (generator() % 2 == 0) x.back() = (x.back() + 3) / 4 * 4;  // rows that the copy engine can bring
    try {
      result.push_back(transposed ? ConvProblem::transposed("test", x, w, options)
                                  : ConvProblem::conv("test", x, w, options));
    } catch (const ArgumentError&) {  // the kernel does not fit the padded input: draw again
    }
  }
  return result;
}

/// Rows of whole 16-byte pieces and three taps that follow one another, begun at every place in a piece.
inline std::vector<ConvProblem> window_problems() {
  std::vector<ConvProblem> result;
  for (const int64_t padding : {0, 1, 2, 3}) {
    ConvOptions options;
    options.padding = {1, padding};
    options.dilation = {2, 1};
    options.groups = 2;
    result.push_back(ConvProblem::conv("test", {2, 22, 9, 36}, {26, 11, 3, 3}, options));
    options = {};
    options.padding = {padding};
    result.push_back(ConvProblem::transposed("test", {2, 19, 268}, {19, 33, 3}, options));
    result.push_back(ConvProblem::conv("test", {3, 40, 388}, {97, 40, 3}, options));
  }
  return result;
}

/// Few channels on one side, unit stride: random ones, and some of many work items.
inline std::vector<ConvProblem> spread_problems() {
  std::vector<ConvProblem> result;
  for (const ConvProblem& p : problems(1500, 23)) {
    if (p.groups == 1 && p.stride == ConvProblem::Extents{1, 1, 1} && std::min(p.in_channels, p.out_channels) <= 16) {
      result.push_back(p);
    }
  }
  result.push_back(ConvProblem::conv("test", {3, 3, 40, 41, 62}, {64, 3, 3, 3, 3}, {}));
  result.push_back(ConvProblem::conv("test", {2, 3, 16, 60, 123}, {64, 3, 3, 5, 7}, {}));
  result.push_back(ConvProblem::conv("test", {2, 64, 130, 129}, {3, 64, 5, 5}, ConvOptions{.padding = {2}}));
  result.push_back(ConvProblem::conv("test", {2, 64, 67, 300}, {5, 64, 7, 7}, ConvOptions{.padding = {3}}));
  return result;
}

}  // namespace halo::cuda::conv
