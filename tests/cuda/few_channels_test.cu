// Convolutions of few sources or few results, on Hopper: rings that come round, rows of any length and alignment.
#include <halo/core/cuda_backend.h>
#include <halo/cuda/runtime/traits.h>

#include <utility>
#include <vector>

#include "expect_right.cuh"
#include "narrow_problems.h"
#include <gtest/gtest.h>

namespace halo::cuda::conv {
namespace {

template <class T>
class FewChannels : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << cuda::describe(0);
    if (!device_traits().is_hopper()) GTEST_SKIP() << "on Hopper alone";
  }
};
using StorageTypes = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(FewChannels, StorageTypes);

/// Blocks that make several runs, so that both rings come round: strips of several source sets, rows longer and shorter
/// than a run, results beside a line, 2 and 4 tiles of channels, groups and depths, many rows a run, taps far apart.
TYPED_TEST(FewChannels, FewSourcesInLongStrips) {
  using T = TypeParam;
  const Algorithm& few = find_algorithm("few sources");
  expect_all_right<T>(few, ConvPass::Forward, {0, 1, 3},
                      {problem({16, 3, 143, 120}, 33, 1, {3, 3}, {.padding = {1, 1}}),
                       problem({16, 2, 71, 244}, 18, 1, {2, 5}, {.padding = {1, 2}}),
                       problem({9, 4, 31, 2004}, 16, 1, {2, 3}, {.padding = {0, 1}}),
                       problem({13, 3, 131, 119}, 40, 1, {3, 3}, {.padding = {1, 1}}),
                       problem({5, 3, 60, 1001}, 17, 1, {2, 3}, {.padding = {1, 0}}),
                       problem({2, 6, 3, 61, 253}, 98, 2, {1, 3, 3}, {.padding = {0, 0, 1}}),
                       problem({2, 2, 900, 5}, 64, 1, {3, 3}, {.padding = {1, 1}}),
                       problem({3, 2, 40, 203}, 24, 1, {1, 11}, {.padding = {0, 5}}),
                       problem({7, 3, 95, 70}, 51, 1, {3, 3}, {.padding = {1, 30}, .dilation = {1, 30}})});
}

/// Weight gradients of few channels: rows of any length and address, of several steps and a part, padded and not.
TYPED_TEST(FewChannels, FewSourcesWeights) {
  using T = TypeParam;
  const Algorithm& few = find_algorithm("few sources");
  for (const ConvProblem& p :
       {problem({2, 3, 21, 19, 10}, 24, 1, {3, 3, 1}, {}), problem({2, 3, 22, 51, 7}, 64, 1, {3, 3, 1}, {}),
        problem({2, 3, 31, 245}, 18, 1, {2, 5}, {.padding = {1, 2}}),
        problem({3, 4, 17, 301}, 16, 1, {2, 3}, {.padding = {0, 7}}),
        problem({2, 6, 20, 260}, 34, 2, {3, 3}, {.padding = {1, 1}}),
        problem({2, 3, 9, 1001}, 17, 1, {1, 3}, {.padding = {1, 40}, .dilation = {1, 30}})}) {
    for (const int64_t offset : {0, 1, 2, 4, 7}) {
      ASSERT_TRUE(few.supports(p, config_of<T>(ConvPass::BackwardWeight, offset))) << p.str();
      expect_right<T>(few, p, ConvPass::BackwardWeight, offset);
      expect_infinities_of_plain_sums<T>(few, p, offset);
    }
  }
}

/// Sources whose first taps alone add up to minus infinity, as a tensor core adds them, and all taps to nothing: ReLU
/// must not make a zero of what has to be computed again. (It did: 0 for the bias, 5.)
TEST(FewSources, ComputeAgainBeforeTheyActivate) {
  if (cuda::device_count() == 0) GTEST_SKIP() << cuda::describe(0);
  if (!device_traits().is_hopper()) GTEST_SKIP() << "Hopper alone";
  const ConvProblem p = problem({1, 2, 40, 260}, 64, 1, {3, 3}, {});
  const int64_t plane = p.input[1] * p.input[2];
  std::vector<float> x(static_cast<std::size_t>(p.x_numel()));
  for (std::size_t c = 0; c < 2; ++c) {
    x[c * static_cast<std::size_t>(plane) + 10 * 260 + 100] = -3e38f;
    x[c * static_cast<std::size_t>(plane) + 12 * 260 + 102] = 3e38f;
  }
  Tensors<BFloat16> tensors(p, 0);
  tensors.x.assign(x);
  tensors.w.assign(std::vector<float>(static_cast<std::size_t>(p.w_numel()), 1.0f));
  Operand<BFloat16> bias(p.out_channels, 0);
  bias.assign(std::vector<float>(static_cast<std::size_t>(p.out_channels), 5.0f));
  ConvConfig config = config_of<BFloat16>(ConvPass::Forward, 0);
  config.bias = true;
  config.activation = {ActivationKind::Relu, 0};
  const Algorithm& few = find_algorithm("few sources");
  ASSERT_TRUE(few.supports(p, config));
  run_on(few, p, config, tensors, bias.get());
  const auto y = tensors.y.values();
  const int64_t width = p.output[2], results = p.output[1] * width;
  for (int64_t channel = 0; channel < p.out_channels; ++channel)
    EXPECT_EQ(y[static_cast<std::size_t>(channel * results + 10 * width + 100)], 5) << channel;
}

/// Rows of every alignment: padding that begins before the source, several chunks of a row and strips of a plane, a
/// part of the channels of a stage, depths and groups.
TYPED_TEST(FewChannels, FewResultsFromRowsOfAnyAlignment) {
  using T = TypeParam;
  const Algorithm& few = find_algorithm("few results");
  expect_all_right<T>(few, ConvPass::Forward, {0, 1, 2, 3, 4, 5, 6, 7},
                      {problem({2, 20, 37, 1531}, 3, 1, {3, 3}, {.padding = {1, 1}}),
                       problem({1, 36, 19, 764}, 2, 1, {3, 3}, {.padding = {2, 20}, .dilation = {1, 20}}),
                       problem({2, 8, 9, 2305}, 3, 1, {3, 3}, {.padding = {0, 25}, .dilation = {1, 25}}),
                       problem({1, 16, 2, 10, 127}, 4, 2, {1, 3, 3}, {.padding = {0, 1, 3}}),
                       problem({3, 4, 11, 5}, 1, 1, {3, 3}, {.padding = {1, 2}}),
                       problem({1, 4, 8, 21}, 3, 1, {3, 3}, {.padding = {1, 800}})});
  expect_all_right<T>(few, ConvPass::BackwardInput, {0, 1, 2, 3, 4, 5, 6, 7},
                      {problem({2, 3, 43, 41, 9}, 40, 1, {3, 3, 1}, {}), problem({1, 2, 20, 1487}, 12, 1, {3, 3}, {})});
}

TYPED_TEST(FewChannels, FewChannelsAddBiasAndActivate) {
  using T = TypeParam;
  for (const auto& [kernel, p] :
       {std::pair{"few results", problem({2, 12, 9, 1531}, 3, 1, {3, 3}, {.padding = {1, 1}})},
        std::pair{"few results", problem({1, 16, 2, 10, 128}, 4, 2, {1, 3, 3}, {.padding = {0, 1, 1}})},
        std::pair{"few sources", problem({2, 3, 29, 131}, 45, 1, {3, 3}, {.padding = {1, 1}})},
        std::pair{"few sources", problem({1, 4, 2, 40, 128}, 40, 2, {1, 3, 3}, {.padding = {0, 1, 1}})}}) {
    ConvConfig config = config_of<T>(ConvPass::Forward, 0);
    config.bias = true;
    config.activation = {ActivationKind::LeakyRelu, 0.5f};
    Tensors<T> got(p, 0);
    got.x.fill(1);
    got.w.fill(2);
    Operand<T> bias(p.out_channels, 0);
    bias.fill(4);
    run_on(find_algorithm(kernel), p, config, got, bias.get());
    Tensors<double> exact(p, 0);
    run(find_algorithm("direct"), p, ConvPass::Forward, exact);
    auto expected = exact.y.values();
    add_bias_and_bend(expected, bias.values(), p);
    EXPECT_LE(relative_error(got.y.values(), expected), sizeof(T) == 4 ? kBound<T> : 2 * kBound<T>) << p.str();
  }
}

}  // namespace
}  // namespace halo::cuda::conv
