// Field cases of empty tensors, impossible sizes and mixed operands.
#include "field_testing.h"

namespace halo {
namespace {

using namespace testing;

using FieldArguments = Field;
INSTANTIATE_TEST_SUITE_P(Devices, FieldArguments, both_devices(), device_name);

// Case 5. With no samples the loop that adds up the weight gradient never ran, and its memory came back as it was; with
// no channels something was divided by zero. A gradient of nothing is 0, and is there.
TEST_P(FieldArguments, EmptyBatchHasZeroGradients) {
  const Tensor x = leaf(zeros({0, 3, 5, 5}, options())), w = leaf(ones({4, 3, 3, 3}, options()));
  const Tensor b = leaf(ones({4}, options()));
  const Tensor y = conv2d(x, w, b);
  EXPECT_EQ(y.shape(), Shape({0, 4, 3, 3}));
  y.backward(zeros({0, 4, 3, 3}, options()));
  ASSERT_TRUE(x.grad().defined() && w.grad().defined() && b.grad().defined());
  EXPECT_EQ(x.grad().shape(), Shape({0, 3, 5, 5}));
  EXPECT_TRUE(same(w.grad(), zeros_like(w)));
  EXPECT_TRUE(same(b.grad(), zeros_like(b)));
}

TEST_P(FieldArguments, NoChannelsGiveTheBias) {
  const Tensor x = leaf(zeros({2, 0, 10}, options())), w = leaf(zeros({8, 0, 3}, options()));
  const Tensor b = leaf(arange(8, options()));
  const Tensor y = conv1d(x, w, b);
  EXPECT_TRUE(same(y.detach(), arange(8, options()).reshape({1, 8, 1}).expand({2, 8, 8})));
  y.sum().backward();
  EXPECT_EQ(x.grad().shape(), Shape({2, 0, 10}));
  EXPECT_EQ(w.grad().shape(), Shape({8, 0, 3}));
  EXPECT_TRUE(same(b.grad(), full({8}, 16, options())));
  const std::string text = message_of([&] { conv1d(x, ones({8, 3, 3}, options())); });
  EXPECT_TRUE(mentions(text, {"weight", "[2, 0, 10]", "[8, 3, 3]"}));
}

// The same kind of fault in every other operation that reduces or works through a batch.
TEST_P(FieldArguments, EmptyBatchElsewhere) {
  const auto gradients_of = [&](const std::function<Tensor(const Tensor&)>& f, const Shape& shape) {
    const Tensor x = leaf(zeros(shape, options()));
    const Tensor y = f(x);
    y.sum().backward();
    EXPECT_TRUE(x.grad().defined());
    EXPECT_EQ(x.grad().shape(), shape);
    EXPECT_EQ(y.size(0), 0);
  };
  const Shape images{0, 4, 6, 6};
  const Tensor w = leaf(ones({4, 2, 3, 3}, options()));
  gradients_of([&](const Tensor& x) { return conv_transpose2d(x, w); }, images);
  EXPECT_TRUE(same(w.grad(), zeros_like(w)));
  gradients_of([](const Tensor& x) { return max_pool2d(x, 2); }, images);
  gradients_of([](const Tensor& x) { return avg_pool2d(x, 2); }, images);
  gradients_of([](const Tensor& x) { return adaptive_avg_pool2d(x, 3); }, images);
  gradients_of([](const Tensor& x) { return local_response_norm(x, 3); }, images);
  gradients_of([](const Tensor& x) { return softmax(x, 1); }, images);
  gradients_of([](const Tensor& x) { return dropout(relu(x), 0.5); }, images);
  const Tensor scale = leaf(ones({4}, options()));
  gradients_of([&](const Tensor& x) { return group_norm(x, 2, scale); }, images);
  EXPECT_TRUE(same(scale.grad(), zeros_like(scale)));
  const Tensor mean = zeros({4}, options()), var = ones({4}, options());
  gradients_of([&](const Tensor& x) { return batch_norm(x, mean, var, {}, {}, {.training = true}); }, images);
  EXPECT_TRUE(all_equal(mean, 0) && all_equal(var, 1));
  const Tensor matrix = leaf(ones({5, 3}, options())), shift = leaf(ones({5}, options()));
  gradients_of([&](const Tensor& x) { return linear(x, matrix, shift); }, {0, 3});
  EXPECT_TRUE(same(matrix.grad(), zeros_like(matrix)));
  EXPECT_TRUE(same(shift.grad(), zeros_like(shift)));
  const Tensor filter = leaf(ones({4, 5}, options()));
  gradients_of([&](const Tensor& x) { return long_conv(x, filter); }, {0, 4, 7});
  EXPECT_TRUE(same(filter.grad(), zeros_like(filter)));
  const Tensor taps = leaf(ones({4, 3}, options()));
  gradients_of([&](const Tensor& x) { return causal_conv1d(x, taps); }, {0, 4, 7});
  EXPECT_TRUE(same(taps.grad(), zeros_like(taps)));
}

// Case 7. Numbers that end in a division by zero, wrap to something harmless, or are cut to 16 or 32 bits on the way
// down. Each must be refused by name, and the process must live.
TEST_P(FieldArguments, AbsurdIntegersAreRefusedByName) {
  const Tensor x = ones({1, 1, 8}, options()), w = ones({1, 1, 3}, options());
  struct Bad {
    ConvOptions options;
    const char *name, *value;
  };
  const std::vector<Bad> all{{{.stride = 0}, "stride", "0"},
                             {{.stride = -1}, "stride", "-1"},
                             {{.dilation = 0}, "dilation", "0"},
                             {{.groups = 0}, "groups", "0"},
                             {{.groups = INT64_MIN}, "groups", "-9223372036854775808"},
                             {{.padding = -1}, "padding", "-1"}};
  for (const Bad& bad : all) {
    EXPECT_TRUE(mentions(message_of([&] { conv1d(x, w, {}, bad.options); }), {"conv1d", bad.name, bad.value}));
    EXPECT_TRUE(mentions(message_of([&] { conv_transpose1d(x, w, {}, bad.options); }),
                         {"conv_transpose1d", bad.name, bad.value}));
  }
  const Tensor none = ones({1, 1, 0}, options());
  EXPECT_TRUE(mentions(message_of([&] { conv1d(x, none); }), {"weight", "kernel", "[1, 1, 0]"}));
  EXPECT_TRUE(mentions(message_of([&] { conv_transpose1d(x, none); }), {"weight", "kernel", "[1, 1, 0]"}));
  EXPECT_TRUE(mentions(message_of([&] { max_pool1d(x, 0); }), {"kernel_size", "0"}));
  EXPECT_TRUE(mentions(message_of([&] { max_pool1d(x, 2, {.stride = 0}); }), {"stride", "0"}));
  EXPECT_TRUE(mentions(message_of([&] { max_pool1d(x, 2, {.stride = -1}); }), {"stride", "-1"}));
  EXPECT_TRUE(mentions(message_of([&] { max_pool1d(x, 2, {.dilation = 0}); }), {"dilation", "0"}));
  EXPECT_TRUE(mentions(message_of([&] { avg_pool1d(x, 2, {.padding = -1}); }), {"padding", "-1"}));
  EXPECT_TRUE(mentions(message_of([&] { local_response_norm(x, 0); }), {"size", "0"}));
  EXPECT_TRUE(mentions(message_of([&] { group_norm(x, 0); }), {"groups", "0"}));
  EXPECT_TRUE(mentions(message_of([&] { causal_conv1d(x, w, {}, {.dilation = 0}); }), {"dilation", "0"}));
  EXPECT_THROW(split(x, IntList{0}, 2), ArgumentError);
  EXPECT_THROW(chunk(x, 0), ArgumentError);
  EXPECT_THROW(x.slice(2, 0, 8, 0), ArgumentError);
}

TEST_P(FieldArguments, LargeStridesAndDilationsAreNotCut) {
  const Tensor x = (arange(16, options()) + 1.0).reshape({1, 1, 4, 4}), w = ones({1, 1, 1, 1}, options());
  for (int64_t stride : {int64_t{65536}, (int64_t{1} << 32) + 1, INT64_MAX}) {
    EXPECT_TRUE(holds(conv2d(x, w, {}, {.stride = {stride, 1}}), {1, 2, 3, 4}));
    EXPECT_TRUE(holds(max_pool2d(x, 1, {.stride = {stride, 1}}), {1, 2, 3, 4}));
    // On both axes the product of strides left 64 bits, and backward visited as many residues as it.
    const Tensor image = x.detach().requires_grad_(), weight = w.detach().requires_grad_();
    conv2d(image, weight, {}, {.stride = stride}).backward();
    EXPECT_TRUE(holds(image.grad(), {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
    EXPECT_TRUE(holds(weight.grad(), {1}));
  }
  EXPECT_TRUE(same(max_pool2d(x, 1, {.stride = 1, .dilation = INT32_MAX}), x));
  EXPECT_TRUE(same(conv2d(x, w, {}, {.dilation = INT64_MAX}), x));
}

// Case 8. Dilation left out of the check, and division that rounds toward zero: a size of 1 where nothing fits.
TEST_P(FieldArguments, KernelLargerThanThePaddedInput) {
  const std::string dense = message_of([&] { conv2d(ones({1, 1, 2, 2}, options()), ones({2, 1, 3, 3}, options())); });
  EXPECT_TRUE(mentions(dense, {"axis 0", "padded input 2", "effective kernel 3"}));
  const std::string dilated = message_of([&] {
    conv1d(ones({1, 1, 4}, options()), ones({1, 1, 3}, options()), {}, {.stride = 2, .dilation = 2});
  });
  EXPECT_TRUE(mentions(dilated, {"axis 0", "padded input 4", "effective kernel 5"}));
  const std::string pool = message_of([&] { max_pool1d(ones({1, 1, 2}, options()), 3, {.stride = 2}); });
  EXPECT_TRUE(mentions(pool, {"axis 0", "padded input 2", "effective kernel 3"}));
}

// Case 10. Output padding must be less than the stride or the dilation, whichever is larger; a helper that forgot the
// dilation called 5 the size where 7 is.
TEST_P(FieldArguments, OutputPaddingCountsDilation) {
  const Tensor x = ones({1, 1, 3}, options()), w = ones({1, 1, 3}, options());
  const std::string text = message_of([&] { conv_transpose1d(x, w, {}, {.output_padding = 1}); });
  EXPECT_TRUE(mentions(text, {"output_padding", "axis 0", "stride 1", "dilation 1", "got 1"}));
  check({.x = x,
         .w = w,
         .options = {.dilation = 3, .output_padding = 2},
         .transposed = true,
         .y = {1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0}});
  EXPECT_EQ(output_padding_for(3, 7, 3, 2, 1, 2), 0);
  EXPECT_EQ(output_padding_for(3, 8, 3, 2, 1, 2), 1);
  EXPECT_TRUE(mentions(message_of([] { output_padding_for(3, 6, 3, 2, 1, 2); }), {"7 to 8", "got 6"}));
}

// Case 11. A message that takes one operand's type for the right one makes people cast the wrong operand. All are
// named.
TEST_P(FieldArguments, MixedOperandsAreAllNamed) {
  const Tensor x = ones({1, 1, 8}, options()), w = ones({1, 1, 3}, options()), b = ones({1}, options());
  const std::string device_text = device().str();
  EXPECT_TRUE(mentions(message_of([&] { conv1d(x.to(float64), w, b); }),
                       {"input float64", "weight float32", "bias float32", device_text}));
  EXPECT_TRUE(
      mentions(message_of([&] { conv1d(x, w, b.to(float64)); }), {"input float32", "weight float32", "bias float64"}));
  EXPECT_THROW(linear(x, ones({2, 8}, options(float64))), ArgumentError);
  EXPECT_THROW(x + x.to(float64), ArgumentError);
  if (on_gpu()) {
    EXPECT_TRUE(mentions(message_of([&] { conv1d(x, w.to(Device::cpu())); }), {"cuda:0", "cpu", "weight"}));
    EXPECT_TRUE(mentions(message_of([&] { matmul(ones({2, 2}, options()), ones({2, 2})); }), {"cuda:0", "cpu"}));
  }
}

}  // namespace
}  // namespace halo
