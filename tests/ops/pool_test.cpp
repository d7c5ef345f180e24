#include <halo/ops/pool.h>

#include <array>
#include <limits>

#include "tests/any_strides.h"

namespace halo {
namespace {

using testing::message_of;
using testing::near;
using testing::same;

constexpr double kInf = std::numeric_limits<double>::infinity();

Tensor line(const std::vector<float>& values) {
  return from_vector<float>(values, {1, 1, static_cast<int64_t>(values.size())});
}
Tensor flat(const Tensor& t) { return t.reshape({-1}); }

struct Window {
  std::vector<int64_t> inputs, taps;  // those inside the input
  int64_t padded = 0;
};

/// Window `o` of an axis by walking its taps.
Window naive_window(const PoolAxis& a, int64_t o) {
  Window w;
  for (int64_t i = 0; i < a.input; ++i) {
    // floor(o L / O) <= i < ceil((o + 1) L / O), without a division
    const bool inside = (i + 1) * a.output > o * a.input && i * a.output < (o + 1) * a.input;
    if (a.adaptive && inside) {
      w.taps.push_back(static_cast<int64_t>(w.inputs.size()));
      w.inputs.push_back(i);
      ++w.padded;
    }
  }
  for (int64_t t = 0; !a.adaptive && t < a.kernel; ++t) {
    const int64_t i = o * a.stride - a.padding_before + t * a.dilation;
    w.padded += i < a.input + a.padding_after;
    if (i < 0 || i >= a.input) continue;
    w.inputs.push_back(i);
    w.taps.push_back(t);
  }
  return w;
}

/// Both poolings by definition, in float64. `positions` are those of the maxima.
struct NaivePool {
  Tensor max, average, positions;
};
NaivePool naive_pool(const PoolProblem& p, const Tensor& x) {
  const auto in = x.to_vector<double>();
  std::vector<double> largest, means;
  std::vector<int64_t> where;
  const auto& a = p.axes;
  for (int64_t plane = 0; plane < p.planes(); ++plane) {
    for (int64_t d = 0; d < a[0].output; ++d) {
      for (int64_t h = 0; h < a[1].output; ++h) {
        for (int64_t w = 0; w < a[2].output; ++w) {
          const Window wd = naive_window(a[0], d), wh = naive_window(a[1], h), ww = naive_window(a[2], w);
          double best = -kInf, sum = 0;
          int64_t at = -1, count = 0;
          for (int64_t id : wd.inputs) {
            for (int64_t ih : wh.inputs) {
              for (int64_t iw : ww.inputs) {
                const int64_t position = (id * a[1].input + ih) * a[2].input + iw;
                const double value = in[static_cast<std::size_t>(plane * p.input_positions() + position)];
                if (at < 0 || value > best) {
                  best = value;
                  at = position;
                }
                sum += value;
                ++count;
              }
            }
          }
          largest.push_back(best);
          where.push_back(at);
          const int64_t padded = wd.padded * wh.padded * ww.padded;
          const int64_t divisor = p.divisor_override != 0 ? p.divisor_override : p.count_include_pad ? padded : count;
          means.push_back(sum / static_cast<double>(divisor));
        }
      }
    }
  }
  return {from_vector(largest, p.y_shape()), from_vector(means, p.y_shape()), from_vector(where, p.y_shape())};
}

std::vector<PoolProblem> problems() {
  const auto max = [](int rank, const Shape& x, const IntList& k, const MaxPoolOptions& o) {
    return PoolProblem::max("t", rank, x, k, o);
  };
  const auto average = [](int rank, const Shape& x, const IntList& k, const AvgPoolOptions& o) {
    return PoolProblem::average("t", rank, x, k, o);
  };
  return {
      max(1, {2, 3, 17}, 3, {.stride = 2, .padding = 1}),
      max(1, {1, 2, 7}, 2, {}),
      max(2, {2, 3, 13, 11}, {3, 2}, {.stride = {2, 3}, .padding = {1, 0}, .dilation = {2, 3}}),
      max(2, {1, 2, 6, 7}, 3, {.stride = 2, .padding = 1, .ceil_mode = true}),
      max(2, {1, 1, 5, 4}, 2, {.stride = 1, .auto_padding = AutoPadding::Same}),
      max(2, {2, 1, 9, 8}, {4, 3}, {.stride = {3, 5}, .auto_padding = AutoPadding::Same}),
      max(3, {1, 2, 5, 6, 7}, {2, 3, 1}, {.stride = {2, 1, 3}, .padding = {1, 1, 0}, .ceil_mode = true}),
      max(2, {1, 1, 19, 23}, 17, {.stride = 1}),  // 289 taps: more than a byte counts
      max(1, {1, 1, 5}, 1, {.stride = 7}),
      average(1, {2, 3, 11}, 3, {.stride = 2, .padding = 1, .ceil_mode = true}),
      average(2, {1, 2, 7, 6}, {3, 2}, {.padding = 1, .count_include_pad = false}),
      average(2, {1, 2, 7, 6}, 3, {.stride = 2, .padding = {1, 0}, .padding_after = {0, 1}, .divisor_override = -5}),
      average(3, {1, 2, 4, 5, 3}, {2, 3, 2}, {.stride = 1, .padding = {1, 1, 0}, .ceil_mode = true}),
      PoolProblem::adaptive("t", 1, {2, 3, 10}, 3),
      PoolProblem::adaptive("t", 2, {1, 2, 5, 2}, {3, 4}),
      PoolProblem::adaptive("t", 3, {1, 1, 3, 7, 5}, {1, 3, 5}),
  };
}

class PoolTest : public ::testing::TestWithParam<PoolProblem> {};

TEST_P(PoolTest, MatchesTheDefinition) {
  const PoisonGuard poison;
  const PoolProblem& p = GetParam();
  for (DType dtype : {float32, float64}) {
    const Tensor x = testing::random_integers(p.x_shape(), {.dtype = dtype});
    const NaivePool expected = naive_pool(p, x);
    const auto got = ops::max_pool_forward(p, x, true);
    EXPECT_TRUE(same(got.y, expected.max.to(dtype)));
    EXPECT_TRUE(same(ops::max_pool_indices(p, got.offsets), expected.positions));
    EXPECT_TRUE(same(ops::max_pool_gather(p, got.offsets, x), got.y));
    EXPECT_TRUE(near(ops::avg_pool_forward(p, x), expected.average.to(dtype), dtype == float32 ? 1e-7 : 1e-15));
    EXPECT_FALSE(near(ops::avg_pool_forward(p, x), expected.max.to(dtype) + 1.0, 1e-2));
  }
}

TEST_P(PoolTest, AxisHelpersAgree) {
  for (const PoolAxis& a : GetParam().axes) {
    for (int64_t i = 0; i < a.input; ++i) {
      const PoolRange range = a.windows_over(i);
      for (int64_t o = 0; o < a.output; ++o) {
        const Window w = naive_window(a, o);
        const auto found = std::find(w.inputs.begin(), w.inputs.end(), i);
        const bool holds = found != w.inputs.end();
        const int64_t tap = holds ? w.taps[static_cast<std::size_t>(found - w.inputs.begin())] : -1;
        EXPECT_EQ(a.tap_of(o, i), tap) << GetParam().str() << " window " << o << " input " << i;
        if (!holds) continue;
        EXPECT_EQ(a.window(o).input_at(tap), i);
        EXPECT_LT(tap, a.kernel);
        EXPECT_TRUE(range.first <= o && o <= range.last) << GetParam().str() << " window " << o << " input " << i;
      }
      EXPECT_LT(range.last, a.output);
    }
  }
}

TEST_P(PoolTest, Gradients) {
  const PoolProblem& p = GetParam();
  // Distinct values a step apart: no difference changes which is largest.
  const Tensor order = randperm(p.planes() * p.input_positions()).to(float64).reshape(p.x_shape());
  const auto max = [&](const std::vector<Tensor>& in) { return max_pool(p, in[0]); };
  const auto average = [&](const std::vector<Tensor>& in) { return avg_pool(p, in[0]); };
  testing::expect_any_strides(max, {order.to(float32)});
  testing::expect_any_strides(average, {randn(p.x_shape())});
  if (p.planes() * p.input_positions() > 300) return;  // numerical differences are for small problems
  // A factor of the input, so that there is a second derivative.
  testing::expect_gradients([&](const std::vector<Tensor>& in) { return max_pool(p, in[0]) * avg_pool(p, in[0]); },
                            {order * 0.1});
}

TEST_P(PoolTest, BitsDoNotDependOnThreads) {
  const PoolProblem& p = GetParam();
  const Tensor x = randn(p.x_shape()), g = randn(p.y_shape());
  testing::expect_thread_independent([&] {
    const auto max = ops::max_pool_forward(p, x, true);
    return std::vector<Tensor>{max.y, ops::max_pool_scatter(p, max.offsets, g), ops::avg_pool_forward(p, x),
                               ops::avg_pool_backward(p, g)};
  });
}

INSTANTIATE_TEST_SUITE_P(Problems, PoolTest, ::testing::ValuesIn(problems()));

// A window of nothing but -inf or NaN once left its index unset, and the gradient went to memory before the tensor.
TEST(MaxPool, NanWinsAndIndicesStayInside) {
  const float inf = std::numeric_limits<float>::infinity(), nan = NAN;
  const auto check = [](const Tensor& x, float value, int64_t index, const std::vector<float>& gradient) {
    const Tensor in = testing::leaf(x);
    const auto result = max_pool1d_with_indices(in, 2);
    EXPECT_TRUE(same(flat(result.output).detach(), tensor({value})));
    EXPECT_EQ(result.indices.item(), static_cast<double>(index));
    EXPECT_TRUE(same(flat(grad({result.output}, {in})[0]), from_vector(gradient, {2})));
  };
  check(line({-inf, -inf}), -inf, 0, {1, 0});
  check(line({nan, 1}), nan, 0, {1, 0});
  check(line({1, nan}), nan, 1, {0, 1});
  check(line({nan, nan}), nan, 0, {1, 0});
}

TEST(MaxPool, PaddingIsNotZero) {
  const Tensor x = testing::leaf(line({-5, -7}));
  const Tensor y = max_pool1d(x, 3, {.stride = 1, .padding = 1});
  EXPECT_TRUE(same(flat(y).detach(), tensor({-5, -5})));
  EXPECT_TRUE(same(flat(grad({y}, {x}, {ones(y.shape())})[0]), tensor({2, 0})));
}

TEST(MaxPool, TheFirstOfEqualsGetsTheGradient) {
  const Tensor x = testing::leaf(ones({1, 1, 3, 3}));
  const Tensor y = max_pool2d(x, 3);
  EXPECT_TRUE(same(flat(grad({y}, {x})[0]), tensor({1, 0, 0, 0, 0, 0, 0, 0, 0})));
}

TEST(MaxPool, CeilModeStartsInsideTheInput) {
  const Tensor x = arange(42).to(float32).reshape({1, 1, 6, 7}) + 1.0;
  const Tensor y = max_pool2d(x, 1, {.stride = 2, .ceil_mode = true});
  EXPECT_TRUE(same(y, from_vector<float>({1, 3, 5, 7, 15, 17, 19, 21, 29, 31, 33, 35}, {1, 1, 3, 4})));
  // A window longer than what is left of the input is cut.
  EXPECT_TRUE(same(flat(max_pool1d(line({3, 4}), 3, {.stride = 2, .ceil_mode = true})), tensor({4})));
}

TEST(MaxPool, SameKeepsTheSize) {
  EXPECT_EQ(max_pool2d(zeros({1, 3, 16, 16}), 2, {.stride = 1, .auto_padding = AutoPadding::Same}).shape(),
            (Shape{1, 3, 16, 16}));
  // The odd padding lies after.
  EXPECT_TRUE(
      same(flat(max_pool1d(line({1, 3, 2}), 2, {.stride = 1, .auto_padding = AutoPadding::Same})), tensor({3, 3, 2})));
}

TEST(MaxPool, HugeStridesAndDilationsDoNotWrap) {
  const Tensor x = arange(16).to(float32).reshape({1, 1, 4, 4});
  EXPECT_TRUE(same(max_pool2d(x, 1, {.stride = 1, .dilation = (int64_t{1} << 31) - 1}), x));
  EXPECT_TRUE(same(flat(max_pool2d(x, 1, {.stride = {(int64_t{1} << 32) + 1, 1}})), tensor({0, 1, 2, 3})));
  EXPECT_TRUE(same(flat(avg_pool2d(x, 1, {.stride = {INT64_MAX, 2}, .ceil_mode = true})), tensor({0, 2})));
}

TEST(Pool, RefusesWhatDoesNotFit) {
  const Tensor x = zeros({1, 1, 8});
  for (const int64_t bad : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    EXPECT_NE(message_of([&] { max_pool1d(x, bad); }).find("max_pool1d: kernel_size expects"), std::string::npos);
    EXPECT_NE(message_of([&] { avg_pool1d(x, 2, {.stride = bad}); }).find("avg_pool1d: stride expects"),
              std::string::npos);
    EXPECT_NE(message_of([&] { max_pool1d(x, 2, {.dilation = bad}); }).find("dilation expects"), std::string::npos);
  }
  EXPECT_NE(message_of([&] { max_pool1d(x, 2, {.padding = -1}); }).find("padding expects"), std::string::npos);
  EXPECT_NE(message_of([&] { max_pool1d(line({-5}), 2); }).find("effective kernel 2"), std::string::npos);
  EXPECT_NE(message_of([&] {
              max_pool2d(zeros({1, 1, 2, 2}), 3, {.stride = 2});
            }).find("effective kernel 3"),
            std::string::npos);
  const Tensor one = ones({1, 1, 1, 1});
  EXPECT_NE(message_of([&] { max_pool2d(one, 3, {.stride = 3, .padding = 3}); }).find("half of the effective kernel 3"),
            std::string::npos);
  EXPECT_NE(message_of([&] { avg_pool2d(one, 3, {.stride = 3, .padding = 3}); }).find("half of the effective kernel 3"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              max_pool1d(line({1, 2}), 2, {.padding = 1, .dilation = 3});
            }).find("has none"),
            std::string::npos);
  EXPECT_NE(message_of([&] { adaptive_avg_pool2d(one, IntList{}); }).find("output_size expects"), std::string::npos);
  EXPECT_NE(message_of([&] { max_pool2d(x, 2); }).find("input expects 4 axes"), std::string::npos);
  EXPECT_NE(message_of([&] { max_pool1d(zeros({2, 3, 0}), 1); }).find("spatial extents"), std::string::npos);
  EXPECT_NE(message_of([&] { avg_pool1d(x, 2, {.divisor_override = 0}); }).find("divisor_override"), std::string::npos);
  EXPECT_NE(message_of([&] { max_pool1d(x.to(int64), 2); }).find("max_pool1d: input expected a floating dtype"),
            std::string::npos);
}

TEST(AdaptivePool, WindowsOverlapAndVary) {
  EXPECT_TRUE(same(flat(adaptive_avg_pool1d(line({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), 3)), tensor({1.5, 4.5, 7.5})));
  const Tensor x = testing::leaf(line({0, 1, 2, 3, 4}));
  const Tensor y = adaptive_avg_pool1d(x, 3);
  EXPECT_TRUE(same(flat(y).detach(), tensor({.5, 2, 3.5})));
  const float third = 1.0f / 3;
  EXPECT_TRUE(
      near(flat(grad({y}, {x}, {ones(y.shape())})[0]), tensor({.5f, .5f + third, third, third + .5f, .5f}), 1e-7));
  EXPECT_TRUE(same(flat(adaptive_avg_pool1d(line({7, 9}), 4)), tensor({7, 7, 9, 9})));
  EXPECT_TRUE(same(flat(adaptive_max_pool1d(line({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), 3)), tensor({3, 6, 9})));
  const Tensor image = randn({1, 1, 6, 6});
  EXPECT_TRUE(same(adaptive_avg_pool2d(image, 6), image));
  EXPECT_TRUE(same(adaptive_max_pool2d(image, {6, 6}), image));
  EXPECT_EQ(adaptive_avg_pool2d(image, {0, 3}).shape(), (Shape{1, 1, 0, 3}));
  EXPECT_EQ(adaptive_max_pool2d_with_indices(image, {1, 1}).indices.shape(), (Shape{1, 1, 1, 1}));
}

TEST(Pool, EmptyBatchesAndChannels) {
  const PoisonGuard poison;
  for (const Shape& shape : {Shape{0, 3, 5, 5}, Shape{2, 0, 5, 5}}) {
    const Tensor x = testing::leaf(zeros(shape));
    for (const Tensor& y : {max_pool2d(x, 2), avg_pool2d(x, 2), adaptive_max_pool2d(x, 3)}) {
      EXPECT_EQ(y.numel(), 0);
      EXPECT_EQ(grad({y}, {x}, {ones(y.shape())})[0].shape(), shape);
    }
  }
}

}  // namespace
}  // namespace halo
