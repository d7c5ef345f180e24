// Field cases of normalisation, pooling and losses.
#include "field_testing.h"

namespace halo {
namespace {

using namespace testing;

using FieldNorm = Field;
INSTANTIATE_TEST_SUITE_P(Devices, FieldNorm, both_devices(), device_name);
using FieldPool = Field;
INSTANTIATE_TEST_SUITE_P(Devices, FieldPool, both_devices(), device_name);
using FieldLoss = Field;
INSTANTIATE_TEST_SUITE_P(Devices, FieldLoss, both_devices(), device_name);

// Case 58. A variance by difference of squares loses all its digits where the mean is large: 0, negative, NaN.
TEST_P(FieldNorm, LargeMeanAndSmallSpread) {
  const Tensor x = leaf(make({10000, 10001, 10002, 10003}, {4, 1}));
  const Tensor mean = zeros({1}, options()), var = zeros({1}, options());
  const Tensor y = batch_norm(x, mean, var, {}, {}, {.training = true, .momentum = 1.0});
  EXPECT_TRUE(close(y, {-1.341635, -0.447212, 0.447212, 1.341635}, 1e-5));
  EXPECT_EQ(mean.item(), 10001.5);
  EXPECT_NEAR(var.item(), 1.25 * 4 / 3, 1e-6);
  y.backward(make({1, 0, 0, 0}, {4, 1}));
  // g/std * (I - 1/n - y y' / n) with std = sqrt(1.25 + 1e-5)
  const double rstd = 1 / std::sqrt(1.25001);
  std::vector<double> expected;
  const std::vector<double> out{-1.5 * rstd, -0.5 * rstd, 0.5 * rstd, 1.5 * rstd};
  for (std::size_t i = 0; i < 4; ++i) expected.push_back(rstd * ((i == 0 ? 1 : 0) - 0.25 - out[0] * out[i] / 4));
  EXPECT_TRUE(close(x.grad(), expected, 1e-5));
  // Rows, in the other kinds of normalisation.
  EXPECT_TRUE(close(layer_norm(x.detach().reshape({1, 4}), {4}), {-1.341635, -0.447212, 0.447212, 1.341635}, 1e-5));
  EXPECT_NEAR(halo::var(x.detach()).item(), 5.0 / 3, 1e-6);
}

TEST_P(FieldNorm, EqualValuesOfAwkwardSize) {
  const Tensor x = leaf(full({100, 1}, 12345.678, options()));
  const Tensor y = batch_norm(x, {}, {}, {}, {}, {.training = true});
  EXPECT_LT(amax(abs(y)).item(), 1);
  y.backward(randn({100, 1}, options()));
  EXPECT_TRUE(std::isfinite(amax(abs(x.grad())).item()));
  const Tensor rows = layer_norm(x.detach().reshape({1, 100}), {100});
  EXPECT_LT(amax(abs(rows)).item(), 1);
}

// Case 59. The last batch of one sample turned the running variance into NaN for good; and which variance is kept.
TEST_P(FieldNorm, OneValueAChannelAndTheRunningVariance) {
  const Tensor mean = zeros({1}, options()), var = ones({1}, options());
  const Tensor alone = full({1, 1, 1, 1}, 3, options());
  EXPECT_TRUE(mentions(message_of([&] { batch_norm(alone, mean, var, {}, {}, {.training = true}); }),
                       {"batch_norm", "one value"}));
  EXPECT_TRUE(holds(mean, {0}));
  EXPECT_TRUE(holds(var, {1}));
  const Tensor y = batch_norm(make({1, 3, 8}, {3, 1}), mean, var, {}, {}, {.training = true});
  EXPECT_TRUE(close(y, {-1.019049, -0.339683, 1.358732}, 1e-5));
  EXPECT_NEAR(mean.item(), 0.4, 1e-7);
  EXPECT_NEAR(var.item(), 2.2, 1e-6);
  nn::BatchNorm fresh(2);
  fresh.to(device());
  fresh.eval();
  const Tensor x = randn({3, 2, 2}, options());
  EXPECT_TRUE(near(fresh(x), x * (1 / std::sqrt(1 + 1e-5)), 1e-6));
}

// Case 61. A window of -inf or NaN left index -1 behind, and backward wrote in front of the memory.
TEST_P(FieldPool, MaxPoolOfInfinityAndNan) {
  const float inf = INFINITY, nan = NAN;
  struct Case {
    std::vector<float> x;
    double y;
    int64_t index;
  };
  for (const Case& c : {Case{{-inf, -inf}, -inf, 0}, Case{{nan, 1}, NAN, 0}, Case{{1, nan}, NAN, 1}}) {
    const Tensor x = leaf(make(c.x, {1, 1, 2}));
    const auto [y, indices] = max_pool1d_with_indices(x, 2);
    EXPECT_TRUE(holds(y, {c.y}));
    EXPECT_EQ(indices.item(), static_cast<double>(c.index));
    y.sum().backward();
    std::vector<double> expected{0, 0};
    expected[static_cast<std::size_t>(c.index)] = 1;
    EXPECT_TRUE(holds(x.grad(), expected));
  }
  EXPECT_THROW(max_pool1d(make({-5}, {1, 1, 1}), 2), ArgumentError);
  const Tensor x = leaf(make({-5, -7}, {1, 1, 2}));
  const Tensor y = max_pool1d(x, 3, {.stride = 1, .padding = 1});
  EXPECT_TRUE(holds(y, {-5, -5}));
  y.sum().backward();
  EXPECT_TRUE(holds(x.grad(), {2, 0}));
  const Tensor adaptive = leaf(make({nan, -inf, -inf, -inf}, {1, 1, 4}));
  EXPECT_TRUE(holds(adaptive_max_pool1d(adaptive, 2), {nan, -inf}));
}

// Case 62. Windows that lie outside: a row of -inf in ceil mode, or 0/0 where the padding is as large as the kernel.
TEST_P(FieldPool, WindowsOutside) {
  const Tensor x = (arange(42, options()) + 1.0).reshape({1, 1, 6, 7});
  EXPECT_TRUE(holds(max_pool2d(x, 1, {.stride = 2, .ceil_mode = true}), {1, 3, 5, 7, 15, 17, 19, 21, 29, 31, 33, 35}));
  const Tensor one = ones({1, 1, 1}, options());
  EXPECT_TRUE(mentions(message_of([&] { max_pool1d(one, 3, {.stride = 3, .padding = 3}); }), {"padding", "half", "3"}));
  EXPECT_TRUE(mentions(message_of([&] { avg_pool1d(one, 3, {.stride = 3, .padding = 3}); }), {"padding", "half", "3"}));
}

// Case 64. Adaptive windows end at the ceiling: they overlap and differ in size where the sizes do not divide.
TEST_P(FieldPool, AdaptiveWindows) {
  const auto row = [&](int n) { return arange(n, options()).reshape({1, 1, n}); };
  EXPECT_TRUE(close(adaptive_avg_pool1d(row(10), 3), {1.5, 4.5, 7.5}, 1e-6));
  const Tensor five = leaf(row(5));
  const Tensor y = adaptive_avg_pool1d(five, 3);
  EXPECT_TRUE(close(y, {0.5, 2, 3.5}, 1e-6));
  y.sum().backward();
  const double third = 1.0 / 3;
  EXPECT_TRUE(close(five.grad(), {0.5, 0.5 + third, third, third + 0.5, 0.5}, 1e-6));
  EXPECT_TRUE(holds(adaptive_avg_pool1d(make({7, 9}, {1, 1, 2}), 4), {7, 7, 9, 9}));
  EXPECT_TRUE(holds(adaptive_max_pool1d(row(10), 3), {3, 6, 9}));
  const Tensor square = randn({1, 1, 6, 6}, options());
  EXPECT_TRUE(same(adaptive_avg_pool2d(square, {6, 6}), square));
  EXPECT_TRUE(same(adaptive_max_pool2d(square, {6, 6}), square));
  EXPECT_THROW(adaptive_avg_pool2d(square, IntList{}), ArgumentError);
}

// Case 65. Alpha divided by the window or not, even windows, windows wider than the channels: slightly wrong pretrained
// nets through three projects.
TEST_P(FieldNorm, LocalResponseNormWindows) {
  const Tensor x = make({1, 2, 3}, {1, 3, 1});
  const auto lrn = [&](int64_t n, double alpha) {
    return local_response_norm(x, n, {.alpha = alpha, .beta = 1, .k = 1});
  };
  EXPECT_TRUE(close(lrn(3, 3), {1.0 / 6, 2.0 / 15, 3.0 / 14}, 1e-6));
  EXPECT_TRUE(close(lrn(2, 2), {1.0 / 2, 1.0 / 3, 3.0 / 14}, 1e-6));
  EXPECT_TRUE(close(lrn(7, 7), {1.0 / 15, 2.0 / 15, 3.0 / 15}, 1e-6));
  const Tensor paper = local_response_norm(x, 3, {.alpha = 3, .beta = 1, .k = 1, .convention = LrnConvention::Paper});
  EXPECT_TRUE(close(paper, {1.0 / 16, 2.0 / 43, 3.0 / 40}, 1e-6));
  for (int64_t n : {1, 2, 3, 4, 7}) {
    const auto f = [&](const std::vector<Tensor>& t) { return local_response_norm(t[0], n, {.alpha = 0.7}); };
    const auto checked = gradcheck(f, {leaf(randn({2, 5, 3}, options(float64)))});
    EXPECT_TRUE(checked.ok) << n << ": " << checked.message;
  }
}

// Case 67. All targets ignored gave 0/0; ignored rows counted in the mean; large logits overflowed.
TEST_P(FieldLoss, IgnoredTargets) {
  const auto run = [&](const std::vector<int64_t>& targets, Reduction reduction) {
    const Tensor logits = leaf(make({1, 2, 3, 1, 2, 3}, {2, 3}));
    const Tensor loss = cross_entropy(logits, from_vector(targets, {2}, device()), {.reduction = reduction});
    loss.sum().backward();
    return std::pair(loss.detach(), logits.grad());
  };
  const std::vector<double> row{0.090031, 0.244728, -0.334759, 0, 0, 0};
  for (Reduction reduction : {Reduction::Mean, Reduction::Sum, Reduction::None}) {
    const auto [loss, gradient] = run({2, -100}, reduction);
    EXPECT_NEAR(loss.sum().item(), 0.407606, 1e-6);
    EXPECT_TRUE(close(gradient, row, 1e-6));
    EXPECT_TRUE(holds(gradient.select(0, 1), {0, 0, 0}));
    const auto [nothing, none] = run({-100, -100}, reduction);
    EXPECT_TRUE(all_equal(nothing, 0));
    EXPECT_TRUE(all_equal(none, 0));
  }
  const auto one = [&](std::vector<float> logits, int64_t target) {
    return cross_entropy(make(logits, {1, 2}), from_vector<int64_t>({target}, {1}, device())).item();
  };
  EXPECT_EQ(one({1000, 0}, 0), 0);
  EXPECT_EQ(one({1000, 0}, 1), 1000);
  EXPECT_EQ(one({1e4f, -1e4f}, 1), 20000);
}

// Case 68. A label outside the classes read stray memory. On the CPU it is an error that names row and label; on a GPU,
// where asking would mean waiting, its loss is NaN, nothing outside is read, and the next operation is right.
TEST_P(FieldLoss, BadLabels) {
  const Tensor logits = zeros({2, 3}, options());
  for (int64_t bad : {int64_t{3}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    const Tensor targets = from_vector<int64_t>({0, bad}, {2}, device());
    if (!on_gpu()) {
      EXPECT_TRUE(mentions(message_of([&] { cross_entropy(logits, targets); }), {"1", std::to_string(bad)}));
      EXPECT_THROW(nll_loss(logits, targets), ArgumentError);
      EXPECT_THROW(embedding(targets, ones({3, 2}, options())), ArgumentError);
      EXPECT_THROW(index_select(logits, 1, targets), ArgumentError);
      EXPECT_THROW(gather(logits, 1, targets.reshape({2, 1})), ArgumentError);
      EXPECT_THROW(scatter_add(logits, 1, targets.reshape({2, 1}), ones({2, 1})), ArgumentError);
      EXPECT_THROW(index_add(zeros({3, 1}), 0, targets, ones({2, 1})), ArgumentError);
      continue;
    }
    const auto losses = cross_entropy(logits, targets, {.reduction = Reduction::None}).to_vector<float>();
    EXPECT_NEAR(losses[0], std::log(3.0), 1e-6);
    EXPECT_TRUE(std::isnan(losses[1]));
    const auto rows = embedding(targets, ones({3, 2}, options())).to_vector<float>();
    EXPECT_EQ(rows[0], 1);
    EXPECT_TRUE(std::isnan(rows[2]));
    const Tensor column = targets.reshape({2, 1});
    EXPECT_TRUE(holds(index_select(ones({3, 1}, options()), 0, targets), {1, NAN}));
    EXPECT_TRUE(holds(gather(ones({2, 3}, options()), 1, column), {1, NAN}));
    EXPECT_TRUE(holds(scatter_add(zeros({2, 3}, options()), 1, column, ones({2, 1}, options())), {1, 0, 0, 0, 0, 0}));
    EXPECT_TRUE(holds(index_add(zeros({3, 1}, options()), 0, targets, ones({2, 1}, options())), {1, 0, 0}));
    EXPECT_TRUE(holds(nll_loss(ones({2, 3}, options()), targets, {.reduction = Reduction::None}), {-1, NAN}));
    EXPECT_TRUE(holds(conv1d(ones({1, 1, 3}, options()), ones({1, 1, 1}, options())), {1, 1, 1}));
  }
  const Tensor ignored = from_vector<int64_t>({255}, {1}, device()).expand({2});
  EXPECT_EQ(cross_entropy(logits, ignored, {.ignore_index = 255}).item(), 0);
  if (!on_gpu()) {
    const Tensor other = from_vector<int64_t>({254}, {1}).expand({2});
    EXPECT_TRUE(mentions(message_of([&] { cross_entropy(logits, other, {.ignore_index = 255}); }), {"254"}));
  }
}

}  // namespace
}  // namespace halo
