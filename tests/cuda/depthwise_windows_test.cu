// Depthwise convolution whose results slide along the taps: every type, rows of one to many taps, one, two and three
// axes, planes smaller than a thread's results and tiles along each axis, padding of any size, operands at any address.
#include <halo/core/cuda_backend.h>

#include "expect_right.cuh"
#include "narrow_problems.h"
#include <gtest/gtest.h>

namespace halo::cuda::conv {
namespace {

template <class T>
class DepthwiseWindows : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << cuda::describe(0);
  }
};
using FloatingTypes = testing::Types<float, double, BFloat16, Float16>;
TYPED_TEST_SUITE(DepthwiseWindows, FloatingTypes);

std::vector<ConvProblem> unit_multiplier() {
  return {problem({3, 5, 1000}, 5, 5, {31}, {.padding = {15}}),
          problem({2, 3, 5003}, 3, 3, {9}, {.padding = {4}}),
          problem({1, 2, 700}, 2, 2, {258}, {.padding = {300}}),
          problem({2, 3, 77}, 3, 3, {1}, {}),
          problem({3, 5, 56, 56}, 5, 5, {7, 7}, {.padding = {3, 3}}),
          problem({70, 3, 7, 7}, 3, 3, {7, 7}, {.padding = {3, 3}}),
          problem({3, 11, 14, 14}, 11, 11, {7, 7}, {.padding = {3, 3}}),
          problem({2, 3, 35, 291}, 3, 3, {5, 4}, {.padding = {1, 2}, .padding_after = {4, 0}}),
          problem({2, 3, 23, 29}, 3, 3, {11, 13}, {.padding = {10, 12}, .dilation = {2, 1}}),
          problem({9, 11, 1, 1}, 11, 11, {3, 3}, {.padding = {1, 1}}),
          problem({1, 2, 40, 9}, 2, 2, {31, 2}, {}),
          problem({2, 3, 17, 30, 65}, 3, 3, {3, 3, 3}, {.padding = {1, 1, 1}}),
          problem({2, 2, 6, 7, 9}, 2, 2, {5, 6, 5}, {.padding = {2, 0, 4}})};
}

TYPED_TEST(DepthwiseWindows, MatchesFloat64) {
  for (const ConvPass pass : {ConvPass::Forward, ConvPass::BackwardInput, ConvPass::BackwardWeight}) {
    expect_all_right<TypeParam>(find_algorithm("depthwise windows"), pass, {0, 1, 3}, unit_multiplier());
  }
}

TYPED_TEST(DepthwiseWindows, ResultsOfSeveralChannels) {
  const std::vector<ConvProblem> problems{problem({2, 3, 61, 31}, 6, 3, {5, 3}, {.padding = {2, 1}}),
                                          problem({2, 2, 9, 13, 31}, 6, 2, {3, 3, 3}, {.padding = {1, 1, 1}}),
                                          problem({3, 1, 28, 28}, 32, 1, {3, 3}, {.padding = {1, 1}})};
  expect_all_right<TypeParam>(find_algorithm("depthwise windows"), ConvPass::Forward, {0, 1}, problems);
  expect_all_right<TypeParam>(find_algorithm("depthwise windows"), ConvPass::BackwardWeight, {0, 1}, problems);
}

/// Zeros of padding and of tiles that reach beyond y meet infinities: only the sums that have these are not finite.
TYPED_TEST(DepthwiseWindows, WeightsHaveTheInfinitiesOfPlainSums) {
  if (sizeof(TypeParam) == 8) GTEST_SKIP() << "for types that the test fills";
  expect_infinities_of_plain_sums<TypeParam>(find_algorithm("depthwise windows"),
                                             problem({2, 3, 13, 30}, 3, 3, {5, 5}, {.padding = {2, 2}}), 1);
}

TEST(DepthwiseWindowsPlan, RefusesWhatItHasNot) {
  const Algorithm& windows = find_algorithm("depthwise windows");
  const auto supports = [&](const ConvProblem& p, ConvPass pass) {
    return windows.supports(p, config_of<float>(pass, 0));
  };
  EXPECT_FALSE(supports(problem({1, 2, 70}, 4, 2, {7}, {}), ConvPass::BackwardInput));
  EXPECT_FALSE(supports(problem({1, 2, 70}, 2, 2, {7}, {.stride = {2}}), ConvPass::Forward));
  EXPECT_FALSE(supports(problem({1, 2, 70}, 2, 2, {7}, {.dilation = {2}}), ConvPass::Forward));
  EXPECT_FALSE(supports(problem({1, 2, 700, 700}, 2, 2, {300, 300}, {}), ConvPass::Forward));
}

}  // namespace
}  // namespace halo::cuda::conv
