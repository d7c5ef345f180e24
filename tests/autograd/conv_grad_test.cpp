#include "tests/ops/naive_conv.h"

namespace halo {
namespace {

class ConvGradTest : public ::testing::TestWithParam<ConvProblem> {};

TEST_P(ConvGradTest, GradcheckFirstAndSecondOrder) {
  const ConvProblem& p = GetParam();
  const TensorOptions options{.dtype = float64};
  const Tensor x = testing::leaf(randn(p.x_shape(), options)), w = testing::leaf(randn(p.w_shape(), options));
  const Tensor b = testing::leaf(randn({p.out_channels}, options));
  const auto result = gradcheck([&](const std::vector<Tensor>& in) { return conv_forward(p, in[0], in[1], in[2]); },
                                {x, w, b}, {.step = 1e-3, .tolerance = 1e-7});
  EXPECT_TRUE(result.ok) << result.message;
  const Tensor g = testing::leaf(randn(p.y_shape(), options)), c = testing::leaf(randn({p.in_channels}, options));
  const auto adjoint =
      gradcheck([&](const std::vector<Tensor>& in) { return conv_backward_input(p, in[0], in[1], in[2]); }, {g, w, c},
                {.step = 1e-3, .tolerance = 1e-7});
  EXPECT_TRUE(adjoint.ok) << adjoint.message;
}

INSTANTIATE_TEST_SUITE_P(Problems, ConvGradTest, ::testing::ValuesIn(testing::small(testing::conv_problems())));

TEST(Gradcheck, CatchesAWrongGradient) {
  const Tensor x = testing::leaf(randn({5}, {.dtype = float64}));
  // detach() hides one factor: the gradient is half of what it should be.
  EXPECT_FALSE(gradcheck([](const std::vector<Tensor>& in) { return in[0] * in[0].detach(); }, {x}).ok);
  EXPECT_TRUE(gradcheck([](const std::vector<Tensor>& in) { return in[0] * in[0]; }, {x}).ok);
}

TEST(ConvGrad, FusedActivationDecomposes) {
  const TensorOptions options{.dtype = float64};
  const Tensor x = testing::leaf(randn({1, 2, 6}, options)), w = testing::leaf(randn({3, 2, 3}, options));
  const auto result = gradcheck(
      [](const std::vector<Tensor>& in) { return conv1d(in[0], in[1], {}, {.padding = 1}, {ActivationKind::Silu}); },
      {x, w});
  EXPECT_TRUE(result.ok) << result.message;
}

// Gradient penalty through groups: P = sum((ds/dx)^2) with s = sum(y).
TEST(ConvGrad, DoubleBackwardWithGroups) {
  const Tensor x = testing::leaf(randn({1, 2, 3}));
  const Tensor w = testing::leaf(from_vector<float>({2, 5}, {2, 1, 1}));
  const Tensor y = conv1d(x, w, {}, {.groups = 2});
  const Tensor dx = grad({y.sum()}, {x}, {}, {.create_graph = true})[0];
  const Tensor penalty = (dx * dx).sum();
  EXPECT_EQ(penalty.item(), 87);
  const auto second = grad({penalty}, {w, x}, {}, {.allow_unused = true});
  EXPECT_TRUE(testing::same(second[0].reshape({2}), tensor({12, 30})));
  EXPECT_TRUE(testing::same(second[1], zeros({1, 2, 3})));
}

}  // namespace
}  // namespace halo
