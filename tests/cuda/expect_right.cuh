// Whether a convolution kernel is right, beside plain loops.
#pragma once

#include <algorithm>

#include "conv_operands.cuh"
#include <gtest/gtest.h>

namespace halo::cuda::conv {
namespace {

/// Runs `algorithm` on fresh operands that start `offset` elements behind their margin; compares with plain loops in
/// float64.
template <class T>
void expect_right(const Algorithm& algorithm, const ConvProblem& problem, ConvPass pass, int64_t offset) {
  Tensors<T> tensors(problem, offset);
  run(algorithm, problem, pass, tensors);
  Tensors<double> exact(problem, 0);
  run(find_algorithm("direct"), problem, pass, exact);
  const auto expected = exact.result(pass).values();
  const double error = relative_error(tensors.result(pass).values(), expected);
  // Operands are rounded to T before they are multiplied: the sums differ by about as much as the results do.
  double bound = sizeof(T) == 4 ? (pass == ConvPass::BackwardWeight ? 1e-6 : kBound<T>) : 2 * kBound<T>;
  if (sizeof(T) == 4 && pass != ConvPass::BackwardWeight && error > bound) {  // docs/precision.md: as plain float32
    Tensors<T> plain(problem, offset);
    run(find_algorithm("direct"), problem, pass, plain);
    bound = std::max(bound, 1.5 * relative_error(plain.result(pass).values(), expected));
  }
  EXPECT_LE(error, bound) << algorithm.name << ' ' << name(pass) << " offset " << offset << ' ' << problem.str();
  EXPECT_TRUE(tensors.result(pass).margins_intact()) << algorithm.name << ' ' << name(pass) << ' ' << problem.str();
}

/// The same of each problem, from each offset.
template <class T>
void expect_all_right(const Algorithm& algorithm, ConvPass pass, const std::vector<int64_t>& offsets,
                      const std::vector<ConvProblem>& problems) {
  for (const ConvProblem& p : problems) {
    for (const int64_t offset : offsets) {
      ASSERT_TRUE(algorithm.supports(p, config_of<T>(pass, offset))) << p.str();
      expect_right<T>(algorithm, p, pass, offset);
    }
  }
}

/// Weight gradients where the first and last elements of some rows of x are infinite: those that read them are not
/// finite, and no others.
template <class T>
void expect_infinities_of_plain_sums(const Algorithm& algorithm, const ConvProblem& problem, int64_t offset) {
  Tensors<T> got(problem, offset), expected(problem, offset);
  const int64_t width = problem.input[2], plane = problem.input[0] * problem.input[1] * width;
  for (Tensors<T>* t : {&got, &expected}) {
    t->x.fill(1);
    t->y.fill(3);
    for (const int64_t row : {plane, 2 * plane}) t->x.set(row - 1, INFINITY), t->x.set(row, INFINITY);
  }
  const ConvConfig config = config_of<T>(ConvPass::BackwardWeight, offset);
  run_on(algorithm, problem, config, got);
  run_on(find_algorithm("direct"), problem, config, expected);
  const auto a = got.w.values(), b = expected.w.values();
  int differing = 0, finite = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    finite += std::isfinite(b[i]) ? 1 : 0;
    differing += std::isfinite(a[i]) == std::isfinite(b[i]) ? 0 : 1;
  }
  EXPECT_EQ(differing, 0) << algorithm.name << " offset " << offset << ' ' << problem.str();
  EXPECT_GT(finite, 0) << problem.str();
  EXPECT_LT(finite, static_cast<int>(a.size())) << problem.str();
}

}  // namespace
}  // namespace halo::cuda::conv
