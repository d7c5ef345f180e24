// What every differentiable function must do, function by function: gradients of first and second order that agree with
// numerical ones, the same bits for strided operands and for strided or expanded upstream gradients, and float32 close
// to float64.
#include <functional>
#include <limits>

#include "tests/testing.h"

namespace halo {
namespace {

using Tensors = std::vector<Tensor>;

struct OpCase {
  std::string name;
  std::vector<Shape> shapes;  // of the inputs that are differentiated
  std::function<Tensor(const Tensors&)> f;
  double low = -2, high = 2;  // inputs are uniform between these
};

Tensor indices(const std::vector<int64_t>& values, const Shape& shape) { return from_vector(values, shape); }

// A generator of its own each time: gradcheck needs the same mask at every call.
Tensor dropped(const Tensor& x) {
  Generator generator(5);
  return dropout(x, 0.4, true, generator);
}

Tensor class_weights(const Tensor& like) { return from_vector<double>({0.5, 2, 1, 0.25}, {4}).to(like.dtype()); }

std::ostream& operator<<(std::ostream& out, const OpCase& c) { return out << c.name; }

const std::vector<OpCase>& op_cases() {
  static const std::vector<OpCase> cases{
      {"residual_norm",
       {{2, 3, 5}, {5}, {2, 3, 5}, {5}, {5}},
       [](const Tensors& in) {
         const auto [sum, normed] = residual_norm(in[0], in[1], in[2], in[3], in[4]);
         return sum * 0.5 + normed;
       }},
      {"residual_norm_alone", {{4, 5}}, [](const Tensors& in) { return residual_norm(in[0], {}, {}).normed; }},
      {"residual_norm_linear",
       {{2, 3, 5}, {5}, {2, 3, 5}, {5}, {5}, {4, 5}},
       [](const Tensors& in) {
         const auto [sum, projected] = residual_norm_linear(in[0], in[1], in[2], in[3], in[4], in[5]);
         return cat({sum, projected}, 2);
       }},
      {"gelu_linear", {{2, 3, 4}, {4}, {2, 4}}, [](const Tensors& in) { return gelu_linear(in[0], in[1], in[2]); }},
      {"gelu_linear_tanh",
       {{3, 4}, {4}, {2, 4}},
       [](const Tensors& in) { return gelu_linear(in[0], in[1], in[2], GeluForm::Tanh); }},
      {"bias_sine", {{2, 3, 5}, {2, 3}, {2, 3}}, [](const Tensors& in) { return bias_sine(in[0], in[1], in[2]); }},
      {"decay_window",
       {{3, 5}},
       [](const Tensors& in) {
         return decay_window(in[0], linspace(0, 1, 5).to(in[0].dtype()), linspace(-3, -1, 3).to(in[0].dtype()), 0.05);
       }},
      {"gated_long_conv",
       {{2, 5, 6}, {6}, {6, 1, 3}, {6}, {2, 5}, {2}},
       [](const Tensors& in) { return gated_long_conv(in[0], in[1], in[2], in[3], in[4], in[5]); }},
      {"avg_pool3d",
       {{2, 2, 3, 5, 4}},
       [](const Tensors& in) {
         return avg_pool3d(in[0], {2, 3, 2}, {.stride = {1, 2, 1}, .padding = {1, 0, 1}});
       }},
      {"max_pool3d",
       {{2, 2, 3, 5, 4}},
       [](const Tensors& in) {
         return max_pool3d(in[0], {2, 3, 2}, {.stride = {1, 2, 1}, .padding = {1, 1, 0}});
       }},
      {"long_conv_direct",
       {{2, 3, 7}, {3, 4}, {3}, {2, 3, 7}, {2, 3, 7}},
       [](const Tensors& in) { return long_conv_direct(in[0], in[1], in[2], {.gate_in = in[3], .gate_out = in[4]}); }},
      {"long_conv_direct_two_sided",
       {{2, 3, 5}, {3, 8}},
       [](const Tensors& in) { return long_conv_direct(in[0], in[1], {}, {.causal = false}); }},
      {"matmul", {{3, 5}, {5, 2}}, [](const Tensors& in) { return matmul(in[0], in[1]); }},
      {"matmul_transposed",
       {{5, 3}, {2, 5}},
       [](const Tensors& in) { return matmul(in[0].transpose(0, 1), in[1].transpose(0, 1)); }},
      {"matmul_batched", {{2, 1, 3, 5}, {4, 5, 2}}, [](const Tensors& in) { return matmul(in[0], in[1]); }},
      {"matmul_folded", {{2, 3, 5}, {5, 2}}, [](const Tensors& in) { return matmul(in[0], in[1]); }},
      {"matmul_left_repeated", {{3, 5}, {2, 5, 2}}, [](const Tensors& in) { return matmul(in[0], in[1]); }},
      {"matmul_vector", {{2, 3, 5}, {5}}, [](const Tensors& in) { return matmul(in[0], in[1]); }},
      {"matmul_row", {{5}, {2, 5, 3}}, [](const Tensors& in) { return matmul(in[0], in[1]); }},
      {"matmul_dot", {{5}, {5}}, [](const Tensors& in) { return matmul(in[0], in[1]); }},
      {"linear", {{2, 3, 5}, {4, 5}, {4}}, [](const Tensors& in) { return linear(in[0], in[1], in[2]); }},
      {"linear_without_bias", {{5}, {4, 5}}, [](const Tensors& in) { return linear(in[0], in[1]); }},
      {"cat",
       {{2, 3}, {2, 1}, {2, 0}},
       [](const Tensors& in) {
         return cat({in[0], in[1], in[2], in[0]}, 1);
       }},
      {"stack",
       {{2, 3}, {2, 3}},
       [](const Tensors& in) {
         return stack({in[0], in[1]}, -1);
       }},
      {"split",
       {{7, 2}},
       [](const Tensors& in) {
         const auto parts = split(in[0], 3);
         return parts[0] * parts[1] + sum(chunk(in[0], 2, 0)[1]) * parts[2];
       }},
      {"unbind",
       {{2, 3, 2}},
       [](const Tensors& in) {
         const auto parts = unbind(in[0], -2);
         return parts[0] * parts[2];
       }},
      {"flip",
       {{2, 3, 2}},
       [](const Tensors& in) {
         return flip(in[0], {0, -1}) * in[0];
       }},
      {"pad_constant",
       {{2, 2, 3}},
       [](const Tensors& in) {
         return pad(in[0], {1, 2, 0, 1}, PadMode::Constant, 3.5);
       }},
      {"pad_reflect",
       {{2, 2, 3, 4}},
       [](const Tensors& in) {
         return pad(in[0], {3, 1, 0, 2, 1, 1}, PadMode::Reflect);
       }},
      {"pad_replicate",
       {{2, 3}},
       [](const Tensors& in) {
         return pad(in[0], {4, 2, 1, 3}, PadMode::Replicate);
       }},
      {"pad_circular",
       {{2, 3, 2}},
       [](const Tensors& in) {
         return pad(in[0], {2, 1, 1, 3}, PadMode::Circular);
       }},
      {"interpolate_nearest",
       {{2, 1, 3, 5}},
       [](const Tensors& in) {
         return interpolate(in[0], {.size = {7, 2}});
       }},
      {"interpolate_linear",
       {{1, 2, 3, 2, 4}},
       [](const Tensors& in) {
         return interpolate(in[0], {.size = {2, 5, 3}, .mode = InterpolateMode::Linear});
       }},
      {"interpolate_corners",
       {{2, 2, 3, 4}},
       [](const Tensors& in) {
         return interpolate(in[0], {.scale_factor = {1.7}, .mode = InterpolateMode::Linear, .align_corners = true});
       }},
      {"index_select",
       {{2, 3, 2}},
       [](const Tensors& in) {
         return index_select(in[0], 1, indices({2, 0, 2, 2}, {4}));
       }},
      {"index_add",
       {{3, 4}, {3, 5}},
       [](const Tensors& in) {
         return index_add(in[0], 1, indices({3, 0, 3, 3, 1}, {5}), in[1]);
       }},
      {"gather",
       {{3, 4}},
       [](const Tensors& in) {
         return gather(in[0], 1, indices({3, 0, 3, 1, 2, 2}, {2, 3}));
       }},
      {"scatter_add",
       {{3, 4}, {2, 3}},
       [](const Tensors& in) {
         return scatter_add(in[0], 0, indices({2, 0, 2, 2, 0, 1}, {2, 3}), in[1]);
       }},
      {"embedding",
       {{5, 3}},
       [](const Tensors& in) {
         return embedding(indices({4, 0, 4, 1}, {2, 2}), in[0]);
       }},
      {"masked_fill",
       {{3, 4}},
       [](const Tensors& in) {
         return masked_fill(in[0], from_vector<bool>({true, false, false, true}, {4}), 7.0);
       }},
      {"sort", {{3, 5}}, [](const Tensors& in) { return sort(in[0], 0, true).values; }},
      {"topk", {{3, 5}}, [](const Tensors& in) { return topk(in[0], 2).values; }},
      {"cumsum", {{3, 4, 2}}, [](const Tensors& in) { return cumsum(in[0], 1); }},
      {"softmax", {{3, 4, 2}}, [](const Tensors& in) { return softmax(in[0], 1); }},
      {"log_softmax", {{3, 4}}, [](const Tensors& in) { return log_softmax(in[0], -1); }},
      {"cross_entropy_mean",
       {{5, 4}},
       [](const Tensors& in) {
         return cross_entropy(in[0], indices({0, 3, -100, 1, 3}, {5}));
       }},
      {"cross_entropy_full",
       {{2, 4, 3}},
       [](const Tensors& in) {
         return cross_entropy(
             in[0], indices({0, 3, 2, 1, 3, 2}, {2, 3}),
             {.weight = class_weights(in[0]), .ignore_index = 2, .reduction = Reduction::None, .label_smoothing = 0.2});
       }},
      {"cross_entropy_weighted_mean",
       {{5, 4}},
       [](const Tensors& in) {
         return cross_entropy(in[0], indices({0, 3, -100, 1, 3}, {5}),
                              {.weight = class_weights(in[0]), .label_smoothing = 0.3});
       }},
      {"nll_loss",
       {{5, 4}},
       [](const Tensors& in) {
         return nll_loss(in[0], indices({0, 3, -100, 1, 3}, {5}), {.weight = class_weights(in[0])});
       }},
      {"mse_loss", {{3, 4}, {3, 4}}, [](const Tensors& in) { return mse_loss(in[0], in[1]); }},
      {"mse_loss_none", {{3, 4}, {3, 4}}, [](const Tensors& in) { return mse_loss(in[0], in[1], Reduction::None); }},
      {"l1_loss", {{3, 4}, {3, 4}}, [](const Tensors& in) { return l1_loss(in[0], in[1], Reduction::Sum); }},
      {"huber_loss",
       {{3, 4}, {3, 4}},
       [](const Tensors& in) { return huber_loss(in[0], in[1], Reduction::Mean, 0.7); }},
      {"binary_cross_entropy",
       {{3, 4}, {3, 4}},
       [](const Tensors& in) { return binary_cross_entropy_with_logits(in[0], in[1]); }},
      {"dropout", {{3, 7}}, [](const Tensors& in) { return dropped(in[0]); }},
      {"var",
       {{3, 4, 2}},
       [](const Tensors& in) {
         return var(in[0], {0, 2});
       }},
      {"var_biased", {{3, 4}}, [](const Tensors& in) { return var(in[0], {}, false); }},
      {"std", {{3, 4}}, [](const Tensors& in) { return halo::std(in[0], {-1}, true, true); }},
      {"logsumexp",
       {{3, 4, 2}},
       [](const Tensors& in) {
         return logsumexp(in[0], {0, 1});
       }},
      {"norm", {{3, 4}}, [](const Tensors& in) { return norm(in[0], 2, {1}); }},
      {"norm_1", {{3, 4}}, [](const Tensors& in) { return norm(in[0], 1); }},
      {"norm_infinity", {{3, 4}}, [](const Tensors& in) { return norm(in[0], INFINITY, {0}, true); }},
  };
  return cases;
}

/// Equal to rounding: a product reads a transposed operand in another order. A wrong element would be poison or far
/// off.
::testing::AssertionResult equal(const Tensor& got, const Tensor& expected) {
  return testing::near(got, expected, 1e-14);
}

class OpGradTest : public ::testing::TestWithParam<OpCase> {
 protected:
  Tensors inputs(DType dtype = float64) const {
    Tensors result;
    Generator generator(3);
    for (const Shape& shape : GetParam().shapes) {
      const Tensor x = rand(shape, {.dtype = float64}, generator) * (GetParam().high - GetParam().low) + GetParam().low;
      result.push_back(testing::leaf(x.to(dtype)));
    }
    return result;
  }
  Tensor output(const Tensors& in) const { return GetParam().f(in); }
  Tensors gradients(const Tensors& in, const Tensor& upstream) const { return grad({output(in)}, in, {upstream}); }
};

TEST_P(OpGradTest, FirstAndSecondOrder) {
  const auto result = gradcheck(GetParam().f, inputs(), {.step = 1e-5, .tolerance = 1e-7});
  EXPECT_TRUE(result.ok) << result.message;
}

// The one-pass gradient and the one made of recorded functions are the same function.
TEST_P(OpGradTest, SameGradientWithAndWithoutAGraph) {
  const Tensors in = inputs();
  const Tensor y = output(in), g = randn(y.shape(), y.options());
  const Tensors plain = gradients(in, g), recorded = grad({output(in)}, in, {g}, {.create_graph = true});
  for (std::size_t i = 0; i < in.size(); ++i) EXPECT_TRUE(testing::near(recorded[i].detach(), plain[i], 1e-14)) << i;
}

TEST_P(OpGradTest, StridedOperands) {
  const Tensors in = inputs();
  Tensors strided;
  for (const Tensor& x : in) strided.push_back(testing::strided_copy(x.detach()).detach().requires_grad_());
  const Tensor y = output(in);
  EXPECT_TRUE(equal(output(strided).detach(), y.detach()));
  const Tensor g = randn(y.shape(), y.options());
  const Tensors expected = gradients(in, g), got = gradients(strided, g);
  for (std::size_t i = 0; i < in.size(); ++i) EXPECT_TRUE(equal(got[i], expected[i])) << "input " << i;
}

// One number seen everywhere, and one row seen in every other.
TEST_P(OpGradTest, ExpandedOperands) {
  for (bool whole : {true, false}) {
    Tensors expanded, dense;
    for (const Tensor& x : inputs()) {
      if (x.numel() == 0 || x.rank() == 0) return;
      const Tensor part = whole ? x.detach().flatten().slice(0, 0, 1).reshape({}) : x.detach().slice(0, 0, 1).clone();
      const Tensor wide = part.expand(x.shape());
      expanded.push_back(wide.detach().requires_grad_());
      dense.push_back(testing::leaf(wide));
    }
    const Tensor y = output(dense), g = randn(y.shape(), y.options());
    EXPECT_TRUE(equal(output(expanded).detach(), y.detach()));
    const Tensors expected = gradients(dense, g), got = gradients(expanded, g);
    for (std::size_t i = 0; i < dense.size(); ++i) EXPECT_TRUE(equal(got[i], expected[i])) << "input " << i;
  }
}

TEST_P(OpGradTest, StridedAndExpandedUpstream) {
  const Tensors in = inputs();
  const Tensor y = output(in), g = randn(y.shape(), y.options());
  Shape reversed;
  for (int i = y.rank() - 1; i >= 0; --i) reversed.push_back(i);
  const Tensor one = full({}, 1.5, y.options());
  for (const Tensor& up :
       {testing::strided_copy(g), g.permute(reversed).clone().permute(reversed), one.expand(y.shape())}) {
    const Tensors expected = gradients(in, up.clone()), got = gradients(in, up);
    for (std::size_t i = 0; i < in.size(); ++i) EXPECT_TRUE(equal(got[i], expected[i])) << "input " << i;
  }
}

TEST_P(OpGradTest, Float32IsCloseToFloat64) {
  const Tensors in = inputs(float32);
  Tensors wide;
  for (const Tensor& x : in) wide.push_back(testing::leaf(x.detach().to(float64)));
  const Tensor y = output(wide), g = randn(y.shape(), {.dtype = float32});
  EXPECT_TRUE(testing::near(output(in).detach().to(float64), y.detach(), 1e-6));
  EXPECT_FALSE(y.numel() > 0 && testing::near(output(in).detach().to(float64) * 1.00001, y.detach(), 1e-6));
  const Tensors expected = gradients(wide, g.to(float64)), got = gradients(in, g);
  for (std::size_t i = 0; i < in.size(); ++i) {
    EXPECT_TRUE(testing::near(got[i].to(float64), expected[i], 2e-6)) << "input " << i;
  }
}

TEST_P(OpGradTest, HalfTypesAreRight) {
  Tensors in, wide;
  for (const Tensor& x : inputs()) {
    in.push_back(testing::leaf(x.detach().to(bfloat16)));
    wide.push_back(testing::leaf(in.back().detach().to(float64)));
  }
  const Tensor y = output(wide), g = randn(y.shape(), {.dtype = bfloat16});
  EXPECT_TRUE(testing::near(output(in).detach().to(float64), y.detach(), 0.02));
  const Tensors expected = gradients(wide, g.to(float64)), got = gradients(in, g);
  for (std::size_t i = 0; i < in.size(); ++i) {
    EXPECT_TRUE(testing::near(got[i].to(float64), expected[i], 0.04)) << "input " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Functions, OpGradTest, ::testing::ValuesIn(op_cases()),
                         [](const auto& test) { return test.param.name; });

TEST(EmbeddingGrad, PaddingRowGetsNone) {
  const Tensor weight = testing::leaf(randn({5, 3}, {.dtype = float64}));
  const auto result = gradcheck(
      [](const Tensors& in) {
        const Tensor y = embedding(indices({4, 0, 4, 1}, {4}), in[0], 4);
        return y * y;
      },
      {weight});
  EXPECT_FALSE(result.ok);  // numerically the row matters
  const Tensor up = full({4, 3}, NAN, weight.options()).slice(0, 0, 4).clone();
  const NoGradGuard guard;
  up.slice(0, 1, 2).fill_(2);
  up.slice(0, 3, 4).fill_(3);
  const GradGuard on(true);
  // Rows 0 and 2 of the upstream are NaN: they belong to the padding row alone.
  const Tensor g = grad({embedding(indices({4, 0, 4, 1}, {4}), weight, -1)}, {weight}, {up})[0];
  EXPECT_EQ(g.to_vector<double>(), (std::vector<double>{2, 2, 2, 3, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
}

// A branch that was masked out sends zero upstream: its infinite slope must not make a NaN.
TEST(MaskedBranches, ZeroUpstreamGivesZero) {
  const Tensor x = testing::leaf(zeros({})), y = testing::leaf(zeros({}));
  const Tensor r = maximum(sqrt(x * x + y * y), full({}, 1e-10));
  const auto g = grad({r}, {x, y});
  EXPECT_EQ(g[0].item(), 0);
  EXPECT_EQ(g[1].item(), 0);
  const Tensor z = testing::leaf(zeros({3}));
  EXPECT_TRUE(testing::same(grad({norm(z)}, {z})[0], zeros({3})));
  const Tensor both = testing::leaf(tensor({0, std::numeric_limits<float>::infinity()}));
  const Tensor chosen = where(lt(both, ones({})), cos(both), zeros({}));
  EXPECT_TRUE(testing::same(grad({chosen.sum()}, {both})[0], zeros({2})));
  const Tensor flat = testing::leaf(full({4}, 2.5));
  EXPECT_TRUE(testing::same(grad({halo::std(flat)}, {flat})[0], zeros({4})));
}

}  // namespace
}  // namespace halo
