#include <halo/ops/long_conv.h>

#include <numbers>

#include "ops/cpu/fft.h"
#include "tests/any_strides.h"

namespace halo {
namespace {

using testing::near;
using testing::same;
const TensorOptions kDouble{.dtype = float64};

Tensor row(const std::vector<float>& values) {
  return from_vector<float>(values, {1, 1, static_cast<int64_t>(values.size())});
}
Tensor filter(const std::vector<float>& values) {
  return from_vector<float>(values, {1, static_cast<int64_t>(values.size())});
}

/// y[t] = sum_k w[k] x[t - k + center] in float64.
Tensor naive(const Tensor& x, const Tensor& w, bool causal) {
  const int64_t batch = x.size(0), channels = x.size(1), length = x.size(2), kernel = w.size(1);
  const auto in = x.to_vector<double>(), taps = w.to_vector<double>();
  std::vector<double> out;
  for (int64_t row = 0; row < batch * channels; ++row) {
    for (int64_t t = 0; t < length; ++t) {
      double sum = 0;
      for (int64_t k = 0; k < kernel; ++k) {
        const int64_t s = t - k + (causal ? 0 : kernel / 2);
        if (s < 0 || s >= length) continue;
        sum += taps[static_cast<std::size_t>(row % channels * kernel + k)] *
               in[static_cast<std::size_t>(row * length + s)];
      }
      out.push_back(sum);
    }
  }
  return from_vector(out, x.shape());
}

constexpr LongConvMethod kMethods[] = {LongConvMethod::Fft, LongConvMethod::Direct, LongConvMethod::Auto};

struct Sizes {
  int64_t length, kernel;
  bool causal;
};
const Sizes kSizes[] = {{1, 1, true},    {1, 5, true},   {1, 5, false},  {2, 6, true},    {7, 7, true},
                        {13, 4, false},  {64, 64, true}, {50, 79, true}, {63, 64, false}, {20, 90, false},
                        {97, 97, false}, {101, 1, true}, {31, 61, false}};

class LongConvTest : public ::testing::TestWithParam<Sizes> {};

TEST_P(LongConvTest, MatchesTheDefinition) {
  const PoisonGuard poison;
  const auto [length, kernel, causal] = GetParam();
  const Tensor x = randn({2, 3, length}, kDouble), w = randn({3, kernel}, kDouble), skip = randn({3}, kDouble);
  const Tensor gate_in = randn(x.shape(), kDouble), gate_out = randn(x.shape(), kDouble);
  const Tensor u = gate_in * x, column = skip.reshape({3, 1});
  const Tensor expected = naive(x, w, causal) + column * x;
  const Tensor gated = gate_out * (naive(u, w, causal) + column * u);
  for (LongConvMethod method : kMethods) {
    EXPECT_TRUE(near(long_conv(x, w, skip, {.causal = causal, .method = method}), expected, 1e-13));
    EXPECT_TRUE(near(long_conv(x, w, skip, {causal, gate_in, gate_out, method}), gated, 1e-13));
    const auto f = [](const Tensor& t) { return t.to(float32); };
    EXPECT_TRUE(near(long_conv(f(x), f(w), f(skip), {.causal = causal, .method = method}), f(expected), 1e-6));
    EXPECT_FALSE(near(long_conv(x, w, {}, {.causal = causal, .method = method}), expected, 1e-3));
  }
}

TEST_P(LongConvTest, Gradients) {
  const auto [length, kernel, causal] = GetParam();
  for (LongConvMethod method : {LongConvMethod::Fft, LongConvMethod::Direct}) {
    const auto plain = [=, causal = causal](const std::vector<Tensor>& in) {
      return long_conv(in[0], in[1], {}, {.causal = causal, .method = method});
    };
    const auto full = [=, causal = causal](const std::vector<Tensor>& in) {
      return long_conv(in[0], in[1], in[2], {causal, in[3], in[4], method});
    };
    const auto inputs = [&, length = length, kernel = kernel](const TensorOptions& options) {
      const Shape shape{2, 2, length};
      return std::vector<Tensor>{randn(shape, options), randn({2, kernel}, options), randn({2}, options),
                                 randn(shape, options), randn(shape, options)};
    };
    testing::expect_any_strides(full, inputs({}));
    if (length * 6 + kernel * 2 > 150) continue;
    const auto wide = inputs(kDouble);
    testing::expect_gradients(plain, {wide[0], wide[1]}, {.step = 1e-3, .tolerance = 1e-7});
    testing::expect_gradients(full, wide, {.step = 1e-4, .tolerance = 1e-6});
  }
}

TEST_P(LongConvTest, BitsDoNotDependOnThreads) {
  const auto [length, kernel, causal] = GetParam();
  const Tensor x = randn({2, 5, length}), w = randn({5, kernel}), g = randn({2, 5, length});
  const auto problem = LongConvProblem::make("t", x.shape(), w.shape(), causal);
  for (LongConvMethod method : {LongConvMethod::Fft, LongConvMethod::Direct}) {
    testing::expect_thread_independent([&] {
      const auto grads =
          ops::long_conv_backward(problem, {.x = x, .weight = w}, g, {.x = true, .weight = true}, method);
      return std::vector<Tensor>{ops::long_conv_forward(problem, {.x = x, .weight = w}, method), grads.x, grads.weight};
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, LongConvTest, ::testing::ValuesIn(kSizes));

// A transform of twice the length would cut this filter and wrap: y[0] = 9.
TEST(LongConv, FilterLongerThanTheSequence) {
  for (LongConvMethod method : kMethods) {
    const Tensor w = filter({1, 2, 3, 4, 5, 6});
    EXPECT_TRUE(near(long_conv(row({1, 2}), w, {}, {.method = method}), row({1, 4}), 1e-7));
    EXPECT_TRUE(near(long_conv(row({3}), w, {}, {.method = method}), row({3}), 1e-7));
    // Full convolution: the sequence with zeros after it.
    EXPECT_TRUE(
        near(long_conv(row({1, 2, 0, 0, 0, 0, 0}), w, {}, {.method = method}), row({1, 4, 7, 10, 13, 16, 12}), 1e-7));
  }
  const Tensor x = randn({1, 1, 40}), w = randn({1, 55});
  EXPECT_TRUE(near(long_conv(x.slice(2, 0, 23), w), long_conv(x, w).slice(2, 0, 23), 1e-6));
}

TEST(LongConv, AnyLength) {
  for (int64_t length : {1, 2, 3, 7, 8, 9, 8191, 8192, 8193, 8760, 8761, 14113, 131071}) {
    const Tensor w = arange(length).to(float32).reshape({1, length}) + 1.0;
    const double bound = 2e-6 * static_cast<double>(length);
    for (bool last : {false, true}) {
      const Tensor x = zeros({1, 1, length});
      x.data<float>()[last ? length - 1 : 0] = 1;
      const Tensor expected = last ? x : w.reshape({1, 1, length});
      const Tensor y = long_conv(x, w, {}, {.method = LongConvMethod::Fft});
      EXPECT_LE(amax(abs(y - expected)).item(), bound) << length;
    }
  }
}

// Rounding of an FFT is relative to the row's largest value; sums leave exact zeros alone.
TEST(LongConv, AKickDoesNotReachThePast) {
  const Tensor x = zeros({1, 1, 1024});
  x.data<float>()[3] = 1e10f;
  const Tensor w = 1.0 / (arange(1024).to(float32).reshape({1, 1024}) + 1.0);
  const Tensor direct = long_conv_direct(x, w), fft = long_conv(x, w, {}, {.method = LongConvMethod::Fft});
  EXPECT_TRUE(same(direct.slice(2, 0, 3), zeros({1, 1, 3})));
  EXPECT_LT(amax(abs(fft.slice(2, 0, 3))).item(), 1e-3);
  EXPECT_NEAR(fft.to_vector<double>()[3], 1e10, 1e4);
  const Tensor in = testing::leaf(x);
  const Tensor dx = grad({long_conv_direct(in, w).select(2, 2).sum()}, {in})[0];
  EXPECT_EQ(dx.to_vector<double>()[3], 0);
}

// Rows never share a transform: a large or NaN neighbour changes no bit.
TEST(LongConv, RowsAreIndependent) {
  const Tensor x = randn({2, 2, 100}), w = randn({2, 100}), g = randn({2, 2, 100});
  const auto problem = LongConvProblem::make("t", x.shape(), w.shape(), true);
  const auto run = [&](double factor) {
    const Tensor changed = x.clone();
    changed.select(0, 0).mul_(factor);
    const auto grads = ops::long_conv_backward(problem, {.x = changed, .weight = w}, g, {.x = true});
    return std::pair{ops::long_conv_forward(problem, {.x = changed, .weight = w}, LongConvMethod::Fft)[1], grads.x[1]};
  };
  const auto plain = run(1), large = run(1e6), nan = run(NAN);
  EXPECT_TRUE(same(large.first, plain.first));
  EXPECT_TRUE(same(nan.first, plain.first));
  EXPECT_TRUE(same(nan.second, plain.second));
}

TEST(LongConv, EmptiesAndErrors) {
  const PoisonGuard poison;
  for (const Shape& shape : {Shape{0, 3, 5}, Shape{2, 3, 0}, Shape{2, 0, 5}}) {
    for (LongConvMethod method : kMethods) {
      for (bool causal : {true, false}) {
        const Tensor x = testing::leaf(zeros(shape)), w = testing::leaf(ones({shape[1], 4}));
        const Tensor y = long_conv(x, w, {}, {.causal = causal, .method = method});
        EXPECT_EQ(y.shape(), shape);
        const auto grads = grad({y}, {x, w}, {zeros(shape)});
        EXPECT_TRUE(same(grads[1], zeros(w.shape())));
      }
    }
  }
  EXPECT_NE(testing::message_of([] {
              long_conv(zeros({1, 2, 3}), zeros({3, 3}));
            }).find("weight expects 2 channels"),
            std::string::npos);
  EXPECT_NE(testing::message_of([] {
              long_conv(zeros({1, 2, 3}), zeros({2, 3}), zeros({3}));
            }).find("skip expects"),
            std::string::npos);
  EXPECT_NE(testing::message_of([] { long_conv(zeros({2, 3}), zeros({2, 3})); }).find("[B, H, L]"), std::string::npos);
}

// Against sums, and back again, at sizes of every radix, one sequence alone and several side by side.
TEST(RealFft, MatchesTheDefinition) {
  for (const bool one_lane : {true, false}) {
    for (int64_t least : {1, 2, 3, 5, 6, 8, 10, 18, 22, 30, 50, 64, 90, 121, 250, 480}) {
      const cpu::RealFft fft(least, one_lane);
      const int64_t size = fft.size(), lanes = fft.lanes(), lane = lanes - 1;
      EXPECT_GE(size, least);
      const auto x = randn({size, lanes}, kDouble).to_vector<double>();
      auto scratch = fft.scratch();
      std::vector<double> spectrum(static_cast<std::size_t>(fft.spectrum_length()));
      fft.forward(x.data(), size, spectrum.data(), scratch);
      for (int64_t k = 0; k <= size / 2; ++k) {
        double re = 0, im = 0;
        for (int64_t t = 0; t < size; ++t) {
          const double angle = -2 * std::numbers::pi * static_cast<double>(k * t % size) / static_cast<double>(size);
          re += x[static_cast<std::size_t>(t * lanes + lane)] * std::cos(angle);
          im += x[static_cast<std::size_t>(t * lanes + lane)] * std::sin(angle);
        }
        EXPECT_NEAR(spectrum[static_cast<std::size_t>(2 * k * lanes + lane)], re, 1e-12) << size << " bin " << k;
        EXPECT_NEAR(spectrum[static_cast<std::size_t>((2 * k + 1) * lanes + lane)], im, 1e-12) << size << " bin " << k;
      }
      std::vector<double> back(x.size());
      fft.inverse(spectrum.data(), back.data(), scratch);
      for (std::size_t t = 0; t < back.size(); ++t) EXPECT_NEAR(back[t], x[t], 1e-14 * 10);
    }
  }
}

}  // namespace
}  // namespace halo
