// Float32 on the CPU (register tiles) against float64 (Eigen) on random problems of every kind. The operands are
// float32 numbers in both, so that what differs is the rounding of sums.
#include <halo/ops/conv.h>
#include <halo/ops/long_conv.h>
#include <halo/ops/matmul.h>

#include <random>

#include "tests/testing.h"

namespace halo {
namespace {

using testing::near;
using testing::same;

// Relative Frobenius error: float32 sums of at most some thousand terms. The controls are four times as far off.
constexpr double kBound = 1e-6, kControl = 1 + 4e-6;

::testing::AssertionResult agrees(const Tensor& got, const Tensor& oracle) {
  const Tensor wide = got.to(float64);
  if (const auto result = near(wide, oracle, kBound); !result) return result;
  if (testing::relative_error(zeros(wide.shape(), wide.options()), oracle) > 0 &&
      near(wide * kControl, oracle, kBound)) {
    return ::testing::AssertionFailure() << "the bound sees nothing";
  }
  return ::testing::AssertionSuccess();
}

Tensor wide(const Tensor& t) { return t.to(float64); }

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  /// An integer in [low, high].
  int64_t operator()(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_()) % (high - low + 1);  // the same on every platform
  }
  bool coin() { return (*this)(0, 1) == 1; }

 private:
  std::mt19937 engine_;
};

ConvProblem random_conv(Random& random) {
  const int64_t groups = random(0, 2) == 0 ? random(2, 9) : 1;
  // Depthwise and narrow groups, and groups that fill vectors.
  const int64_t channels[] = {1, 2, 3, 7, 16, 33};
  const int64_t in = channels[random(0, 5)], out = channels[random(0, 5)];
  const bool transposed = random.coin();
  Shape x{random(1, 3), groups * in}, w{groups * (transposed ? in : out), transposed ? out : in};
  ConvOptions options{.groups = groups};
  const int64_t rank = random(1, 3);
  for (int64_t axis = 0; axis < rank; ++axis) {
    const int64_t kernel = random(1, 5), dilation = random(1, 3), reach = dilation * (kernel - 1);
    const int64_t most = rank == 1 ? 150 : rank == 2 ? 19 : 7;
    options.stride.push_back(random(1, 3));
    options.dilation.push_back(dilation);
    options.padding.push_back(random(0, reach / 2));
    x.push_back(reach + random(1, most));
    w.push_back(kernel);
  }
  return transposed ? ConvProblem::transposed("conv_transpose", x, w, options)
                    : ConvProblem::conv("conv", x, w, options);
}

TEST(Oracle, Convolution) {
  Random random(20);
  for (int i = 0; i < 80; ++i) {
    const ConvProblem p = random_conv(random);
    SCOPED_TRACE(p.str());
    const Tensor x = randn(p.x_shape()), w = randn(p.w_shape()), g = randn(p.y_shape());
    EXPECT_TRUE(agrees(ops::conv_forward(p, x, w), ops::conv_forward(p, wide(x), wide(w))));
    EXPECT_TRUE(agrees(ops::conv_backward_input(p, g, w), ops::conv_backward_input(p, wide(g), wide(w))));
    EXPECT_TRUE(agrees(ops::conv_backward_weight(p, x, g), ops::conv_backward_weight(p, wide(x), wide(g))));
  }
}

TEST(Oracle, ConvolutionWithBiasAndActivation) {
  Random random(21);
  for (ActivationKind kind : {ActivationKind::None, ActivationKind::Relu, ActivationKind::LeakyRelu,
                              ActivationKind::Gelu, ActivationKind::GeluTanh, ActivationKind::Silu}) {
    const ConvProblem p = random_conv(random);
    SCOPED_TRACE(p.str());
    const Tensor x = randn(p.x_shape()), w = randn(p.w_shape()), bias = randn({p.out_channels});
    const Activation activation{kind, 0.25};
    EXPECT_TRUE(agrees(ops::conv_forward(p, x, w, bias, activation),
                       ops::conv_forward(p, wide(x), wide(w), wide(bias), activation)));
    EXPECT_FALSE(near(wide(ops::conv_forward(p, x, w, {}, activation)),
                      ops::conv_forward(p, wide(x), wide(w), wide(bias), activation), 1e-3));
  }
}

// Every layout of both operands, sizes on either side of tiles and panels.
TEST(Oracle, MatrixProducts) {
  Random random(22);
  const int64_t sizes[] = {1, 2, 5, 17, 64, 131, 300, 521};
  for (int i = 0; i < 30; ++i) {
    const int64_t m = sizes[random(0, 7)], n = sizes[random(0, 7)],
                  k = random.coin() ? sizes[random(0, 7)] : random(1, 3000);
    const int64_t batch = m * n * k < 1000000 ? random(1, 4) : 1;
    SCOPED_TRACE(::testing::Message() << batch << " x " << m << " " << n << " " << k);
    const auto operand = [&](int64_t rows, int64_t columns) {
      switch (random(0, 3)) {
        case 0: return randn({batch, columns, rows}).transpose(1, 2);
        case 1: return randn({batch, rows + 2, columns + 3}).slice(1, 1, rows + 1).slice(2, 2, columns + 2);
        case 2: return randn({1, rows, columns}).expand({batch, rows, columns});
        default: return randn({batch, rows, columns});
      }
    };
    const Tensor a = operand(m, k), b = operand(k, n);
    EXPECT_TRUE(agrees(matmul(a, b), matmul(wide(a), wide(b))));
  }
}

TEST(Oracle, LongConvolution) {
  Random random(23);
  for (int i = 0; i < 30; ++i) {
    const int64_t batch = random(1, 3), channels = random(1, 20), length = random(1, 900);
    const int64_t kernel = random.coin() ? length : random(1, 1200);
    const auto p = LongConvProblem::make("long_conv", {batch, channels, length}, {channels, kernel}, random.coin());
    SCOPED_TRACE(p.str());
    const Shape rows{batch, channels, length};
    const LongConvTensors in{randn(rows), randn({channels, kernel}), randn({channels}), randn(rows), randn(rows)};
    const Tensor g = randn(rows);
    LongConvTensors exact = in;
    exact.for_each_tensor([](Tensor& t) { t = wide(t); });
    const auto method = random.coin() ? LongConvMethod::Fft : LongConvMethod::Auto;
    EXPECT_TRUE(agrees(ops::long_conv_forward(p, in, method), ops::long_conv_forward(p, exact, method)));
    const ops::LongConvWanted all{true, true, true, true, true};
    const LongConvTensors got = ops::long_conv_backward(p, in, g, all, method);
    const LongConvTensors expected = ops::long_conv_backward(p, exact, wide(g), all, method);
    EXPECT_TRUE(agrees(got.x, expected.x));
    EXPECT_TRUE(agrees(got.weight, expected.weight));
    EXPECT_TRUE(agrees(got.skip, expected.skip));
    EXPECT_TRUE(agrees(got.gate_in, expected.gate_in));
    EXPECT_TRUE(agrees(got.gate_out, expected.gate_out));
  }
}

// The oracle's own bits: the same on any number of threads, and those of a sample the same in any batch.
TEST(Oracle, BitsDependOnTheOperandsAlone) {
  Random random(24);
  const int threads = num_threads();
  const TensorOptions options{.dtype = float64};
  for (int i = 0; i < 20; ++i) {
    const ConvProblem p = random_conv(random);
    SCOPED_TRACE(p.str());
    const Tensor x = randn(p.x_shape(), options), w = randn(p.w_shape(), options), g = randn(p.y_shape(), options);
    const Tensor a = randn({3, 300, 7}, options), b = randn({3, 7, 259}, options);
    const auto all = [&] {
      return std::vector<Tensor>{ops::conv_forward(p, x, w), ops::conv_backward_input(p, g, w),
                                 ops::conv_backward_weight(p, x, g), matmul(a, b)};
    };
    set_num_threads(1);
    const auto one = all();
    set_num_threads(3);
    const auto several = all();
    set_num_threads(threads);
    for (std::size_t n = 0; n < one.size(); ++n) EXPECT_TRUE(same(several[n], one[n]));
    ConvProblem last = p;
    last.batch = 1;
    EXPECT_TRUE(
        same(ops::conv_forward(last, x.slice(0, p.batch - 1, p.batch), w), one[0].slice(0, p.batch - 1, p.batch)));
    EXPECT_TRUE(same(ops::conv_backward_input(last, g.slice(0, p.batch - 1, p.batch), w),
                     one[1].slice(0, p.batch - 1, p.batch)));
    EXPECT_FALSE(same(one[0] * (1 + 1e-15), one[0]));
  }
}

}  // namespace
}  // namespace halo
