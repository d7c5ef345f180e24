// Depthwise convolution out of tiles of shared memory, phase by phase: every type, strides, dilations and kernels in
// one, two and three axes, several tiles along each, odd extents, padding of any size and operands at any address.
#include <halo/core/cuda_backend.h>
#include <halo/cuda/runtime/traits.h>

#include "expect_right.cuh"
#include "narrow_problems.h"
#include <gtest/gtest.h>

namespace halo::cuda::conv {
namespace {

template <class T>
class DepthwisePolyphase : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << cuda::describe(0);
  }
};
using FloatingTypes = testing::Types<float, double, BFloat16, Float16>;
TYPED_TEST_SUITE(DepthwisePolyphase, FloatingTypes);

std::vector<ConvProblem> unit_multiplier() {
  return {
      problem({2, 3, 61, 259}, 3, 3, {7, 7}, {.stride = {3, 3}, .padding = {3, 3}}),
      problem({1, 2, 97, 1031}, 2, 2, {3, 5}, {.stride = {4, 3}, .padding = {5, 0}, .dilation = {1, 2}}),
      problem({2, 3, 17, 31, 65}, 3, 3, {3, 3, 3}, {.stride = {2, 2, 2}, .padding = {1, 1, 1}}),
      problem({1, 2, 16, 30, 34}, 2, 2, {5, 5, 5}, {.stride = {2, 2, 2}, .padding = {2, 2, 2}}),
      problem({1, 2, 9, 20, 33}, 2, 2, {2, 4, 3}, {.stride = {3, 1, 2}, .padding = {0, 3, 4}, .dilation = {2, 3, 1}}),
      problem({3, 2, 40, 41}, 2, 2, {2, 2}, {.stride = {5, 8}, .padding = {0, 1}, .padding_after = {3, 7}}),
      problem({2, 2, 23, 29}, 2, 2, {11, 11}, {.padding = {10, 10}, .dilation = {2, 2}}),
      problem({2, 3, 5003}, 3, 3, {9}, {.stride = {3}, .padding = {4}}),
      problem({5, 7, 7, 7}, 7, 7, {3, 3}, {.stride = {3, 3}, .padding = {1, 1}}),
      problem({1, 2, 12, 13, 14}, 2, 2, {7, 7, 7}, {.stride = {2, 2, 2}, .padding = {3, 3, 3}}),
      problem({9, 11, 1, 1}, 11, 11, {3, 3}, {.stride = {2, 2}, .padding = {1, 1}}),
      problem({2, 2, 90, 91}, 2, 2, {3, 3}, {.stride = {2, 3}, .padding = {24, 24}, .dilation = {24, 24}})};
}

TYPED_TEST(DepthwisePolyphase, MatchesFloat64) {
  const Algorithm& polyphase = find_algorithm("depthwise polyphase");
  for (const ConvPass pass : {ConvPass::Forward, ConvPass::BackwardInput, ConvPass::BackwardWeight}) {
    expect_all_right<TypeParam>(polyphase, pass, {0, 1, 3}, unit_multiplier());
  }
}

TYPED_TEST(DepthwisePolyphase, ResultsOfSeveralChannels) {
  const Algorithm& polyphase = find_algorithm("depthwise polyphase");
  for (const ConvPass pass : {ConvPass::Forward, ConvPass::BackwardInput, ConvPass::BackwardWeight}) {
    expect_all_right<TypeParam>(
        polyphase, pass, {0, 1},
        {problem({2, 3, 61, 131}, 6, 3, {5, 3}, {.stride = {3, 2}, .padding = {2, 1}}),
         problem({2, 2, 9, 13, 31}, 6, 2, {3, 3, 3}, {.stride = {2, 3, 2}, .padding = {1, 1, 1}})});
  }
}

/// More taps than a block has.
TYPED_TEST(DepthwisePolyphase, WeightsOfManyTaps) {
  expect_all_right<TypeParam>(find_algorithm("depthwise polyphase"), ConvPass::BackwardWeight, {1},
                              {problem({2, 2, 45, 47}, 2, 2, {31, 29}, {.stride = {2, 3}, .padding = {15, 14}})});
}

/// Large kernels, and patches: blocks with most of the shared memory there is.
TYPED_TEST(DepthwisePolyphase, LargeBoxes) {
  if (!device_traits().is_hopper()) GTEST_SKIP() << "less shared memory";
  for (const ConvPass pass : {ConvPass::Forward, ConvPass::BackwardInput, ConvPass::BackwardWeight}) {
    expect_all_right<TypeParam>(find_algorithm("depthwise polyphase"), pass, {1},
                                {problem({1, 2, 97, 93}, 2, 2, {91, 89}, {.padding = {45, 40}}),
                                 problem({1, 2, 7001}, 2, 2, {4000}, {.padding = {3999}}),
                                 problem({1, 3, 65, 97}, 3, 3, {32, 30}, {.stride = {32, 32}})});
  }
}

TEST(DepthwisePolyphasePlan, RefusesBoxesBeyondSharedMemory) {
  const Algorithm& polyphase = find_algorithm("depthwise polyphase");
  const ConvProblem p = problem({1, 2, 700, 700}, 2, 2, {7, 7}, {.stride = {3, 3}, .dilation = {100, 100}});
  EXPECT_FALSE(polyphase.supports(p, config_of<float>(ConvPass::Forward, 0)));
}

}  // namespace
}  // namespace halo::cuda::conv
