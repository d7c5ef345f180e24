#include <limits>

#include "tests/testing.h"

namespace halo {
namespace {

using testing::near;
using testing::same;

TEST(Unary, NanAndInfinityPass) {
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor x = tensor({-1, NAN, 2, -inf, inf, -0.0f});
  EXPECT_TRUE(same(relu(x), tensor({0, NAN, 2, 0, inf, 0})));
  EXPECT_TRUE(same(clamp(x, 0, 1), tensor({0, NAN, 1, 0, 1, 0})));
  EXPECT_TRUE(same(clamp(x, 0, 6), tensor({0, NAN, 2, 0, 6, 0})));
  EXPECT_TRUE(same(leaky_relu(x, 0.5), tensor({-0.5f, NAN, 2, -inf, inf, 0})));
  EXPECT_TRUE(same(maximum(x, zeros_like(x)), tensor({0, NAN, 2, 0, inf, 0})));
  EXPECT_TRUE(same(maximum(zeros_like(x), x), tensor({0, NAN, 2, 0, inf, 0})));
}

// The gradient is 0 at 0 and NaN at NaN.
TEST(Unary, GradientsAtTheCorners) {
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor x = testing::leaf(tensor({-1, NAN, 2, -inf, inf, -0.0f}));
  const auto slope = [&](const Tensor& y) { return grad({y.sum()}, {x})[0]; };
  EXPECT_TRUE(same(slope(relu(x)), tensor({0, NAN, 1, 0, 1, 0})));
  EXPECT_TRUE(same(slope(clamp(x, 0, 6)), tensor({0, NAN, 1, 0, 0, 1})));
  EXPECT_TRUE(same(slope(leaky_relu(x, 0.5)), tensor({0.5f, NAN, 1, 0.5f, 1, 0.5f})));
}

// Every value, small ones in the tail too; 1001 is no multiple of any vector.
TEST(Unary, GeluOfFloatsIsThatOfDoubles) {
  const Tensor narrow = linspace(-6, 12, 1001) + 1e-3;
  for (const GeluForm form : {GeluForm::Exact, GeluForm::Tanh}) {
    const auto results = [form](const Tensor& values) {
      const Tensor x = testing::leaf(values), y = gelu(x, form);
      return std::vector<Tensor>{y.detach().to(float64), grad({y.sum()}, {x})[0].to(float64)};
    };
    const auto expected = results(narrow.to(float64)), got = results(narrow);
    const auto worst = [](const Tensor& a, const Tensor& b) { return amax(abs(a / b - 1.0)).item(); };
    EXPECT_LT(worst(got[0], expected[0]), 4e-6);
    EXPECT_LT(amax(abs(got[1] - expected[1])).item(), 1e-6);  // the gradient crosses 0
    EXPECT_GT(worst(got[0] * 1.00001, expected[0]), 4e-6);
  }
}

TEST(Unary, GeluOfLargeNumbersInfinitiesAndNan) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const GeluForm form : {GeluForm::Exact, GeluForm::Tanh}) {
    const Tensor x = testing::leaf(tensor({1e30f, -1e30f, NAN, inf})), y = gelu(x, form);
    EXPECT_TRUE(same(y.detach(), tensor({1e30f, 0, NAN, inf})));
    EXPECT_TRUE(same(grad({y.sum()}, {x})[0].slice(0, 0, 3), tensor({1, 0, NAN})));
  }
}

TEST(Binary, BroadcastsAnyStrides) {
  const Tensor a = testing::random_integers({3, 1, 5}),
               b = testing::random_integers({4, 5}).transpose(0, 1).contiguous().transpose(0, 1);
  const auto got = (a * b).to_vector<double>(), va = a.to_vector<double>(), vb = b.to_vector<double>();
  for (std::size_t i = 0; i < 3; ++i)
    for (std::size_t j = 0; j < 4; ++j)
      for (std::size_t k = 0; k < 5; ++k) EXPECT_EQ(got[(i * 4 + j) * 5 + k], va[i * 5 + k] * vb[j * 5 + k]);
}

TEST(Binary, ComparisonsAndWhere) {
  const Tensor a = tensor({1, 2, 3}), b = tensor({3, 2, 1});
  EXPECT_EQ(lt(a, b).to_vector<bool>(), (std::vector<bool>{true, false, false}));
  EXPECT_EQ(le(a, b).to_vector<bool>(), (std::vector<bool>{true, true, false}));
  EXPECT_TRUE(same(where(gt(a, b), a, zeros({})), tensor({0, 0, 3})));
}

TEST(Binary, IntegerDivisionNeverTraps) {
  const Tensor a = from_vector<int64_t>({7, 7, INT64_MIN}, {3}), b = from_vector<int64_t>({2, 0, -1}, {3});
  EXPECT_EQ((a / b).to_vector<int64_t>(), (std::vector<int64_t>{3, 0, INT64_MIN}));
}

TEST(Reduce, AnyAxesAnyStrides) {
  const Tensor x = arange(60).reshape({3, 4, 5});
  EXPECT_EQ(sum(x, {1}).to_vector<int64_t>()[0], 0 + 5 + 10 + 15);
  EXPECT_EQ(sum(x.permute({2, 0, 1}), {-1}).shape(), Shape({5, 3}));
  EXPECT_EQ(sum(x, {0, 2}, true).shape(), Shape({1, 4, 1}));
  EXPECT_EQ(x.sum().item(), 1770);
  EXPECT_EQ(amax(x, {0, 1}).to_vector<int64_t>(), (std::vector<int64_t>{55, 56, 57, 58, 59}));
  EXPECT_TRUE(std::isnan(amax(tensor({1, NAN, 3})).item()));
  EXPECT_EQ(sum(zeros({0, 3})).item(), 0);
  EXPECT_THROW(amax(zeros({0})), ArgumentError);
}

TEST(Inplace, RefusesWhereAGradientWouldBeLost) {
  const Tensor x = testing::leaf(tensor({1, 2}));
  EXPECT_THROW(x.fill_(0), ArgumentError);
  EXPECT_THROW(zeros({2}).add_(x), ArgumentError);
  EXPECT_THROW(zeros({1}).expand({3}).fill_(1), ArgumentError);
  const NoGradGuard guard;
  EXPECT_NO_THROW(x.add_(x, 0.5));
  EXPECT_TRUE(same(x.detach(), tensor({1.5, 3})));
}

}  // namespace
}  // namespace halo
