#include <limits>

#include "tests/testing.h"

namespace halo {
namespace {

using testing::near;
using testing::same;

TEST(Var, LargeMeanDoesNoHarm) {
  const Tensor x = tensor({10000, 10001, 10002, 10003});
  EXPECT_TRUE(same(var(x, {}, false), full({}, 1.25)));
  EXPECT_TRUE(near(var(x), full({}, 5.0 / 3), 1e-7));
  EXPECT_EQ(var(full({100}, 12345.678f)).item(), 0);
  EXPECT_TRUE(std::isnan(var(tensor({3})).item()));
  EXPECT_EQ(var(tensor({3}), {}, false).item(), 0);
  EXPECT_TRUE(std::isnan(var(zeros({0}), {}, false).item()));
  EXPECT_EQ(halo::std(zeros({2, 3, 5}), {0, -1}, true, true).shape(), Shape({1, 3, 1}));
  EXPECT_THROW(var(arange(3)), ArgumentError);
}

TEST(Logsumexp, NoOverflow) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(near(logsumexp(tensor({1000, 1000})), full({}, 1000 + std::log(2.0)), 1e-7));
  EXPECT_EQ(logsumexp(tensor({-inf, -inf})).item(), -inf);
  EXPECT_EQ(logsumexp(tensor({0, inf})).item(), inf);
  EXPECT_TRUE(std::isnan(logsumexp(tensor({0, NAN})).item()));
  EXPECT_EQ(logsumexp(zeros({0})).item(), -inf);
  const Tensor x = testing::leaf(tensor({-inf, -inf}));
  EXPECT_TRUE(same(grad({logsumexp(x)}, {x})[0], zeros({2})));
}

TEST(Norm, ScalesAndAxes) {
  EXPECT_EQ(norm(tensor({3, -4})).item(), 5);
  EXPECT_EQ(norm(tensor({3, -4}), 1).item(), 7);
  EXPECT_EQ(norm(tensor({3, -4}), INFINITY).item(), 4);
  EXPECT_EQ(norm(full({4}, 1e300, {.dtype = float64})).item(), 2e300);
  EXPECT_EQ(norm(full({4}, 1e-300, {.dtype = float64})).item(), 2e-300);
  EXPECT_EQ(norm(zeros({0})).item(), 0);
  EXPECT_TRUE(std::isnan(norm(tensor({1, NAN})).item()));
  EXPECT_THROW(norm(ones({2}), 3), ArgumentError);
}

TEST(AnyAll, GiveBool) {
  const Tensor x = from_vector<float>({0, 0, NAN, 0, 1, 2}, {2, 3});
  EXPECT_EQ(any(x, {0}).to_vector<bool>(), (std::vector<bool>{false, true, true}));
  EXPECT_EQ(all(x, {1}).to_vector<bool>(), (std::vector<bool>{false, false}));
  EXPECT_EQ(any(zeros({0})).to_vector<bool>(), (std::vector<bool>{false}));
  EXPECT_EQ(all(zeros({0})).to_vector<bool>(), (std::vector<bool>{true}));
  EXPECT_EQ(any(zeros({2, 0}), {1}).to_vector<bool>(), (std::vector<bool>{false, false}));
  EXPECT_EQ(all(gt(ones({3}), zeros({3}))).dtype(), boolean);
}

TEST(Reduce, LongAxesAnyLayoutAnyThreads) {
  const Tensor x = testing::random_integers({3, 70001}), deep = testing::random_integers({40009, 2, 37});
  const auto direct = [](const Tensor& t) {
    double total = 0;
    for (double v : t.to_vector<double>()) total += v;
    return total;
  };
  const int threads = num_threads();
  for (int n : {1, 3}) {
    set_num_threads(n);
    EXPECT_EQ(sum(x).item(), direct(x));
    EXPECT_TRUE(same(sum(x.transpose(0, 1).clone().transpose(0, 1), {1}), sum(x, {1})));
    EXPECT_EQ(sum(x, {1})[2].item(), direct(x[2]));
    EXPECT_EQ(sum(deep, {0})[1][36].item(), direct(deep.select(1, 1).select(1, 36)));
    EXPECT_EQ(sum(deep, {0, 2})[1].item(), direct(deep.select(1, 1)));
    EXPECT_EQ(amax(deep.slice(0, 0, 40000, 7), {0, 1}).shape(), Shape({37}));
    EXPECT_EQ(amin(full({40009}, 2) - one_hot(full({}, 40008, {.dtype = int64}), 40009).to(float32)).item(), 1);
  }
  const Tensor y = randn({100003});
  set_num_threads(1);
  const Tensor one = norm(y);
  set_num_threads(3);
  EXPECT_TRUE(same(norm(y), one));
  set_num_threads(threads);
}

TEST(Reduce, IntegersAndMasksHaveExtremes) {
  EXPECT_EQ(amax(from_vector<int64_t>({INT64_MIN, INT64_MIN}, {2})).to_vector<int64_t>()[0], INT64_MIN);
  EXPECT_EQ(amin(from_vector<uint8_t>({255, 255}, {2})).item(), 255);
  const Tensor mask = from_vector<bool>({false, true, false, false}, {2, 2});
  EXPECT_EQ(amax(mask, {1}).to_vector<bool>(), (std::vector<bool>{true, false}));
  EXPECT_EQ(amin(mask, {1}).to_vector<bool>(), (std::vector<bool>{false, false}));
}

TEST(Reduce, MasksAreCounted) {
  const Tensor mask = gt(tensor({1, -1, 2}), zeros({}));
  EXPECT_EQ(sum(mask).dtype(), int64);
  EXPECT_EQ(sum(mask).item(), 2);
}

}  // namespace
}  // namespace halo
