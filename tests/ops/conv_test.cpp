#include <halo/ops/conv.h>

#include "tests/ops/naive_conv.h"

namespace halo {
namespace {

using testing::near;
using testing::same;

class ConvTest : public ::testing::TestWithParam<ConvProblem> {};

// Small integers leave no room for rounding: every dtype must give the naive loops' bits.
TEST_P(ConvTest, IntegersMatchTheDefinitionExactly) {
  const PoisonGuard poison;
  const ConvProblem& p = GetParam();
  for (DType dtype : {float32, float64}) {
    const TensorOptions options{.dtype = dtype};
    const Tensor x = testing::random_integers(p.x_shape(), options), w = testing::random_integers(p.w_shape(), options);
    const Tensor g = testing::random_integers(p.y_shape(), options);
    EXPECT_TRUE(same(ops::conv_forward(p, x, w), testing::naive_conv(ConvPass::Forward, p, x, w).to(dtype)));
    EXPECT_TRUE(
        same(ops::conv_backward_input(p, g, w), testing::naive_conv(ConvPass::BackwardInput, p, g, w).to(dtype)));
    EXPECT_TRUE(
        same(ops::conv_backward_weight(p, x, g), testing::naive_conv(ConvPass::BackwardWeight, p, x, g).to(dtype)));
  }
}

TEST_P(ConvTest, StridedOperandsGiveTheSameBits) {
  const ConvProblem& p = GetParam();
  const Tensor x = randn(p.x_shape()), w = randn(p.w_shape()), g = randn(p.y_shape());
  const Tensor sx = testing::strided_copy(x), sw = testing::strided_copy(w), sg = testing::strided_copy(g);
  EXPECT_TRUE(same(ops::conv_forward(p, sx, sw), ops::conv_forward(p, x, w)));
  EXPECT_TRUE(same(ops::conv_backward_input(p, sg, sw), ops::conv_backward_input(p, g, w)));
  EXPECT_TRUE(same(ops::conv_backward_weight(p, sx, sg), ops::conv_backward_weight(p, x, g)));
}

// <forward(x, w), g> = <x, backward_input(g, w)> = <w, backward_weight(x, g)>.
TEST_P(ConvTest, TheThreeContractionsAreAdjoint) {
  const ConvProblem& p = GetParam();
  const TensorOptions options{.dtype = float64};
  const Tensor x = randn(p.x_shape(), options), w = randn(p.w_shape(), options), g = randn(p.y_shape(), options);
  const double form = (ops::conv_forward(p, x, w) * g).sum().item();
  const double scale = std::sqrt(static_cast<double>(p.y_numel() * p.in_channels_per_group() * p.taps())) + 1;
  EXPECT_NEAR((x * ops::conv_backward_input(p, g, w)).sum().item(), form, 1e-12 * scale);
  EXPECT_NEAR((w * ops::conv_backward_weight(p, x, g)).sum().item(), form, 1e-12 * scale);
}

TEST_P(ConvTest, BitsDoNotDependOnThreads) {
  const ConvProblem& p = GetParam();
  const Tensor x = randn(p.x_shape()), w = randn(p.w_shape()), g = randn(p.y_shape());
  const Tensor y = ops::conv_forward(p, x, w), dx = ops::conv_backward_input(p, g, w),
               dw = ops::conv_backward_weight(p, x, g);
  set_num_threads(1);
  EXPECT_TRUE(same(ops::conv_forward(p, x, w), y));
  EXPECT_TRUE(same(ops::conv_backward_input(p, g, w), dx));
  EXPECT_TRUE(same(ops::conv_backward_weight(p, x, g), dw));
  set_num_threads(2);
}

INSTANTIATE_TEST_SUITE_P(Problems, ConvTest, ::testing::ValuesIn(testing::conv_problems()));

TEST(Conv, BiasAndActivation) {
  const auto p = ConvProblem::conv("t", {2, 3, 9}, {5, 3, 4}, {.stride = 2, .padding = 1});
  const TensorOptions options{.dtype = float64};
  const Tensor x = randn(p.x_shape(), options), w = randn(p.w_shape(), options), b = randn({5}, options);
  const Tensor plain = ops::conv_forward(p, x, w) + b.reshape({1, 5, 1});
  EXPECT_TRUE(near(ops::conv_forward(p, x, w, b), plain, 1e-15));
  EXPECT_TRUE(near(ops::conv_forward(p, x, w, b, {ActivationKind::Relu}), relu(plain), 1e-15));
  EXPECT_TRUE(near(ops::conv_forward(p, x, w, b, {ActivationKind::Gelu}), gelu(plain), 1e-14));
  EXPECT_FALSE(near(ops::conv_forward(p, x, w, b, {ActivationKind::Silu}), plain, 1e-2));
}

// An empty batch or an empty channel axis still has weights, and their gradient is exactly zero, not fresh memory.
TEST(Conv, EmptyOperandsHaveDefinedGradients) {
  const PoisonGuard poison;
  const auto p = ConvProblem::conv("t", {0, 3, 5, 5}, {4, 3, 3, 3}, {});
  const Tensor x = zeros(p.x_shape()), g = zeros(p.y_shape());
  EXPECT_TRUE(same(ops::conv_backward_weight(p, x, g), zeros({4, 3, 3, 3})));
  EXPECT_TRUE(same(ops::sum_per_channel(g), zeros({4})));
  const auto q = ConvProblem::conv("t", {2, 0, 10}, {8, 0, 3}, {});
  const Tensor bias = arange(8).to(float32);
  const Tensor y = ops::conv_forward(q, zeros({2, 0, 10}), zeros({8, 0, 3}), bias);
  EXPECT_TRUE(same(y, bias.reshape({1, 8, 1}).expand({2, 8, 8})));
}

// With a stride longer than the kernel some inputs are read by no window; their gradient must be written as zero.
TEST(Conv, InputsThatNoWindowReadsGetZero) {
  const PoisonGuard poison;
  const auto p = ConvProblem::conv("t", {1, 1, 9}, {1, 1, 2}, {.stride = 5});
  EXPECT_TRUE(same(ops::conv_backward_input(p, ones(p.y_shape()), ones(p.w_shape())).reshape({9}),
                   tensor({1, 1, 0, 0, 0, 1, 1, 0, 0})));
}

// The work follows the elements, not the strides, whose product need not fit in 64 bits.
TEST(Conv, StridesBeyondEveryInput) {
  for (int64_t channels : {3, 32}) {
    for (int64_t stride : {int64_t{1} << 20, int64_t{1} << 32, int64_t{1} << 40}) {
      const ConvProblem p = ConvProblem::conv("conv2d", {1, 2, 6, 6}, {channels, 2, 3, 3},
                                              {.stride = stride, .padding = stride, .padding_after = stride - 4});
      for (DType dtype : {float32, float64}) {
        const TensorOptions options{.dtype = dtype};
        const Tensor x = testing::random_integers(p.x_shape(), options),
                     w = testing::random_integers(p.w_shape(), options),
                     g = testing::random_integers(p.y_shape(), options);
        EXPECT_TRUE(same(ops::conv_forward(p, x, w), testing::naive_conv(ConvPass::Forward, p, x, w).to(dtype)));
        EXPECT_TRUE(
            same(ops::conv_backward_input(p, g, w), testing::naive_conv(ConvPass::BackwardInput, p, g, w).to(dtype)));
        EXPECT_TRUE(
            same(ops::conv_backward_weight(p, x, g), testing::naive_conv(ConvPass::BackwardWeight, p, x, g).to(dtype)));
      }
    }
  }
}

TEST(Conv, MismatchedOperandsAreListed) {
  const auto p = ConvProblem::conv("t", {1, 1, 9}, {1, 1, 2}, {});
  const std::string text = testing::message_of([&] {
    ops::conv_forward(p, zeros({1, 1, 9}, {.dtype = float64}), zeros({1, 1, 2}), zeros({1}, {.dtype = float64}));
  });
  EXPECT_NE(text.find("input float64 [1, 1, 9] on cpu, weight float32 [1, 1, 2] on cpu, bias float64 [1] on cpu"),
            std::string::npos);
}

}  // namespace
}  // namespace halo
