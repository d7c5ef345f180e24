// Field cases of floating point: subnormal numbers, precision by surprise, overflow, NaN that disappears.
#include "field_testing.h"

namespace halo {
namespace {

using namespace testing;

using FieldFloat = Field;
INSTANTIATE_TEST_SUITE_P(Devices, FieldFloat, both_devices(), device_name);

// Case 44. Trained weights near 0 made the CPU 3 to 50 times slower than random ones. Convolutions and products take
// subnormal numbers for 0 there, inside their own loops alone.
TEST(FieldDenormals, ConvolutionTakesThemForZeroAndLeavesTheCallerAlone) {
  const Tensor x = lcg(5, {1, 8, 14, 14}), w = lcg(6, {8, 8, 3, 3}) * 1e-41;
  const Tensor exact = conv2d(x.to(float64), w.to(float64), {}, {.padding = 1});
  const Tensor y = conv2d(x, w, {}, {.padding = 1});
  EXPECT_TRUE(all_equal(y, 0));
  EXPECT_LE(amax(abs(y.to(float64) - exact)).item(), 1e-37);
  const volatile float tiny = 1e-41f;
  EXPECT_NE(tiny * 0.5f, 0.0f);             // the caller's own arithmetic is as before
  EXPECT_GT(amax(abs(w * 0.5)).item(), 0);  // and so is that of other operations
  set_flush_denormals(false);
  const Tensor kept = conv2d(x, w, {}, {.padding = 1});
  set_flush_denormals(true);
  EXPECT_GT(amax(abs(kept)).item(), 0);
  EXPECT_LE(amax(abs(kept.to(float64) - exact)).item(), 1e-43);
}

// The mode of the calling thread holds in all pieces of a loop: results do not depend on which thread made them.
TEST(FieldDenormals, LoopsFollowTheCaller) {
  for (bool flush : {true, false, true}) {
    const DenormalGuard guard(flush);
    parallel_for(64, 1, [&](int64_t, int64_t) {
      const volatile float tiny = 1e-41f;
      if ((tiny * 0.5f == 0.0f) != flush) ADD_FAILURE() << "a piece has another mode, flush " << flush;
    });
  }
}

// Case 46. Float32 that is TF32 on newer cards only: 1 + 2^-12 becomes 1. Here float32 means float32, and one switch,
// which can be read, covers convolutions and matrix products.
TEST_P(FieldFloat, Float32IsNotTf32BySurprise) {
  EXPECT_EQ(precision(), Precision::Float32);
  const double value = 1 + 1.0 / 4096;
  const auto results = [&] {
    std::vector<double> all;
    Tensor x = zeros({32, 16, 8, 8}, options());
    x.select(1, 0).fill_(value);
    const Tensor w = zeros({16, 16, 1, 1}, options());
    w.select(0, 0).select(0, 0).fill_(1);
    const Tensor input = leaf(x), weight = leaf(w);
    const Tensor y = conv2d(input, weight);
    all.push_back(amax(y).item());
    all.push_back(amax(conv_transpose2d(x, w)).item());
    y.backward(x);
    all.push_back(amax(input.grad()).item());
    all.push_back(amax(conv2d(x, ones({16, 1, 1, 1}, options()), {}, {.groups = 16})).item());
    all.push_back(amax(linear(x.permute({0, 2, 3, 1}), w.reshape({16, 16}))).item());
    all.push_back(amax(matmul(x.permute({0, 2, 3, 1}).reshape({2048, 16}), ones({16, 16}, options()))).item());
    return all;
  };
  for (double got : results()) EXPECT_EQ(got, value);
  {
    const PrecisionGuard guard(Precision::TF32);
    EXPECT_EQ(precision(), Precision::TF32);
    for (double got : results()) EXPECT_NEAR(got, value, 1e-3);
  }
  EXPECT_EQ(precision(), Precision::Float32);
}

TEST_P(FieldFloat, WeightGradientsKeepFloat32) {
  const Tensor x = zeros({1, 16, 1, 1}, options()), w = leaf(zeros({16, 16, 1, 1}, options()));
  x.select(1, 0).fill_(1 + 1.0 / 4096);
  conv2d(x, w).sum().backward();
  EXPECT_EQ(amax(w.grad()).item(), 1 + 1.0 / 4096);
}

// Case 47. Sums of inputs inside a fast algorithm overflow although the true result fits.
TEST_P(FieldFloat, LargeFiniteInputsStayFinite) {
  // Two TF32 numbers hold a float32 but for half a unit of its last place.
  const auto nearly = [](const Tensor& t, double value) { return amax(abs(t / value - 1.0)).item() < 0x1p-22; };
  for (int64_t outputs : {1, 8, 16, 33}) {
    const Tensor x = full({1, 16, 8, 8}, 2e38, options()), w = zeros({outputs, 16, 3, 3}, options());
    w.select(1, 0).select(1, 1).select(1, 1).fill_(1);
    EXPECT_TRUE(nearly(conv2d(x, w, {}, {.padding = 1}), 2e38)) << outputs;
    const ConvProblem p = ConvProblem::conv("conv2d", x.shape(), w.shape(), {.padding = 1});
    const Tensor g = zeros({1, outputs, 8, 8}, options());
    g.select(1, 0).fill_(2e38);
    const Tensor dx = conv_backward_input(p, g, w);
    EXPECT_TRUE(nearly(dx.select(1, 0), 2e38)) << outputs;
    EXPECT_TRUE(all_equal(dx.slice(1, 1, 16), 0)) << outputs;
    const Tensor one = zeros({1, outputs, 8, 8}, options());
    one.select(1, 0).select(1, 4).select(1, 4).fill_(1);
    EXPECT_TRUE(nearly(conv_backward_weight(p, x, one).select(0, 0), 2e38)) << outputs;
  }
  const float largest = std::numeric_limits<float>::max();
  const Tensor x = full({1, 1, 9}, largest, options()), one = ones({1, 1, 1}, options());
  EXPECT_TRUE(all_equal(conv1d(x, one), largest));
  EXPECT_TRUE(all_equal(matmul(full({3, 1}, largest, options()), ones({1, 5}, options())), largest));
  EXPECT_TRUE(all_equal(mean(full({7}, 2e38, options())), static_cast<float>(2e38)));
}

// Case 49. relu and clamp that turn NaN into 0 hide the fault that made it. Lengths that are no multiple of a vector
// reach both the vector code and its tail.
TEST_P(FieldFloat, ActivationsKeepNan) {
  const float inf = INFINITY, nan = NAN;
  const std::vector<float> pattern{-1, nan, 2, -inf, inf, -0.0f};
  for (int64_t copies : {1, 7, 100}) {
    std::vector<float> values;
    for (int64_t i = 0; i < copies; ++i) values.insert(values.end(), pattern.begin(), pattern.end());
    const auto repeated = [&](const std::vector<double>& one) {
      std::vector<double> all;
      for (int64_t i = 0; i < copies; ++i) all.insert(all.end(), one.begin(), one.end());
      return all;
    };
    const Tensor x = leaf(make(values));
    EXPECT_TRUE(holds(relu(x), repeated({0, nan, 2, 0, inf, 0})));
    EXPECT_TRUE(holds(clamp(x, 0, 6), repeated({0, nan, 2, 0, 6, 0})));
    EXPECT_TRUE(holds(clamp(x, 0, 1), repeated({0, nan, 1, 0, 1, 0})));
    EXPECT_TRUE(holds(leaky_relu(x, 0.5), repeated({-0.5, nan, 2, -inf, inf, 0})));
    const Tensor zero = zeros({1}, options());
    EXPECT_TRUE(holds(maximum(x, zero), repeated({0, nan, 2, 0, inf, 0})));
    EXPECT_TRUE(holds(maximum(zero, x), repeated({0, nan, 2, 0, inf, 0})));
    EXPECT_TRUE(holds(minimum(x, zero), repeated({-1, nan, 0, -inf, 0, 0})));
    const auto slope = grad({relu(x).sum()}, {x})[0].to_vector<double>();
    for (std::size_t i = 0; i < slope.size(); i += 6) {
      EXPECT_EQ(slope[i], 0);
      EXPECT_EQ(slope[i + 2], 1);
      EXPECT_EQ(slope[i + 3], 0);
      EXPECT_EQ(slope[i + 4], 1);
      EXPECT_EQ(slope[i + 5], 0);
    }
    // Fused into a convolution it is the same.
    const Tensor rows = x.detach().reshape({1, 1, -1});
    const NoGradGuard guard;
    EXPECT_TRUE(holds(conv1d(rows, ones({1, 1, 1}, options()), {}, {}, {.kind = ActivationKind::Relu}),
                      repeated({0, nan, 2, 0, inf, 0})));
  }
}

}  // namespace
}  // namespace halo
