#include "tests/testing.h"

namespace halo::testing {
namespace {

TEST(ConvLayer, IsTheFunctionWithItsParameters) {
  manual_seed(1);
  nn::Conv2d conv(6, 4, {3, 2}, {.stride = 2, .padding = {1, 0}, .dilation = {1, 2}, .groups = 2});
  EXPECT_EQ(conv.weight.shape(), Shape({4, 3, 3, 2}));
  const Tensor x = randn({2, 6, 7, 9});
  EXPECT_TRUE(same(
      conv(x), conv2d(x, conv.weight, conv.bias, {.stride = 2, .padding = {1, 0}, .dilation = {1, 2}, .groups = 2})));
  nn::Conv1d plain(2, 3, 5, {.bias = false});
  EXPECT_FALSE(plain.bias.defined());
  EXPECT_EQ(plain.parameters().size(), 1u);
  EXPECT_EQ(nn::Conv3d(2, 3, 3)(randn({1, 2, 4, 5, 6})).shape(), Shape({1, 3, 2, 3, 4}));
}

TEST(ConvLayer, DefaultsAreUniformWithinTheFan) {
  manual_seed(2);
  nn::Conv2d conv(16, 32, 5);
  const double bound = 1 / std::sqrt(16 * 25.0);
  for (const Tensor& t : {conv.weight, conv.bias}) {
    EXPECT_LE(amax(abs(t.detach())).item(), bound);
    EXPECT_GT(amax(abs(t.detach())).item(), 0.8 * bound);
  }
}

TEST(ConvLayer, PaddingModes) {
  manual_seed(3);
  const Tensor x = randn({2, 3, 7, 6});
  const std::pair<nn::PaddingMode, PadMode> modes[] = {{nn::PaddingMode::Reflect, PadMode::Reflect},
                                                       {nn::PaddingMode::Replicate, PadMode::Replicate},
                                                       {nn::PaddingMode::Circular, PadMode::Circular}};
  for (const auto& [mode, padded] : modes) {
    nn::Conv2d conv(3, 2, 3, {.padding = {1, 2}, .padding_after = {2, 0}, .padding_mode = mode});
    EXPECT_TRUE(same(conv(x), conv2d(pad(x, {2, 0, 1, 2}, padded), conv.weight, conv.bias)));
    EXPECT_FALSE(same(conv(x), conv2d(pad(x, {0, 2, 1, 2}, padded), conv.weight, conv.bias)));
    // Strided 'same': 7 rows need 1 and 1 more, 6 columns of a kernel of 4 need 1 and 1.
    nn::Conv2d strided(3, 2, {3, 4}, {.stride = 2, .auto_padding = AutoPadding::Same, .padding_mode = mode});
    EXPECT_EQ(strided(x).shape(), Shape({2, 2, 4, 3}));
    EXPECT_TRUE(same(strided(x), conv2d(pad(x, {1, 1, 1, 1}, padded), strided.weight, strided.bias, {.stride = 2})));
  }
  nn::Conv1d causal(3, 3, 3, {.dilation = 2, .auto_padding = AutoPadding::Causal});
  EXPECT_EQ(causal(randn({1, 3, 11})).shape(), Shape({1, 3, 11}));
}

TEST(ConvLayer, FusedActivation) {
  manual_seed(4);
  nn::Conv2d conv(3, 4, 3, {.activation = {ActivationKind::Relu}});
  const Tensor x = randn({1, 3, 5, 5});
  const Tensor recorded = conv(x);
  EXPECT_TRUE(recorded.requires_grad());
  const NoGradGuard guard;
  EXPECT_TRUE(near(conv(x), recorded.detach(), 1e-6));
  EXPECT_EQ(amin(conv(x)).item(), 0);
}

TEST(ConvLayer, Refusals) {
  message_of([] { nn::Conv2d(3, 4, 3, {.groups = 2}); });
  message_of([] { nn::Conv2d(4, 3, 3, {.groups = 2}); });
  message_of([] { nn::Conv2d(4, 4, 3, {.groups = 0}); });
  message_of([] { nn::Conv2d(4, 4, {3, 3, 3}); });
  message_of([] { nn::Conv2d(4, 4, 0); });
  message_of([] { nn::Conv2d(0, 4, 3); });
  message_of([] { nn::ConvTranspose2d(3, 4, 3, {.groups = 2}); });
  nn::Conv2d conv(3, 4, 3);
  message_of([&] { conv(randn({1, 2, 5, 5})); });
}

TEST(ConvTransposeLayer, IsTheFunctionWithItsParameters) {
  manual_seed(5);
  nn::ConvTranspose2d up(4, 6, 3, {.stride = 2, .padding = 1, .output_padding = 1, .groups = 2});
  EXPECT_EQ(up.weight.shape(), Shape({4, 3, 3, 3}));
  const Tensor x = randn({2, 4, 5, 4});
  EXPECT_TRUE(same(
      up(x), conv_transpose2d(x, up.weight, up.bias, {.stride = 2, .padding = 1, .output_padding = 1, .groups = 2})));
  EXPECT_EQ(up(x).shape(), Shape({2, 6, 10, 8}));
  EXPECT_EQ(nn::ConvTranspose1d(2, 3, 4, {.stride = 2, .bias = false})(randn({1, 2, 3})).shape(), Shape({1, 3, 8}));
  EXPECT_EQ(nn::ConvTranspose3d(2, 3, 3)(randn({1, 2, 3, 4, 5})).shape(), Shape({1, 3, 5, 6, 7}));
}

TEST(Layers, LinearAndEmbedding) {
  manual_seed(6);
  nn::Linear head(5, 3);
  const Tensor x = randn({2, 7, 5});
  EXPECT_TRUE(same(head(x), linear(x, head.weight, head.bias)));
  EXPECT_LE(amax(abs(head.weight.detach())).item(), 1 / std::sqrt(5.0));
  EXPECT_FALSE(nn::Linear(5, 3, false).bias.defined());
  nn::Embedding table(10, 4, -1);
  const Tensor rows = table(from_vector<int64_t>({9, 1, 1}, {3}));
  EXPECT_TRUE(same(rows[0].detach(), zeros({4})));
  sum(rows).backward();
  EXPECT_EQ(sum(table.weight.grad()).item(), 8);
  EXPECT_EQ(sum(table.weight.grad()[9]).item(), 0);
  message_of([] { nn::Embedding(10, 4, 10); });
  message_of([] { nn::Linear(0, 3); });
}

TEST(Layers, BatchNormKeepsRunningStatistics) {
  manual_seed(7);
  nn::BatchNorm2d norm(3);
  const Tensor x = randn({4, 3, 5, 5}) * 2 + 1;
  const Tensor y = norm(x);
  EXPECT_NEAR(mean(y).item(), 0, 1e-6);
  EXPECT_EQ(norm.num_batches_tracked.item(), 1);
  EXPECT_TRUE(near(norm.running_mean, mean(x, {0, 2, 3}) * 0.1, 1e-6));
  norm.eval();
  EXPECT_TRUE(near(norm(x), batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias), 1e-7));
  EXPECT_FALSE(near(norm(x), y, 1e-3));
  EXPECT_EQ(norm.num_batches_tracked.item(), 1);
  const StateDict state = norm.state_dict();
  EXPECT_EQ(state.size(), 5u);
  EXPECT_EQ(state.at("num_batches_tracked").dtype(), int64);
  norm.train();
  norm.to(float64);
  EXPECT_EQ(norm.num_batches_tracked.dtype(), int64);
  norm(x.to(float64));
  EXPECT_EQ(norm.num_batches_tracked.item(), 2);
}

TEST(Layers, BatchNormCumulativeAndUntracked) {
  manual_seed(8);
  nn::BatchNorm1d average(2, {.momentum = std::nullopt, .affine = false});
  EXPECT_TRUE(average.parameters().empty());
  const Tensor a = randn({8, 2}), b = randn({8, 2}) + 3;
  average(a);
  average(b);
  EXPECT_TRUE(near(average.running_mean, (mean(a, {0}) + mean(b, {0})) * 0.5, 1e-6));
  nn::BatchNorm1d untracked(2, {.track_running_stats = false});
  untracked.eval();
  EXPECT_NEAR(mean(untracked(b)).item(), 0, 1e-6);
  EXPECT_EQ(untracked.state_dict().size(), 2u);
}

TEST(Layers, OtherNorms) {
  manual_seed(9);
  const Tensor x = randn({2, 6, 5});
  nn::LayerNorm last(5);
  nn::LayerNorm two(Shape{6, 5}, 1e-3);
  nn::GroupNorm groups(3, 6);
  nn::InstanceNorm instance(6), affine(6, 1e-5, true);
  EXPECT_TRUE(same(last(x), layer_norm(x, {5}, last.weight, last.bias)));
  EXPECT_TRUE(same(two(x), layer_norm(x, {6, 5}, two.weight, two.bias, 1e-3)));
  EXPECT_TRUE(same(groups(x), group_norm(x, 3, groups.weight, groups.bias)));
  EXPECT_TRUE(same(instance(x), instance_norm(x)));
  EXPECT_EQ(instance.parameters().size(), 0u);
  EXPECT_EQ(affine.parameters().size(), 2u);
  EXPECT_TRUE(same(nn::LocalResponseNorm(5, {.k = 2})(x), local_response_norm(x, 5, {.k = 2})));
  message_of([] { nn::GroupNorm(4, 6); });
  message_of([&] { nn::InstanceNorm(5)(x); });
}

TEST(Layers, Pools) {
  const Tensor x = randn({2, 3, 7, 8});
  EXPECT_TRUE(same(nn::MaxPool2d(3, {.stride = 2})(x), max_pool2d(x, 3, {.stride = 2})));
  EXPECT_TRUE(same(nn::AvgPool2d({2, 3})(x), avg_pool2d(x, {2, 3})));
  EXPECT_TRUE(same(nn::AdaptiveAvgPool2d({3, 2})(x), adaptive_avg_pool2d(x, {3, 2})));
  EXPECT_TRUE(same(nn::AdaptiveMaxPool2d(2)(x), adaptive_max_pool2d(x, 2)));
  EXPECT_EQ(nn::MaxPool1d(2)(randn({1, 2, 6})).shape(), Shape({1, 2, 3}));
  EXPECT_EQ(nn::AvgPool3d(2)(randn({1, 2, 4, 4, 4})).shape(), Shape({1, 2, 2, 2, 2}));
  message_of([&] { nn::MaxPool1d(2)(x); });
}

TEST(Layers, DropoutActivationsAndFlatten) {
  manual_seed(10);
  const Tensor x = randn({4, 5, 6});
  nn::Sequential net(nn::Dropout(0.5), nn::Flatten());
  EXPECT_EQ(net(x).shape(), Shape({4, 30}));
  EXPECT_FALSE(same(net(x), x.flatten(1)));
  net.eval();
  EXPECT_TRUE(same(net(x), x.flatten(1)));
  Generator generator(3);
  nn::Dropout own(0.5, generator);
  const Tensor first = own(x);
  generator.manual_seed(3);
  EXPECT_TRUE(same(own(x), first));
  EXPECT_TRUE(same(nn::ReLU()(x), relu(x)));
  EXPECT_TRUE(same(nn::LeakyReLU(0.2)(x), leaky_relu(x, 0.2)));
  EXPECT_TRUE(same(nn::GELU(GeluForm::Tanh)(x), gelu(x, GeluForm::Tanh)));
  EXPECT_TRUE(same(nn::SiLU()(x), silu(x)));
  EXPECT_TRUE(same(nn::Sigmoid()(x), sigmoid(x)));
  EXPECT_TRUE(same(nn::Tanh()(x), tanh(x)));
  EXPECT_TRUE(same(nn::Softplus()(x), softplus(x)));
  EXPECT_TRUE(same(nn::Identity()(x), x));
  message_of([] { nn::Dropout(1.5); });
}

// The ten lines that a user writes first.
struct Net : nn::Module {
  nn::Sequential& features = register_module(
      "features", nn::Sequential(nn::Conv2d(1, 8, 3, {.padding = 1, .bias = false}), nn::BatchNorm2d(8), nn::ReLU(),
                                 nn::MaxPool2d(2), nn::Conv2d(8, 8, 3, {.padding = 1}), nn::ReLU()));
  nn::Linear& head = register_module("head", nn::Linear(8, 2));
  Tensor forward(const Tensor& x) override { return head(mean(features(x), {2, 3})); }
};

TEST(Layers, ASmallNetLearns) {
  manual_seed(11);
  Net net;
  optim::AdamW adam(net.parameters(), {.lr = 0.02});
  // Class 1 has horizontal stripes, class 0 vertical ones.
  const Tensor stripes = (arange(8, {.dtype = float32}).reshape({1, 1, 8, 1}) * 3.14159265).expand({8, 1, 8, 8});
  const Tensor images = cat({cos(stripes), cos(stripes.transpose(2, 3))}) + randn({16, 1, 8, 8}) * 0.3;
  const Tensor target = cat({ones({8}, {.dtype = int64}), zeros({8}, {.dtype = int64})});
  double first = 0, last = 0;
  for (int step = 0; step < 30; ++step) {
    adam.zero_grad();
    const Tensor loss = cross_entropy(net(images), target);
    loss.backward();
    adam.step();
    (step == 0 ? first : last) = loss.item();
  }
  EXPECT_GT(first, 0.5);
  EXPECT_LT(last, 0.1);
  net.eval();
  EXPECT_TRUE(same(argmax(net(images), 1), target));
}

}  // namespace
}  // namespace halo::testing
