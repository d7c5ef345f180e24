#include <cmath>
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

TEST(Binary, ComparisonsWithNumbers) {
  const Tensor x = tensor({-1, 0.5, 1, NAN});
  const auto bools = [](const Tensor& t) { return t.to_vector<bool>(); };
  using Bools = std::vector<bool>;
  EXPECT_EQ(gt(x, 0.5).dtype(), boolean);
  EXPECT_EQ(bools(eq(x, 0.5)), (Bools{false, true, false, false}));
  EXPECT_EQ(bools(ne(x, 0.5)), (Bools{true, false, true, true}));
  EXPECT_EQ(bools(lt(x, 0.5)), (Bools{true, false, false, false}));
  EXPECT_EQ(bools(le(x, 0.5)), (Bools{true, true, false, false}));
  EXPECT_EQ(bools(gt(x, 0.5)), (Bools{false, false, true, false}));
  EXPECT_EQ(bools(ge(x, 0.5)), (Bools{false, true, true, false}));
  EXPECT_EQ(bools(gt(x, -INFINITY)), (Bools{true, true, true, false}));
  // 0.1 is rounded to the dtype first, as the elements were.
  EXPECT_EQ(bools(eq(full({1}, 0.1), 0.1)), Bools{true});
  EXPECT_EQ(bools(eq(full({1}, 0.1, {.dtype = float64}), 0.1f)), Bools{false});
  for (DType half : {bfloat16, float16}) EXPECT_EQ(bools(ge(x.to(half), 0.5)), (Bools{false, true, true, false}));
  EXPECT_EQ(gt(empty({0, 3}), 1).shape(), Shape({0, 3}));
  EXPECT_EQ(bools(gt(testing::strided_copy(x), 0)), (Bools{false, true, true, false}));
  EXPECT_FALSE(gt(testing::leaf(x), 0).requires_grad());
}

// 64-bit integers are compared as such; a number that the dtype does not hold is a mistake, not a promotion.
TEST(Binary, ComparisonsOfIntegersWithNumbers) {
  const Tensor big = from_vector<int64_t>({INT64_MAX, INT64_MAX - 1, INT64_MIN}, {3});
  EXPECT_EQ(eq(big, INT64_MAX).to_vector<bool>(), (std::vector<bool>{true, false, false}));
  EXPECT_EQ(le(big, INT64_MIN).to_vector<bool>(), (std::vector<bool>{false, false, true}));
  EXPECT_EQ(ge(arange(4), 2.0).to_vector<bool>(), (std::vector<bool>{false, false, true, true}));
  EXPECT_EQ(eq(gt(arange(3), 0), true).to_vector<bool>(), (std::vector<bool>{false, true, true}));
  const auto message = [](DType dtype, const Scalar& number) {
    return testing::message_of([&] { gt(zeros({2}, {.dtype = dtype}), number); });
  };
  EXPECT_EQ(message(int64, 2.5), "gt: number expected one that int64 holds (the tensor's dtype), got 2.5");
  message(int64, NAN);
  message(int64, 9223372036854775808.0);
  message(int32, int64_t{1} << 31);
  message(int32, 2147483648.0);
  message(uint8, -1);
  message(uint8, 256);
  message(boolean, 2);
  EXPECT_NO_THROW(gt(zeros({2}, {.dtype = int32}), 2147483647.0));
  EXPECT_NO_THROW(gt(zeros({2}, {.dtype = int64}), -9223372036854775808.0));
  EXPECT_NO_THROW(gt(zeros({2}, {.dtype = uint8}), 255));
}

TEST(Binary, WhatIsFinite) {
  const float inf = std::numeric_limits<float>::infinity(), largest = std::numeric_limits<float>::max();
  const Tensor x = tensor({0, -0.0f, 1, largest, -largest, 1e-45f, inf, -inf, NAN});
  using Bools = std::vector<bool>;
  for (DType dtype : {float32, float64, bfloat16}) {
    const Tensor t =
        dtype == bfloat16 ? minimum(maximum(x, full({}, -3e38)), full_like(x, 3e38)).to(dtype) : x.to(dtype);
    const bool clipped = dtype == bfloat16;
    EXPECT_EQ(isfinite(t).to_vector<bool>(), (Bools{1, 1, 1, 1, 1, 1, clipped, clipped, 0}));
    EXPECT_EQ(isinf(t).to_vector<bool>(), (Bools{0, 0, 0, 0, 0, 0, !clipped, !clipped, 0}));
    EXPECT_EQ(isnan(t).to_vector<bool>(), (Bools{0, 0, 0, 0, 0, 0, 0, 0, 1}));
  }
  for (DType dtype : {int64, int32, uint8, boolean}) {
    const Tensor t = tensor({0, 1, 1}).to(dtype);
    EXPECT_TRUE(all(isfinite(t)).item());
    EXPECT_FALSE(any(isinf(t)).item());
    EXPECT_FALSE(any(isnan(t)).item());
    EXPECT_EQ(logical_not(t).to_vector<bool>(), (Bools{1, 0, 0}));
  }
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
