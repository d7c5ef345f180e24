// Field cases of operands and gradients that are not dense.
#include "field_testing.h"

namespace halo {
namespace {

using namespace testing;

using FieldStrides = Field;
INSTANTIATE_TEST_SUITE_P(Devices, FieldStrides, both_devices(), device_name);

// Case 28. The most repeated report of all: a gradient that arrives strided (after a cat was split, after a permute) or
// expanded (after a sum) is read as if it were dense, and the results are silently wrong.
TEST_P(FieldStrides, UpstreamGradientsOfAConvolution) {
  const auto gradients = [&](const Tensor& up) {
    const Tensor x = leaf(make({1, 2, 3, 4}, {1, 1, 4})), w = leaf(make({1, 1}, {1, 1, 2}));
    conv1d(x, w).backward(up);
    return std::pair(x.grad(), w.grad());
  };
  const Tensor column = make({1, 9, 2, 9, 3, 9}, {3, 2}).select(1, 0).reshape({1, 1, 3});
  EXPECT_EQ(column.strides()[2], 2);
  const auto [dx, dw] = gradients(column);
  EXPECT_TRUE(holds(dx, {1, 3, 5, 3}));
  EXPECT_TRUE(holds(dw, {14, 20}));
  const auto [ex, ew] = gradients(ones({}, options()).expand({1, 1, 3}));
  EXPECT_TRUE(holds(ex, {1, 2, 2, 1}));
  EXPECT_TRUE(holds(ew, {6, 9}));
}

struct Operation {
  const char* name;
  std::function<Tensor(const Tensor&)> f;
};

TEST_P(FieldStrides, UpstreamGradientsOfEveryOperation) {
  const Tensor w = randn({4, 4, 3, 3}, options()), depthwise = randn({4, 1, 3, 3}, options());
  const Tensor scale = rand({4}, options()) + 0.5, mean = randn({4}, options()), var = rand({4}, options()) + 0.5;
  const std::vector<Operation> operations{
      {"conv2d", [&](const Tensor& x) { return conv2d(x, w, {}, {.padding = 1}); }},
      {"conv_transpose2d", [&](const Tensor& x) { return conv_transpose2d(x, w, {}, {.padding = 1}); }},
      {"depthwise", [&](const Tensor& x) { return conv2d(x, depthwise, {}, {.padding = 1, .groups = 4}); }},
      {"max_pool2d", [](const Tensor& x) { return max_pool2d(x, 3, {.stride = 1, .padding = 1}); }},
      {"avg_pool2d", [](const Tensor& x) { return avg_pool2d(x, 3, {.stride = 1, .padding = 1}); }},
      {"adaptive_avg_pool2d",
       [](const Tensor& x) {
         return adaptive_avg_pool2d(x, {6, 6});
       }},
      {"batch_norm", [&](const Tensor& x) { return batch_norm(x, {}, {}, scale, mean, {.training = true}); }},
      {"batch_norm eval", [&](const Tensor& x) { return batch_norm(x, mean, var, scale); }},
      {"layer_norm", [](const Tensor& x) { return layer_norm(x, {6}); }},
      {"group_norm", [&](const Tensor& x) { return group_norm(x, 2, scale); }},
      {"local_response_norm", [](const Tensor& x) { return local_response_norm(x, 3, {.alpha = 0.3}); }},
      {"relu", [](const Tensor& x) { return relu(x); }},
      {"gelu", [](const Tensor& x) { return gelu(x); }},
      {"softmax", [](const Tensor& x) { return softmax(x, 1); }},
      {"log_softmax", [](const Tensor& x) { return log_softmax(x, 3); }},
      {"dropout",
       [](const Tensor& x) {
         Generator g(3);
         return dropout(x, 0.5, true, g);
       }},
      {"cumsum", [](const Tensor& x) { return cumsum(x, 2); }},
      {"mul", [](const Tensor& x) { return x * x; }},
      {"cat",
       [](const Tensor& x) {
         return cat(split(x, {1, 3}, 1), 1);
       }},
      {"permute", [](const Tensor& x) {
         return x.permute({0, 1, 3, 2}).contiguous().permute({0, 1, 3, 2});
       }}};
  const Tensor values = randn({2, 4, 6, 6}, options());
  for (const Operation& op : operations) {
    SCOPED_TRACE(op.name);
    const auto gradient = [&](const Tensor& x, const Tensor& up) {
      const Tensor t = x.detach().requires_grad_();
      return grad({op.f(t)}, {t}, {up})[0];
    };
    const Tensor up = randn({2, 4, 6, 6}, options()), expected = gradient(values, up);
    EXPECT_TRUE(same(gradient(values, strided_copy(up)), expected));
    const Tensor reversed = up.permute({3, 2, 1, 0}).contiguous().permute({3, 2, 1, 0});
    EXPECT_FALSE(reversed.is_contiguous());
    EXPECT_TRUE(same(gradient(values, reversed), expected));
    EXPECT_TRUE(same(gradient(strided_copy(values), up), expected));
    EXPECT_TRUE(same(gradient(values.permute({3, 2, 1, 0}).contiguous().permute({3, 2, 1, 0}), up), expected));
    EXPECT_TRUE(same(gradient(values, ones({}, options()).expand({2, 4, 6, 6})),
                     gradient(values, ones({2, 4, 6, 6}, options()))));
    EXPECT_FALSE(same(gradient(values, up * 1.5), expected));  // the comparison sees a wrong gradient
  }
}

// Case 29. One kernel expanded over all groups (stride 0), and weights with one input channel, whose stride on the axis
// of extent 1 may be anything and fooled the guess of the layout.
TEST_P(FieldStrides, ExpandedWeights) {
  std::vector<float> ramp;
  for (int c = 0; c < 8; ++c) {
    for (int i = 0; i < 25; ++i) ramp.push_back(static_cast<float>((c + 1) * (i % 5)));
  }
  const Tensor x = make(ramp, {1, 8, 5, 5});
  const Tensor sobel = make({-1, 0, 1, -2, 0, 2, -1, 0, 1}, {1, 1, 3, 3}) * 0.125;
  const Tensor y = conv2d(x, sobel.expand({8, 1, 3, 3}), {}, {.groups = 8});
  for (int64_t c = 0; c < 8; ++c) EXPECT_TRUE(all_equal(y.select(1, c), static_cast<double>(c + 1))) << c;
}

TEST_P(FieldStrides, NonsenseStridesOnAxesOfExtentOne) {
  const Tensor x = lcg(3, {1, 1, 6, 6}, device()), w = lcg(4, {4, 1, 3, 3}, device());
  const Tensor expected = conv2d(x, w);
  for (const Shape& strides : {Shape{9, 1, 3, 1}, Shape{9, 9, 3, 1}, Shape{9, 12345, 3, 1}, Shape{9, 0, 3, 1}}) {
    const Tensor odd(w.storage(), w.dtype(), w.shape(), strides, w.storage_offset());
    EXPECT_TRUE(same(conv2d(x, odd), expected));
    const Tensor odd_x(x.storage(), x.dtype(), x.shape(), {777, strides[1], 6, 1}, x.storage_offset());
    EXPECT_TRUE(same(conv2d(odd_x, odd), expected));
  }
}

// Case 56. A demand of the fast kernel (strides that are multiples of 8) passed on to the user.
TEST_P(FieldStrides, AnyWidthAndAlignmentForCausalConvolution) {
  for (int64_t channels : {6, 10, 100}) {
    for (int64_t length : {1, 7, 63}) {
      const Tensor rows = randn({2, length, channels}, options()), w = randn({channels, 4}, options());
      const Tensor x = rows.transpose(1, 2);
      EXPECT_TRUE(same(causal_conv1d(x, w), causal_conv1d(x.contiguous(), w)));
      const Tensor g = w.reshape({channels, 1, 4});
      const ConvOptions causal{.groups = channels, .auto_padding = AutoPadding::Causal};
      EXPECT_TRUE(same(conv1d(x, g, {}, causal), conv1d(x.contiguous(), g, {}, causal)));
      const Tensor filter = randn({channels, length}, options());
      EXPECT_TRUE(same(long_conv(x, filter), long_conv(x.contiguous(), filter)));
    }
  }
  for (int64_t length : {1, 7, 63}) {
    const Tensor part = randn({2, 16, length}, options()).slice(1, 3, 9), w = randn({6, 4}, options());
    EXPECT_TRUE(same(causal_conv1d(part, w), causal_conv1d(part.contiguous(), w)));
    const Tensor shifted = randn({2, 6, length + 3}, options()).slice(2, 1, length + 1);
    EXPECT_TRUE(same(causal_conv1d(shifted, w), causal_conv1d(shifted.contiguous(), w)));
  }
}

}  // namespace
}  // namespace halo
