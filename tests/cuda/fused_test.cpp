// The fused passes of residual networks and Hyena operators: the GPU against the CPU, values and gradients.
#include "tests/cuda/gpu_testing.h"

namespace halo::testing {
namespace {

using FusedGpu = Gpu;

/// `f` of leaves made from the inputs, and the gradients of its outputs' products with random numbers.
Operation with_gradients(const Operation& f) {
  return [f](const Tensors& inputs) {
    Tensors leaves, asked;
    for (const Tensor& t : inputs) {
      leaves.push_back(t.defined() ? t.detach().requires_grad_() : t);
      if (t.defined()) asked.push_back(leaves.back());
    }
    Tensors results = f(leaves), upstream;
    Generator generator(7);
    for (const Tensor& y : results) {
      upstream.push_back(randn(y.shape(), {.dtype = float64}, generator).to(y.dtype()).to(y.device()));
    }
    const Tensors grads = grad(results, asked, upstream);
    for (Tensor& y : results) y = y.detach();
    results.insert(results.end(), grads.begin(), grads.end());
    return results;
  };
}

TEST_F(FusedGpu, ResidualNorm) {
  const Operation f = with_gradients([](const Tensors& in) {
    const auto [sum, normed] = residual_norm(in[0], in[1], in[2], in[3], in[4]);
    return Tensors{sum, normed};
  });
  // Below, on and above the widths that kernels are made for; the last is beyond what a warp holds.
  for (int64_t width : {1, 7, 64, 128, 131, 256, 509, 1000, 1024, 1027}) {
    const Shape rows{3, 37, width}, row{width};
    const Tensor far = full(rows, 100.0);  // a mean that is large against the deviation
    compare(concat("residual_norm ", width), {randn(rows), randn(row), randn(rows), randn(row), randn(row)}, f,
            {5e-6, 1e-12});
    if (width > 1) compare("no bias", {randn(rows) + far, {}, randn(rows), randn(row), randn(row)}, f, {3e-5, 1e-11});
  }
  compare("no residual", {randn({5, 9}), {}, {}, {}, {}}, f, {5e-6, 1e-12});
}

TEST_F(FusedGpu, ResidualNormLinear) {
  const Operation f = with_gradients([](const Tensors& in) {
    const auto [sum, projected] = residual_norm_linear(in[0], in[1], in[2], in[3], in[4], in[5]);
    return Tensors{sum, projected};
  });
  compare("residual_norm_linear",
          {randn({3, 50, 33}), randn({33}), randn({3, 50, 33}), randn({33}), randn({33}), randn({17, 33})}, f,
          {5e-6, 1e-12});
}

TEST_F(FusedGpu, LayerNormOfFewRows) {
  const Operation f = with_gradients([](const Tensors& in) {
    const auto [sum, normed] = residual_norm(in[0], in[1], in[2], in[3], in[4]);
    return Tensors{sum, normed};
  });
  for (const int64_t rows : {1, 4}) {
    for (const int64_t length : {16, 20, 256, 1000, 2048, 2052}) {
      const Tensor x = randn({rows, length}) + 3.0, row = randn({length}), none{};
      const std::string name = concat("residual_norm ", rows, " ", length);
      compare(name, {x, row, randn({rows, length}), row, row}, f, {5e-6, 1e-12});
      compare(name + " alone", {x, none, none, none, none}, f, {5e-6, 1e-12});
    }
  }
}

TEST_F(FusedGpu, LayerNormOfManyRows) {
  const Operation f = with_gradients([](const Tensors& in) { return Tensors{layer_norm(in[0], {96}, in[1], in[2])}; });
  compare("layer_norm", {randn({20011, 96}), randn({96}), randn({96})}, f, {5e-6, 1e-12});
}

TEST_F(FusedGpu, GeluLinear) {
  for (const GeluForm form : {GeluForm::Exact, GeluForm::Tanh}) {
    const Operation f =
        with_gradients([form](const Tensors& in) { return Tensors{gelu_linear(in[0], in[1], in[2], form)}; });
    for (int64_t width : {1, 3, 64, 130, 1024, 1500}) {
      // One column: the bias gradient is one sum of 142 numbers, which may cancel.
      compare(concat("gelu_linear ", width), {randn({2, 71, width}), randn({width}), randn({5, width})}, f,
              {width == 1 ? 3e-5 : 3e-6, 1e-12});
    }
  }
  const Operation f = with_gradients([](const Tensors& in) { return Tensors{gelu_linear(in[0], in[1], in[2])}; });
  compare("many rows", {randn({40009, 12}), randn({12}), randn({4, 12})}, f, {3e-6, 1e-12});
}

TEST_F(FusedGpu, FilterPasses) {
  for (int64_t width : {1, 6, 64, 67}) {
    for (int64_t length : {1, 333, 4096, 9004}) {
      compare(concat("bias_sine ", width, " ", length),
              {randn({2, width, length}), randn({2, width}), randn({2, width})},
              with_gradients([](const Tensors& in) { return Tensors{bias_sine(in[0], in[1], in[2])}; }), {5e-6, 1e-12});
    }
    const Tensor time = linspace(0, 1, 333), decay = linspace(-10, -1, width);
    compare(concat("decay_window ", width), {randn({width, 333})}, with_gradients([=](const Tensors& in) {
              const auto like = [&](const Tensor& t) { return t.to(in[0].dtype()).to(in[0].device()); };
              return Tensors{decay_window(in[0], like(time), like(decay), 0.05)};
            }));
  }
}

TEST_F(FusedGpu, GatedLongConv) {
  const Operation f = with_gradients(
      [](const Tensors& in) { return Tensors{gated_long_conv(in[0], in[1], in[2], in[3], in[4], in[5])}; });
  for (int64_t kernel : {1, 2, 3, 4, 5}) {
    for (const auto& [length, channels] :
         {std::pair<int64_t, int64_t>{1, 1}, {5, 7}, {127, 11}, {300, 32}, {1025, 3}}) {
      const Shape width{3 * channels};
      // One channel of one position: a gradient is one sum of two numbers, which may cancel.
      compare(concat("gated_long_conv ", kernel, " ", length, " ", channels),
              {randn({2, length, 3 * channels}), randn(width), randn({3 * channels, 1, kernel}), randn(width),
               randn({channels, length}), randn({channels})},
              f, {length == 1 ? 1e-4 : 6e-6, 1e-11});
    }
  }
}

}  // namespace
}  // namespace halo::testing
