// The names in errors of convolutions, norms, pooling, losses and fused layers.
#include "mistakes.h"

namespace halo {
namespace {

using testing::Mistake;

/// A convolution's mistakes for any rank: bias, dtype, rank, channels.
void add_convolutions(std::vector<Mistake>& mistakes) {
  using Conv = Tensor (*)(const Tensor&, const Tensor&, const Tensor&);
  const std::vector<std::pair<const char*, Conv>> all{
      {"conv1d", [](const Tensor& x, const Tensor& w, const Tensor& b) { return conv1d(x, w, b); }},
      {"conv2d", [](const Tensor& x, const Tensor& w, const Tensor& b) { return conv2d(x, w, b); }},
      {"conv3d", [](const Tensor& x, const Tensor& w, const Tensor& b) { return conv3d(x, w, b); }},
      {"conv_transpose1d", [](const Tensor& x, const Tensor& w, const Tensor& b) { return conv_transpose1d(x, w, b); }},
      {"conv_transpose2d", [](const Tensor& x, const Tensor& w, const Tensor& b) { return conv_transpose2d(x, w, b); }},
      {"conv_transpose3d",
       [](const Tensor& x, const Tensor& w, const Tensor& b) { return conv_transpose3d(x, w, b); }}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& [name, f] = all[i];
    const int spatial = static_cast<int>(i % 3) + 1;
    Shape x_shape{2, 4}, w_shape{4, 4};
    for (int k = 0; k < spatial; ++k) x_shape.push_back(5), w_shape.push_back(3);
    const Tensor x = ones(x_shape), w = ones(w_shape);
    const Conv g = f;
    mistakes.push_back({name, [=] { g(x, w, ones({5})); }});
    mistakes.push_back({name, [=] { g(x, w, ones({1, 4})); }});
    mistakes.push_back({name, [=] { g(x, w, ones({4}, {.dtype = float64})); }});
    mistakes.push_back({name, [=] { g(x.to(int64), w.to(int64), {}); }});
    mistakes.push_back({name, [=] { g(x.flatten(0, 1), w, {}); }});
    mistakes.push_back({name, [=] { g(x, w.slice(0, 0, 3).slice(1, 0, 3), {}); }});
    mistakes.push_back({name, [=] { g(x, w.slice(-1, 0, 0), {}); }});
  }
}

std::vector<Mistake> layers() {
  const Tensor x = ones({2, 4, 6}), w = ones({4, 3}), n = x.to(int64), four = ones({4}), five = ones({5}),
               plane = ones({2, 4, 6, 6});
  std::vector<Mistake> mistakes{
      {"long_conv",
       [=] {
         long_conv(x, ones({5, 3}));
       }},
      {"long_conv", [=] { long_conv(x, w, five); }},
      {"long_conv", [=] { long_conv(x, w, {}, {.gate_in = w}); }},
      {"long_conv", [=] { long_conv(n, w.to(int64)); }},
      {"long_conv_direct",
       [=] {
         long_conv_direct(x, ones({5, 3}));
       }},
      {"long_conv_direct", [=] { long_conv_direct(x, w, five); }},
      {"causal_conv1d", [=] { causal_conv1d(x, w, five); }},
      {"causal_conv1d", [=] { causal_conv1d(x, w.to(float64)); }},
      {"causal_conv1d", [=] { causal_conv1d(n, w.to(int64)); }},
      {"causal_conv1d_with_state", [=] { causal_conv1d_with_state(x, w, five, {}); }},
      {"causal_conv1d_with_state", [=] { causal_conv1d_with_state(x, w, four, x); }},
      {"causal_conv1d_packed",
       [=] {
         causal_conv1d_packed(x, {0, 6}, w, five);
       }},
      {"causal_conv1d_packed",
       [=] {
         causal_conv1d_packed(x, {0, 5}, w);
       }},
      {"causal_conv1d_update", [=] { causal_conv1d_update(x, x.slice(2, 0, 2).clone(), w, five); }},
      {"causal_conv1d_update", [=] { causal_conv1d_update(x, x, w); }},
      {"gated_long_conv",
       [=] {
         gated_long_conv(ones({2, 6, 12}), {}, ones({12, 1, 3}), five, ones({4, 6}), {});
       }},
      {"gated_long_conv",
       [=] {
         gated_long_conv(ones({2, 6, 12}), five, ones({12, 1, 3}), {}, ones({4, 6}), {});
       }},
      {"gated_long_conv",
       [=] {
         gated_long_conv(ones({2, 6, 12}), {}, ones({12, 1, 3}), {}, ones({4, 6}), five);
       }},
      {"gated_long_conv",
       [=] {
         gated_long_conv(ones({2, 6, 12}), {}, ones({11, 1, 3}), {}, ones({4, 6}), {});
       }},
      {"gated_long_conv",
       [=] {
         gated_long_conv(ones({2, 6, 12}), {}, ones({12, 1, 9}), {}, ones({4, 6}), {});
       }},
      {"gated_long_conv",
       [=] {
         gated_long_conv(ones({2, 6, 12}), {}, ones({12, 1, 3}), {}, ones({5, 6}), {});
       }},
      {"batch_norm", [=] { batch_norm(x, five, five, {}, {}, {.training = true}); }},
      {"batch_norm", [=] { batch_norm(n, {}, {}, {}, {}, {.training = true}); }},
      {"layer_norm", [=] { layer_norm(x, {5}); }},
      {"layer_norm", [=] { layer_norm(x, {6}, five); }},
      {"layer_norm", [=] { layer_norm(n, {6}); }},
      {"group_norm", [=] { group_norm(x, 3); }},
      {"group_norm", [=] { group_norm(x, 2, five); }},
      {"group_norm", [=] { group_norm(n, 2); }},
      {"instance_norm", [=] { instance_norm(x, five); }},
      {"instance_norm", [=] { instance_norm(n); }},
      {"local_response_norm", [=] { local_response_norm(x, 0); }},
      {"local_response_norm", [=] { local_response_norm(n, 3); }},
      {"residual_norm", [=] { residual_norm(x, five, {}); }},
      {"residual_norm", [=] { residual_norm(n, {}, {}); }},
      {"residual_norm_linear",
       [=] {
         residual_norm_linear(x, five, {}, {}, {}, ones({2, 6}));
       }},
      {"residual_norm_linear",
       [=] {
         residual_norm_linear(x, {}, {}, {}, {}, ones({2, 5}));
       }},
      {"residual_norm_linear",
       [=] {
         residual_norm_linear(x, {}, {}, {}, {}, ones({2, 6}, {.dtype = float64}));
       }},
      {"gelu_linear",
       [=] {
         gelu_linear(x, five, ones({2, 6}));
       }},
      {"gelu_linear",
       [=] {
         gelu_linear(x, ones({6}), ones({2, 5}));
       }},
      {"gelu_linear",
       [=] {
         gelu_linear(n, ones({6}).to(int64), ones({2, 6}).to(int64));
       }},
      {"bias_sine", [=] { bias_sine(x, four, four); }},
      {"decay_window", [=] { decay_window(x, four, four, 0); }},
      {"linear",
       [=] {
         linear(x, ones({2, 5}));
       }},
      {"linear",
       [=] {
         linear(x, ones({2, 6}), five);
       }},
      {"matmul", [=] { matmul(x, x); }},
      {"matmul",
       [=] {
         matmul(x, ones({3, 6, 2}));
       }},
      {"cross_entropy", [=] { cross_entropy(x, ones({2})); }},
      {"cross_entropy",
       [=] {
         cross_entropy(ones({2, 3}), ones({2}));
       }},
      {"cross_entropy",
       [=] {
         cross_entropy(ones({2, 3}), full({2}, 3, {.dtype = int64}));
       }},
      {"cross_entropy",
       [=] {
         cross_entropy(ones({2, 3}, {.dtype = int64}), arange(2));
       }},
      {"nll_loss",
       [=] {
         nll_loss(ones({2, 3}), arange(2), {.weight = five});
       }},
      {"max_pool1d", [=] { max_pool1d(n, 2); }},
      {"max_pool1d", [=] { max_pool1d(plane, 2); }},
      {"max_pool2d", [=] { max_pool2d(plane, 7); }},
      {"max_pool2d", [=] { max_pool2d(plane.to(int32), 2); }},
      {"max_pool2d_with_indices", [=] { max_pool2d_with_indices(plane.to(int32), 2); }},
      {"max_pool3d", [=] { max_pool3d(plane, 2); }},
      {"avg_pool1d", [=] { avg_pool1d(n, 2); }},
      {"avg_pool2d",
       [=] {
         avg_pool2d(plane, {1, 2, 3});
       }},
      {"avg_pool3d", [=] { avg_pool3d(plane, 2); }},
      {"adaptive_avg_pool1d", [=] { adaptive_avg_pool1d(n, 2); }},
      {"adaptive_avg_pool2d", [=] { adaptive_avg_pool2d(plane, {}); }},
      {"adaptive_max_pool2d", [=] { adaptive_max_pool2d(x, 2); }},
      {"adaptive_max_pool2d_with_indices", [=] { adaptive_max_pool2d_with_indices(plane.to(int64), 2); }}};
  add_convolutions(mistakes);
  return mistakes;
}

TEST(ErrorNames, Layers) { testing::expect_names(layers()); }

}  // namespace
}  // namespace halo
