// The names in errors of arithmetic, reductions and views.
#include "mistakes.h"
#include <gtest/gtest-spi.h>

namespace halo {
namespace {

using testing::expect_names;
using testing::Mistake;

/// Everything wrong with operands that differ in dtype, have no floating one, or do not broadcast.
std::vector<Mistake> arithmetic() {
  const Tensor x = ones({2, 3}), other = ones({2, 3}, {.dtype = float64}), wide = ones({4}), n = arange(3);
  std::vector<Mistake> mistakes;
  using Two = Tensor (*)(const Tensor&, const Tensor&);
  const std::vector<std::pair<const char*, Two>> pairs{
      {"add", operator+ },
       {"sub", operator- },
        {"mul", operator* },
         {"div", operator/ },
          {"maximum", maximum},
          {"minimum", minimum},
          {"eq", eq},
          {"ne", ne},
          {"lt", lt},
          {"le", le},
          {"gt", gt},
          {"ge", ge},
          {"logical_and", logical_and},
          {"logical_or", logical_or},
          {"mse_loss", [](const Tensor& a, const Tensor& b) { return mse_loss(a, b); }},
          {"l1_loss", [](const Tensor& a, const Tensor& b) { return l1_loss(a, b); }},
          {"huber_loss", [](const Tensor& a, const Tensor& b) { return huber_loss(a, b); }},
          {"binary_cross_entropy_with_logits",
           [](const Tensor& a, const Tensor& b) { return binary_cross_entropy_with_logits(a, b); }},
          {"matmul", matmul},
          {"linear", [](const Tensor& a, const Tensor& b) { return linear(a, b); }},
          {"where", [](const Tensor& a, const Tensor& b) { return where(ones({}, {.dtype = boolean}), a, b); }},
          {"add_", [](const Tensor& a, const Tensor& b) { return a.add_(b); }}};
  for (const auto& [name, f] : pairs) {
    mistakes.push_back({name, [=, f = f] { f(x, other); }});
    mistakes.push_back({name, [=, f = f] { f(x, wide); }});
  }
  using One = std::function<Tensor(const Tensor&)>;
  const std::vector<std::pair<const char*, One>> functions{
      {"abs", abs},
      {"exp", exp},
      {"log", log},
      {"sqrt", sqrt},
      {"sin", sin},
      {"cos", cos},
      {"tanh", tanh},
      {"sigmoid", sigmoid},
      {"softplus", softplus},
      {"relu", relu},
      {"silu", silu},
      {"reciprocal", reciprocal},
      {"leaky_relu", [](const Tensor& t) { return leaky_relu(t); }},
      {"gelu", [](const Tensor& t) { return gelu(t); }},
      {"clamp", [](const Tensor& t) { return clamp(t, 0, 1); }},
      {"pow", [](const Tensor& t) { return pow(t, 2); }},
      {"add", [](const Tensor& t) { return t + 1.5; }},
      {"add", [](const Tensor& t) { return 1.5 + t; }},
      {"sub", [](const Tensor& t) { return t - 1.5; }},
      {"sub", [](const Tensor& t) { return 1.5 - t; }},
      {"mul", [](const Tensor& t) { return t * 1.5; }},
      {"mul", [](const Tensor& t) { return 1.5 * t; }},
      {"div", [](const Tensor& t) { return 1.5 / t; }},
      {"neg", [](const Tensor& t) { return -t; }},
      {"mul_", [](const Tensor& t) { return t.mul_(1.5); }},
      {"mean", [](const Tensor& t) { return mean(t); }},
      {"var", [](const Tensor& t) { return var(t); }},
      {"std", [](const Tensor& t) { return std(t); }},
      {"logsumexp", [](const Tensor& t) { return logsumexp(t); }},
      {"norm", [](const Tensor& t) { return norm(t); }},
      {"norm", [](const Tensor& t) { return norm(t, 1); }},
      {"softmax", [](const Tensor& t) { return softmax(t, 0); }},
      {"log_softmax", [](const Tensor& t) { return log_softmax(t, 0); }},
      {"dropout", [](const Tensor& t) { return dropout(t); }},
      {"matmul", [](const Tensor& t) { return matmul(t, t); }},
      {"mse_loss", [](const Tensor& t) { return mse_loss(t, t); }},
      {"linear", [](const Tensor& t) {
         return linear(t, t.reshape({1, 3}));
       }}};
  for (const auto& [name, f] : functions) mistakes.push_back({name, [=, f = f] { f(n); }});
  return mistakes;
}

std::vector<Mistake> reductions_and_views() {
  const Tensor x = ones({2, 3});
  return {{"sum", [=] { sum(x, {2}); }},
          {"mean", [=] { mean(x, {-3}); }},
          {"amax", [=] { amax(x, {2}); }},
          {"amax", [=] { amax(ones({0})); }},
          {"amin", [=] { amin(x, {2}); }},
          {"amin", [=] { amin(ones({0})); }},
          {"var", [=] { var(x, {2}); }},
          {"std", [=] { std(x, {2}); }},
          {"logsumexp", [=] { logsumexp(x, {2}); }},
          {"norm", [=] { norm(x, 2, {2}); }},
          {"norm", [=] { norm(x, 1, {2}); }},
          {"norm", [=] { norm(x, INFINITY, {2}); }},
          {"any", [=] { any(x, {2}); }},
          {"all", [=] { all(x, {2}); }},
          {"sum_to", [=] { sum_to(x, {7}); }},
          {"cumsum", [=] { cumsum(x, 2); }},
          {"softmax", [=] { softmax(x, 2); }},
          {"sort", [=] { sort(x, 2); }},
          {"topk", [=] { topk(x, 2, 2); }},
          {"topk", [=] { topk(x, 4); }},
          {"argmax", [=] { argmax(x, 2); }},
          {"argmin", [=] { argmin(ones({0})); }},
          {"cat",
           [=] {
             cat({x, ones({3, 3})}, 1);
           }},
          {"cat",
           [=] {
             cat({x, x}, 2);
           }},
          {"stack",
           [=] {
             stack({x, ones({3, 3})});
           }},
          {"stack",
           [=] {
             stack({x, x.to(float64)});
           }},
          {"stack", [=] { stack({x}, 3); }},
          {"split",
           [=] {
             split(x, {1, 1}, 1);
           }},
          {"split",
           [=] {
             split(x, {1, 1}, 2);
           }},
          {"chunk", [=] { chunk(x, 2, 2); }},
          {"unbind", [=] { unbind(x, 2); }},
          {"flip", [=] { flip(x, {2}); }},
          {"pad", [=] { pad(x, {1}); }},
          {"reshape", [=] { x.reshape({5}); }},
          {"flatten", [=] { x.flatten(2); }},
          {"transpose", [=] { x.transpose(0, 2); }},
          {"permute", [=] { x.permute({0}); }},
          {"expand",
           [=] {
             x.expand({2, 4});
           }},
          {"unsqueeze", [=] { x.unsqueeze(3); }},
          {"squeeze", [=] { x.squeeze(2); }},
          {"slice", [=] { x.slice(2, 0, 1); }},
          {"select", [=] { x.select(2, 0); }},
          {"copy_", [=] { x.copy_(ones({4})); }},
          {"size", [=] { x.size(2); }},
          {"item", [=] { x.item(); }},
          {"index_select", [=] { index_select(x, 2, arange(1)); }},
          {"index_select", [=] { index_select(x, 0, x); }},
          {"interpolate", [=] { interpolate(x, {.size = {4}}); }},
          {"interpolate",
           [=] {
             interpolate(ones({1, 2, 3}), {});
           }},
          {"interpolate",
           [=] {
             interpolate(ones({1, 2, 3}), {.size = {4}, .scale_factor = {2}});
           }},
          {"interpolate",
           [=] {
             interpolate(ones({1, 2, 3}), {.size = {4, 4}});
           }},
          {"interpolate",
           [=] {
             interpolate(ones({1, 2, 3}), {.size = {0}});
           }},
          {"interpolate",
           [=] {
             interpolate(ones({1, 2, 3}), {.scale_factor = {0.3}});
           }},
          {"interpolate",
           [=] {
             interpolate(ones({1, 2, 3}), {.scale_factor = {NAN}});
           }},
          {"interpolate",
           [=] {
             interpolate(ones({1, 2, 3}), {.scale_factor = {1e30}});
           }},
          {"interpolate",
           [=] {
             interpolate(ones({1, 2, 0}), {.size = {4}});
           }},
          {"interpolate",
           [=] {
             interpolate(ones({1, 2, 3}), {.size = {4}, .align_corners = true});
           }},
          {"interpolate",
           [=] {
             interpolate(ones({1, 2, 3}, {.dtype = int64}), {.size = {4}});
           }},
          {"index_select", [=] { index_select(x, 0, full({1}, 9, {.dtype = int64})); }},
          {"index_add", [=] { index_add(x, 2, arange(1), x); }},
          {"index_add", [=] { index_add(x, 0, arange(1), x); }},
          {"index_add", [=] { index_add(x, 0, arange(2), x.to(float64)); }},
          {"index_add", [=] { index_add(x, 0, arange(2), x.slice(1, 0, 1)); }},
          {"gather",
           [=] {
             gather(x, 2, arange(6).reshape({2, 3}));
           }},
          {"gather", [=] { gather(x, 0, arange(1)); }},
          {"scatter_add",
           [=] {
             scatter_add(x, 2, zeros({2, 3}, {.dtype = int64}), x);
           }},
          {"scatter_add",
           [=] {
             scatter_add(x, 0, zeros({2, 3}, {.dtype = int64}), x.to(float64));
           }},
          {"embedding",
           [=] {
             embedding(arange(3), ones({2, 3}));
           }},
          {"embedding",
           [=] {
             embedding(x, ones({2, 3}));
           }},
          {"masked_fill", [=] { masked_fill(x, x, 0); }},
          {"masked_fill", [=] { masked_fill(x, ones({4}, {.dtype = boolean}), 0); }},
          {"one_hot", [=] { one_hot(arange(3), 2); }},
          {"multinomial", [=] { multinomial(-x, 1); }},
          {"zeros", [] { zeros({-1}); }},
          {"ones", [] { ones({-1}); }},
          {"full", [] { full({-1}, 1); }},
          {"rand", [] { rand({-1}); }},
          {"randn", [] { randn({2}, {.dtype = int64}); }},
          {"randint", [] { randint(0, 1, {-1}); }}};
}

TEST(ErrorNames, Arithmetic) { expect_names(arithmetic()); }
TEST(ErrorNames, ReductionsAndViews) { expect_names(reductions_and_views()); }

// What a name is compared with is the caller's function, not anything that the message holds.
TEST(ErrorNames, AnotherNameFails) {
  EXPECT_NONFATAL_FAILURE(expect_names({{"conv1d",
                                         [] {
                                           conv2d(ones({2, 4, 5}), ones({4, 4, 3, 3}));
                                         }}}),
                          "got: conv2d: ");
}

}  // namespace
}  // namespace halo
