#include <halo/ops/norm.h>

#include "tests/any_strides.h"

namespace halo {
namespace {

using testing::message_of;
using testing::near;
using testing::same;
const TensorOptions kDouble{.dtype = float64};

/// Normalised over `dims` by definition.
Tensor naive(const Tensor& x, const Shape& dims, double eps = 1e-5) {
  const Tensor centered = x - mean(x, dims, true);
  return centered / sqrt(mean(centered * centered, dims, true) + eps);
}

TEST(BatchNorm, MatchesTheDefinition) {
  for (const Shape& shape : {Shape{5, 3}, Shape{4, 3, 7}, Shape{2, 3, 5, 4}, Shape{2, 3, 2, 3, 4}, Shape{1, 3, 2}}) {
    const Tensor x = randn(shape, kDouble) * 3.0 + 2.0, w = randn({3}, kDouble), b = randn({3}, kDouble);
    const Tensor flat = x.reshape({shape[0], 3, -1});
    const Tensor expected = (naive(flat, {0, 2}) * w.reshape({3, 1}) + b.reshape({3, 1})).reshape(shape);
    EXPECT_TRUE(near(batch_norm(x, {}, {}, w, b, {.training = true}), expected, 1e-14));
    EXPECT_TRUE(near(batch_norm(x.to(float32), {}, {}, w.to(float32), b.to(float32), {.training = true}),
                     expected.to(float32), 3e-7));
    EXPECT_FALSE(near(batch_norm(x, {}, {}, w, b, {.training = true, .eps = 1e-2}), expected, 1e-5));
    const Tensor mean = randn({3}, kDouble), var = rand({3}, kDouble) + 0.5;
    const Tensor evaluated =
        ((flat - mean.reshape({3, 1})) / sqrt(var.reshape({3, 1}) + 1e-5) * w.reshape({3, 1}) + b.reshape({3, 1}))
            .reshape(shape);
    EXPECT_TRUE(near(batch_norm(x, mean, var, w, b), evaluated, 1e-14));
  }
}

// E[x^2] - E[x]^2 in float32 gives variance 0 here, and outputs of 474.
TEST(BatchNorm, LargeMeansDoNotCancel) {
  const Tensor x = testing::leaf(from_vector<float>({10000, 10001, 10002, 10003}, {4, 1}));
  const Tensor y = batch_norm(x, {}, {}, {}, {}, {.training = true});
  EXPECT_TRUE(near(y.reshape({4}).detach(), tensor({-1.341635f, -0.447212f, 0.447212f, 1.341635f}), 1e-6));
  const Tensor dx = grad({y}, {x}, {from_vector<float>({1, 0, 0, 0}, {4, 1})})[0];
  const Tensor wide = testing::leaf(x.detach().to(float64));
  const Tensor expected = grad({batch_norm(wide, {}, {}, {}, {}, {.training = true})}, {wide},
                               {from_vector<double>({1, 0, 0, 0}, {4, 1})})[0];
  EXPECT_TRUE(near(dx, expected.to(float32), 1e-6));

  const Tensor equal = testing::leaf(full({100, 1}, 12345.678));
  const Tensor z = batch_norm(equal, {}, {}, {}, {}, {.training = true});
  EXPECT_TRUE(near(z.detach(), zeros({100, 1}), 1e-6));
  EXPECT_TRUE(std::isfinite(grad({z}, {equal}, {randn({100, 1})})[0].sum().item()));
}

// The mean kept for backward is rounded to float32: at 1000 that is 3e-5, a hundred times the bound.
TEST(BatchNorm, GradientsSurviveARoundedMean) {
  const Tensor x = randn({64, 2, 3}, kDouble) + 1000.123, g = randn({64, 2, 3});
  const auto gradient = [](const Tensor& at, const Tensor& up, bool rows) {
    const Tensor in = testing::leaf(at), w = testing::leaf(full({2}, 1.5, at.options()));
    const Tensor y = rows ? instance_norm(in, w) : batch_norm(in, {}, {}, w, {}, {.training = true});
    return grad({y}, {in, w}, {up});
  };
  for (bool rows : {false, true}) {
    const Tensor rounded = x.to(float32);
    const auto got = gradient(rounded, g, rows), expected = gradient(rounded.to(float64), g.to(float64), rows);
    for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(near(got[i], expected[i].to(float32), 2e-7)) << i;
  }
}

TEST(BatchNorm, RunningStatistics) {
  const Tensor x = from_vector<float>({1, 3, 8}, {3, 1});
  const Tensor mean = zeros({1}), var = ones({1});
  const Tensor y = batch_norm(x, mean, var, {}, {}, {.training = true});
  EXPECT_TRUE(near(y.reshape({3}), tensor({-1.019049f, -0.339683f, 1.358732f}), 1e-6));
  EXPECT_TRUE(near(mean, tensor({0.4f}), 1e-7));
  EXPECT_TRUE(near(var, tensor({2.2f}), 1e-7));  // n - 1 in the divisor; 1.76667 with n

  // No momentum: the average of all batches so far.
  const Tensor total = zeros({1}), ignored = ones({1});
  for (int64_t i = 0; i < 3; ++i) {
    const Tensor batch = from_vector<float>({static_cast<float>(i), static_cast<float>(i) + 2}, {2, 1});
    batch_norm(batch, total, ignored, {}, {}, {.training = true, .momentum = {}, .batches_before = i});
  }
  EXPECT_TRUE(near(total, tensor({2}), 1e-6));
  EXPECT_TRUE(near(ignored, tensor({2}), 1e-6));

  // Running values that are views of something larger, and a saved tensor that notices the change.
  const Tensor wide = testing::strided_copy(zeros({1})), wide_var = testing::strided_copy(ones({1}));
  const uint64_t version = wide.storage()->version();
  batch_norm(x, wide, wide_var, {}, {}, {.training = true});
  EXPECT_TRUE(same(wide.contiguous(), mean));
  EXPECT_TRUE(same(wide_var.contiguous(), var));
  EXPECT_GT(wide.storage()->version(), version);

  // Before any training step the running values are mean 0, variance 1.
  EXPECT_TRUE(near(batch_norm(x, zeros({1}), ones({1})), x, 1e-5));
}

TEST(BatchNorm, OneValueAChannelIsRefusedAndEmptyBatchesChangeNothing) {
  const PoisonGuard poison;
  const Tensor mean = full({1}, 5), var = full({1}, 7);
  const std::string text = message_of([&] {
    batch_norm(full({1, 1, 1, 1}, 3), mean, var, {}, {}, {.training = true});
  });
  EXPECT_NE(text.find("more than one value a channel, got input [1, 1, 1, 1]"), std::string::npos);
  const Tensor x = testing::leaf(zeros({0, 1, 4})), w = testing::leaf(ones({1})), b = testing::leaf(ones({1}));
  for (bool graph : {false, true}) {
    const Tensor y = batch_norm(x, mean, var, w, b, {.training = true});
    const auto grads = grad({y}, {x, w, b}, {zeros({0, 1, 4})}, {.create_graph = graph});
    EXPECT_EQ(grads[0].shape(), x.shape());
    EXPECT_TRUE(same(grads[1].detach(), zeros({1})));
    EXPECT_TRUE(same(grads[2].detach(), zeros({1})));
  }
  EXPECT_TRUE(same(mean, full({1}, 5)));
  EXPECT_TRUE(same(var, full({1}, 7)));
  EXPECT_EQ(batch_norm(zeros({2, 0, 4}), {}, {}, {}, {}, {.training = true}).numel(), 0);
}

TEST(BatchNorm, ManyChannelsOfTwoValues) {
  const Tensor sign = from_vector<float>({1, -1}, {2, 1}).expand({2, 65537});
  const Tensor mean = zeros({65537}), var = ones({65537});
  const Tensor y = batch_norm(sign, mean, var, {}, {}, {.training = true});
  EXPECT_TRUE(near(y, sign * 0.999995, 1e-7));
  EXPECT_TRUE(same(mean, zeros({65537})));
  EXPECT_TRUE(near(var, full({65537}, 1.1), 1e-7));
}

TEST(BatchNorm, Gradients) {
  for (bool training : {true, false}) {
    const auto f = [=](const std::vector<Tensor>& in) {
      const Tensor mean = full({3}, 0.2, in[0].options()), var = full({3}, 1.7, in[0].options());
      return batch_norm(in[0], mean, var, in.size() > 1 ? in[1] : Tensor(), in.size() > 1 ? in[2] : Tensor(),
                        {.training = training});
    };
    for (const Shape& shape : {Shape{4, 3}, Shape{2, 3, 5}, Shape{2, 3, 2, 2}}) {
      const Tensor x = randn(shape, kDouble), w = randn({3}, kDouble), b = randn({3}, kDouble);
      testing::expect_gradients(f, {x, w, b});
      testing::expect_gradients(f, {x});
      testing::expect_any_strides(f, {x.to(float32), w.to(float32), b.to(float32)});
    }
  }
}

TEST(BatchNorm, RefusesWhatDoesNotFit) {
  const Tensor x = zeros({2, 3, 4});
  EXPECT_NE(message_of([&] { batch_norm(x, {}, {}); }).find("evaluation expects running_mean"), std::string::npos);
  EXPECT_NE(message_of([&] { batch_norm(x, zeros({3}), {}); }).find("together"), std::string::npos);
  EXPECT_NE(message_of([&] { batch_norm(x, zeros({2}), ones({2})); }).find("running_mean expects shape [3]"),
            std::string::npos);
  EXPECT_NE(message_of([&] { batch_norm(x, zeros({3}), ones({3}), ones({3}, kDouble)); }).find("weight float64"),
            std::string::npos);
  EXPECT_NE(message_of([&] { group_norm(zeros({2, 6, 4}), 4); }).find("divisor of the 6 channels"), std::string::npos);
  EXPECT_NE(message_of([&] { group_norm(zeros({2, 6, 4}), 0); }).find("num_groups"), std::string::npos);
  EXPECT_NE(message_of([&] { layer_norm(x, {3}); }).find("last extents of input [2, 3, 4], got [3]"),
            std::string::npos);
  EXPECT_NE(message_of([&] { layer_norm(x, {4}, ones({3})); }).find("weight expects shape [4]"), std::string::npos);
  EXPECT_NE(message_of([&] { layer_norm(x, {}); }).find("normalized_shape"), std::string::npos);
  EXPECT_NE(message_of([&] { instance_norm(zeros({2, 3})); }).find("at least 3 axes"), std::string::npos);
}

TEST(RowNorm, MatchesTheDefinition) {
  const Tensor x = randn({3, 6, 5, 7}, kDouble) * 2.0 - 1.0;
  EXPECT_TRUE(near(layer_norm(x, {7}), naive(x, {3}), 1e-14));
  const Tensor w = randn({5, 7}, kDouble), b = randn({5, 7}, kDouble);
  EXPECT_TRUE(near(layer_norm(x, {5, 7}, w, b), naive(x, {2, 3}) * w + b, 1e-14));
  const Tensor cw = randn({6}, kDouble), cb = randn({6}, kDouble);
  const auto affine = [&](const Tensor& t) {
    return t.reshape({3, 6, 5, 7}) * cw.reshape({6, 1, 1}) + cb.reshape({6, 1, 1});
  };
  for (int64_t groups : {1, 2, 3, 6}) {
    const Tensor expected = affine(naive(x.reshape({3, groups, -1}), {2}));
    EXPECT_TRUE(near(group_norm(x, groups, cw, cb), expected, 1e-14));
    EXPECT_TRUE(near(group_norm(x.to(float32), groups, cw.to(float32), cb.to(float32)), expected.to(float32), 3e-7));
    EXPECT_FALSE(near(group_norm(x, 7 - groups == 1 ? 1 : 6, cw, cb), groups == 6 ? x : expected, 1e-3));
  }
  EXPECT_TRUE(near(instance_norm(x, cw, cb), affine(naive(x, {2, 3})), 1e-14));
  const Tensor large = x.to(float32) + 30000.0;
  EXPECT_TRUE(near(layer_norm(large, {7}), naive(large.to(float64), {3}).to(float32), 1e-6));
}

TEST(RowNorm, OneValueARowGivesTheBias) {
  EXPECT_TRUE(same(instance_norm(full({2, 3, 1}, 4), {}, full({3}, 0.5)), full({2, 3, 1}, 0.5)));
  EXPECT_TRUE(same(layer_norm(full({2, 1}, 4), {1}), zeros({2, 1})));
}

TEST(RowNorm, Gradients) {
  const auto layer = [](const std::vector<Tensor>& in) { return layer_norm(in[0], {3, 4}, in[1], in[2]); };
  const auto plain = [](const std::vector<Tensor>& in) { return layer_norm(in[0], {4}); };
  const auto group = [](const std::vector<Tensor>& in) { return group_norm(in[0], 2, in[1], in[2]); };
  const auto instance = [](const std::vector<Tensor>& in) { return instance_norm(in[0], in[1], in[2]); };
  const Tensor x = randn({2, 3, 4}, kDouble), y = randn({2, 4, 3}, kDouble);
  const Tensor w = randn({3, 4}, kDouble), b = randn({3, 4}, kDouble);
  const Tensor cw = randn({4}, kDouble), cb = randn({4}, kDouble);
  testing::expect_gradients(layer, {x, w, b});
  testing::expect_gradients(plain, {x});
  testing::expect_gradients(group, {y, cw, cb});
  testing::expect_gradients(instance, {y, cw, cb});
  const auto f = [](const Tensor& t) { return t.to(float32); };
  testing::expect_any_strides(layer, {f(x), f(w), f(b)});
  testing::expect_any_strides(group, {f(y), f(cw), f(cb)});
  testing::expect_any_strides(instance, {f(y), f(cw), f(cb)});
}

TEST(RowNorm, EmptyInputsHaveZeroParameterGradients) {
  const PoisonGuard poison;
  for (bool graph : {false, true}) {
    const Tensor x = testing::leaf(zeros({0, 4, 3})), w = testing::leaf(ones({4})), b = testing::leaf(ones({4}));
    const auto grads = grad({group_norm(x, 2, w, b)}, {x, w, b}, {zeros({0, 4, 3})}, {.create_graph = graph});
    EXPECT_EQ(grads[0].shape(), x.shape());
    EXPECT_TRUE(same(grads[1].detach(), zeros({4})));
    EXPECT_TRUE(same(grads[2].detach(), zeros({4})));
  }
  EXPECT_EQ(layer_norm(zeros({3, 0}), {0}).shape(), (Shape{3, 0}));
  EXPECT_EQ(instance_norm(zeros({3, 0, 2})).shape(), (Shape{3, 0, 2}));
}

TEST(Norm, BitsDoNotDependOnThreads) {
  const Tensor x = randn({7, 130, 33}), g = randn({7, 130, 33}), w = randn({130});
  const BatchNormProblem batch{.batch = 7, .channels = 130, .positions = 33};
  const RowNormProblem rows{.rows = 14, .groups = 2, .channels_per_row = 65, .positions = 33};
  testing::expect_thread_independent([&] {
    const auto a = ops::batch_norm_forward(batch, x, w, {}, {}, {});
    const auto b = ops::batch_norm_backward(batch, g, x, w, a.mean, a.rstd);
    const auto c = ops::row_norm_forward(rows, x, w, {});
    const auto d = ops::row_norm_backward(rows, g, x, w, c.mean, c.rstd);
    return std::vector<Tensor>{a.y, b.x, b.weight, b.bias, c.y, d.x, d.weight, d.bias};
  });
}

}  // namespace
}  // namespace halo
