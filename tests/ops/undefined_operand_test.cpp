// An operand that is not there (a default-constructed Tensor) is named, with the function that the caller wrote.
#include <functional>
#include <string>
#include <vector>

#include "tests/testing.h"
#include <gtest/gtest-spi.h>

namespace halo {
namespace {

using Operands = std::vector<Tensor>;

/// A call that works, and the names of the operands that it needs: the first of `operands`.
struct Call {
  const char* function;
  std::vector<const char*> needed;
  Operands operands;
  std::function<void(const Operands&)> run;
};

Tensor f(const Shape& shape) { return ones(shape); }
Tensor whole(const Shape& shape) { return zeros(shape, {.dtype = int64}); }

std::vector<Call> elementwise() {
  std::vector<Call> calls;
  using One = Tensor (*)(const Tensor&);
  const std::vector<std::pair<const char*, One>> ones_of{
      {"abs", abs},
      {"sigmoid", sigmoid},
      {"relu", relu},
      {"gelu", [](const Tensor& x) { return gelu(x); }},
      {"clamp", [](const Tensor& x) { return clamp(x, 0, 1); }},
      {"add", [](const Tensor& x) { return x + 1.5; }},
      {"sub", [](const Tensor& x) { return 1.5 - x; }},
      {"div", [](const Tensor& x) { return x / 2; }},
      {"neg", [](const Tensor& x) { return -x; }},
      {"dropout", [](const Tensor& x) { return dropout(x); }},
      {"dropout", [](const Tensor& x) { return dropout(x, 0.5, false); }},
      {"sum", [](const Tensor& x) { return sum(x); }},
      {"mean", [](const Tensor& x) { return mean(x, {0}); }},
      {"amax", [](const Tensor& x) { return amax(x); }},
      {"amin", [](const Tensor& x) { return amin(x); }},
      {"sum_to", [](const Tensor& x) { return sum_to(x, {3}); }},
      {"var", [](const Tensor& x) { return var(x); }},
      {"std", [](const Tensor& x) { return std(x); }},
      {"logsumexp", [](const Tensor& x) { return logsumexp(x); }},
      {"norm", [](const Tensor& x) { return norm(x); }},
      {"any", [](const Tensor& x) { return any(x); }},
      {"softmax", [](const Tensor& x) { return softmax(x, -1); }},
      {"log_softmax", [](const Tensor& x) { return log_softmax(x, -1); }},
      {"cumsum", [](const Tensor& x) { return cumsum(x, 0); }},
      {"sort", [](const Tensor& x) { return sort(x).values; }},
      {"topk", [](const Tensor& x) { return topk(x, 1).values; }},
      {"argmax", [](const Tensor& x) { return argmax(x); }},
      {"argmin", [](const Tensor& x) { return argmin(x, 0); }},
      {"flip", [](const Tensor& x) { return flip(x, {0}); }},
      {"split", [](const Tensor& x) { return split(x, {1}, 0)[0]; }},
      {"chunk", [](const Tensor& x) { return chunk(x, 2)[0]; }},
      {"unbind", [](const Tensor& x) { return unbind(x)[0]; }},
      {"pad",
       [](const Tensor& x) {
         return pad(x, {1, 1});
       }},
      {"interpolate", [](const Tensor& x) { return interpolate(x.defined() ? x.unsqueeze(0) : x, {.size = {4}}); }},
      {"isnan", [](const Tensor& x) { return isnan(x); }},
      {"isinf", [](const Tensor& x) { return isinf(x); }},
      {"isfinite", [](const Tensor& x) { return isfinite(x); }},
      {"logical_not", [](const Tensor& x) { return logical_not(x); }}};
  for (const auto& [name, function] : ones_of) {
    calls.push_back({name, {"input"}, {f({2, 3})}, [function = function](const Operands& t) { function(t[0]); }});
  }
  using Two = Tensor (*)(const Tensor&, const Tensor&);
  const std::vector<std::pair<const char*, Two>> twos{
      {"add", operator+ },
       {"sub", operator- },
        {"mul", operator* },
         {"div", operator/ }, {"maximum", maximum}, {"minimum", minimum}, {"eq", eq}, {"logical_and", logical_and}};
  for (const auto& [name, function] : twos) {
    calls.push_back(
        {name, {"a", "b"}, {f({2, 3}), f({3})}, [function = function](const Operands& t) { function(t[0], t[1]); }});
  }
  return calls;
}

/// Each convolution with a weight [2, 2, 3...].
void add_convolutions(std::vector<Call>& calls) {
  using Conv = Tensor (*)(const Tensor&, const Tensor&);
  const std::vector<Conv> functions{[](const Tensor& x, const Tensor& w) { return conv1d(x, w); },
                                    [](const Tensor& x, const Tensor& w) { return conv2d(x, w); },
                                    [](const Tensor& x, const Tensor& w) { return conv3d(x, w); },
                                    [](const Tensor& x, const Tensor& w) { return conv_transpose1d(x, w); },
                                    [](const Tensor& x, const Tensor& w) { return conv_transpose2d(x, w); },
                                    [](const Tensor& x, const Tensor& w) { return conv_transpose3d(x, w); }};
  const std::vector<const char*> names{"conv1d",           "conv2d",           "conv3d",
                                       "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"};
  for (std::size_t i = 0; i < names.size(); ++i) {
    Shape x{1, 2}, w{2, 2};
    for (std::size_t axis = 0; axis <= i % 3; ++axis) x.push_back(5), w.push_back(3);
    calls.push_back(
        {names[i], {"input", "weight"}, {f(x), f(w)}, [run = functions[i]](const Operands& t) { run(t[0], t[1]); }});
  }
}

std::vector<Call> layers() {
  const Shape rows{2, 4}, signal{2, 4, 6}, image{2, 4, 6, 6}, volume{2, 4, 6, 6, 6}, taps{4, 3};
  std::vector<Call> calls{
      {"linear", {"input", "weight"}, {f(rows), f({3, 4})}, [](auto& t) { linear(t[0], t[1]); }},
      {"matmul", {"input", "other"}, {f(rows), f({4, 3})}, [](auto& t) { matmul(t[0], t[1]); }},
      {"batch_norm", {"input"}, {f(signal)}, [](auto& t) { batch_norm(t[0], {}, {}, {}, {}, {.training = true}); }},
      {"layer_norm", {"input"}, {f(signal)}, [](auto& t) { layer_norm(t[0], {6}); }},
      {"group_norm", {"input"}, {f(signal)}, [](auto& t) { group_norm(t[0], 2); }},
      {"instance_norm", {"input"}, {f(signal)}, [](auto& t) { instance_norm(t[0]); }},
      {"local_response_norm", {"input"}, {f(signal)}, [](auto& t) { local_response_norm(t[0], 3); }},
      {"residual_norm", {"input"}, {f(signal)}, [](auto& t) { residual_norm(t[0], {}, {}); }},
      {"residual_norm_linear",
       {"input", "linear_weight"},
       {f(rows), f({3, 4})},
       [](auto& t) { residual_norm_linear(t[0], {}, {}, {}, {}, t[1]); }},
      {"gelu_linear",
       {"input", "bias", "weight"},
       {f(rows), f({4}), f({3, 4})},
       [](auto& t) { gelu_linear(t[0], t[1], t[2]); }},
      {"max_pool1d", {"input"}, {f(signal)}, [](auto& t) { max_pool1d(t[0], 2); }},
      {"max_pool2d", {"input"}, {f(image)}, [](auto& t) { max_pool2d(t[0], 2); }},
      {"max_pool2d_with_indices", {"input"}, {f(image)}, [](auto& t) { max_pool2d_with_indices(t[0], 2); }},
      {"avg_pool3d", {"input"}, {f(volume)}, [](auto& t) { avg_pool3d(t[0], 2); }},
      {"adaptive_avg_pool2d", {"input"}, {f(image)}, [](auto& t) { adaptive_avg_pool2d(t[0], 2); }},
      {"interpolate", {"input"}, {f(signal)}, [](auto& t) { interpolate(t[0], {.size = {4}}); }},
      {"long_conv", {"input", "weight"}, {f(signal), f(taps)}, [](auto& t) { long_conv(t[0], t[1]); }},
      {"long_conv_direct", {"input", "weight"}, {f(signal), f(taps)}, [](auto& t) { long_conv_direct(t[0], t[1]); }},
      {"causal_conv1d", {"input", "weight"}, {f(signal), f(taps)}, [](auto& t) { causal_conv1d(t[0], t[1]); }},
      {"causal_conv1d_with_state",
       {"input", "weight"},
       {f(signal), f(taps)},
       [](auto& t) { causal_conv1d_with_state(t[0], t[1], {}, {}); }},
      {"causal_conv1d_packed",
       {"input", "weight"},
       {f(signal), f(taps)},
       [](auto& t) {
         causal_conv1d_packed(t[0], {0, 6}, t[1]);
       }},
      {"causal_conv1d_update",
       {"input", "state", "weight"},
       {f(rows), f({2, 4, 2}), f(taps)},
       [](auto& t) { causal_conv1d_update(t[0], t[1], t[2]); }},
      {"gated_long_conv",
       {"projections", "short_weight", "filter"},
       {f({2, 6, 12}), f({12, 1, 3}), f({4, 6})},
       [](auto& t) { gated_long_conv(t[0], {}, t[1], {}, t[2], {}); }},
      {"bias_sine",
       {"input", "bias", "frequency"},
       {f(rows), f({2}), f({2})},
       [](auto& t) { bias_sine(t[0], t[1], t[2]); }},
      {"decay_window", {"input", "time", "decay"}, {f(rows), f({4}), f({2})}, [](auto& t) {
         decay_window(t[0], t[1], t[2], 0);
       }}};
  add_convolutions(calls);
  return calls;
}

std::vector<Call> losses_and_indices() {
  const Tensor x = f({2, 3}), labels = whole({2}), places = whole({2, 3}), mask = ones({2, 3}, {.dtype = boolean});
  return {{"mse_loss", {"input", "target"}, {x, x}, [](auto& t) { mse_loss(t[0], t[1]); }},
          {"l1_loss", {"input", "target"}, {x, x}, [](auto& t) { l1_loss(t[0], t[1]); }},
          {"huber_loss", {"input", "target"}, {x, x}, [](auto& t) { huber_loss(t[0], t[1]); }},
          {"binary_cross_entropy_with_logits",
           {"input", "target"},
           {x, x},
           [](auto& t) { binary_cross_entropy_with_logits(t[0], t[1]); }},
          {"cross_entropy", {"input", "target"}, {x, labels}, [](auto& t) { cross_entropy(t[0], t[1]); }},
          {"nll_loss", {"input", "target"}, {x, labels}, [](auto& t) { nll_loss(t[0], t[1]); }},
          {"where", {"condition", "a", "b"}, {mask, x, x}, [](auto& t) { where(t[0], t[1], t[2]); }},
          {"masked_fill", {"input", "mask"}, {x, mask}, [](auto& t) { masked_fill(t[0], t[1], 0); }},
          {"index_select", {"input", "index"}, {x, labels}, [](auto& t) { index_select(t[0], 0, t[1]); }},
          {"index_add", {"input", "index", "source"}, {x, labels, x}, [](auto& t) { index_add(t[0], 0, t[1], t[2]); }},
          {"gather", {"input", "index"}, {x, places}, [](auto& t) { gather(t[0], 0, t[1]); }},
          {"scatter_add", {"input", "index", "src"}, {x, places, x}, [](auto& t) { scatter_add(t[0], 0, t[1], t[2]); }},
          {"embedding", {"indices", "weight"}, {labels, x}, [](auto& t) { embedding(t[0], t[1]); }},
          {"one_hot", {"indices"}, {labels}, [](auto& t) { one_hot(t[0], 3); }},
          {"multinomial", {"weights"}, {x}, [](auto& t) { multinomial(t[0], 1); }},
          {"cat",
           {"tensor 0", "tensor 1"},
           {x, x},
           [](auto& t) {
             cat({t[0], t[1]});
           }},
          {"stack",
           {"tensor 0", "tensor 1"},
           {x, x},
           [](auto& t) {
             stack({t[0], t[1]});
           }},
          {"add_", {"self", "other"}, {x, x}, [](auto& t) { t[0].add_(t[1]); }},
          {"copy_", {"self", "source"}, {x, x}, [](auto& t) { t[0].copy_(t[1]); }}};
}

void check(const std::vector<Call>& calls) {
  for (const Call& call : calls) {
    EXPECT_NO_THROW(call.run(call.operands)) << call.function;
    for (std::size_t i = 0; i < call.needed.size(); ++i) {
      Operands operands = call.operands;
      operands[i] = Tensor();
      EXPECT_EQ(testing::message_of([&] { call.run(operands); }),
                concat(call.function, ": ", call.needed[i], " is undefined"));
    }
  }
}

TEST(UndefinedOperand, Elementwise) { check(elementwise()); }
TEST(UndefinedOperand, Layers) { check(layers()); }
TEST(UndefinedOperand, LossesAndIndices) { check(losses_and_indices()); }

TEST(UndefinedOperand, AnotherNameFails) {
  const Call call{"exp", {"weight"}, {f({2})}, [](auto& t) { exp(t[0]); }};
  EXPECT_NONFATAL_FAILURE(check({call}), "exp: input is undefined");
}

}  // namespace
}  // namespace halo
