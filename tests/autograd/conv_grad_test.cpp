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

TEST(ConvGrad, FusedActivation) {
  const TensorOptions options{.dtype = float64};
  const Tensor x = testing::leaf(randn({2, 2, 7}, options)), w = testing::leaf(randn({3, 2, 3}, options));
  const Tensor b = testing::leaf(randn({3}, options));
  for (const Activation& activation :
       {Activation{ActivationKind::Relu}, Activation{ActivationKind::LeakyRelu, 0.2f},
        Activation{ActivationKind::LeakyRelu, 0.0f}, Activation{ActivationKind::LeakyRelu, -0.5f},
        Activation{ActivationKind::Gelu}, Activation{ActivationKind::GeluTanh}, Activation{ActivationKind::Silu}}) {
    const auto fused = [&](const std::vector<Tensor>& in) {
      return conv1d(in[0], in[1], in[2], {.padding = 1}, activation);
    };
    const Tensor y = fused({x, w, b}), composed = activate(conv1d(x, w, b, {.padding = 1}), activation);
    EXPECT_TRUE(testing::near(y, composed, 1e-15)) << static_cast<int>(activation.kind);
    const Tensor g = randn(y.shape(), options);
    const auto grads = grad({y}, {x, w, b}, {g}), plain = grad({composed}, {x, w, b}, {g});
    for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(testing::near(grads[i], plain[i], 1e-14));
    const auto result = gradcheck(fused, {x, w, b});
    EXPECT_TRUE(result.ok) << static_cast<int>(activation.kind) << ' ' << result.message;
  }
}

// The gradient of relu at 0 is 0, and NaN passes, whichever way it is computed.
TEST(ConvGrad, FusedReluAtItsEdges) {
  const Tensor x = testing::leaf(from_vector<float>({0, -1, 2, NAN}, {1, 1, 4})), w = testing::leaf(ones({1, 1, 1}));
  const Tensor y = conv1d(x, w, {}, {}, {ActivationKind::Relu});
  EXPECT_TRUE(testing::same(y, from_vector<float>({0, 0, 2, NAN}, {1, 1, 4})));
  EXPECT_TRUE(testing::same(grad({y}, {x}, {ones(y.shape())})[0], from_vector<float>({0, 0, 1, NAN}, {1, 1, 4})));
}

// What is saved of a fused activation is its result: changing that in place must not go unseen.
TEST(ConvGrad, FusedActivationSeesAChangedResult) {
  const Tensor x = testing::leaf(randn({1, 1, 5})), w = testing::leaf(randn({1, 1, 3}));
  const Tensor y = conv1d(x, w, {}, {}, {ActivationKind::Relu});
  y.detach().fill_(1);
  EXPECT_NE(testing::message_of([&] { y.sum().backward(); }).find("changed in place"), std::string::npos);
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
