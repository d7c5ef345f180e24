#include <halo/core/philox.h>

#include <algorithm>

#include "tests/testing.h"

namespace halo {
namespace {

// The known answers of the generator's authors: counter and key all zero, and all one bits.
TEST(Philox, KnownAnswers) {
  const PhiloxBlock zero = philox({0, 0}, 0);
  EXPECT_EQ(zero.v[0], 0x6627e8d5u);
  EXPECT_EQ(zero.v[1], 0xe169c58du);
  EXPECT_EQ(zero.v[2], 0xbc57ac4cu);
  EXPECT_EQ(zero.v[3], 0x9b00dbd8u);
}

TEST(Generator, SameSeedSameNumbersWhateverTheThreads) {
  Generator a(7), b(7);
  const Tensor x = randn({100003}, {}, a);
  set_num_threads(1);
  const Tensor y = randn({100003}, {}, b);
  set_num_threads(2);
  EXPECT_TRUE(testing::same(x, y));
  EXPECT_FALSE(testing::same(randn({100003}, {}, a), x));
}

TEST(Generator, Moments) {
  Generator g(1);
  const auto n = randn({200000}, {.dtype = float64}, g).to_vector<double>();
  double mean = 0, square = 0;
  for (double v : n) mean += v, square += v * v;
  EXPECT_NEAR(mean / 2e5, 0, 0.01);
  EXPECT_NEAR(square / 2e5, 1, 0.02);
  const auto u = rand({200000}, {}, g).to_vector<double>();
  EXPECT_GE(*std::min_element(u.begin(), u.end()), 0.0);
  EXPECT_LT(*std::max_element(u.begin(), u.end()), 1.0);
}

/// Half types have 16 random bits, rounded down: rounded to nearest, one of 512 numbers of bfloat16 was 1.
TEST(Generator, UniformHalvesAreBelowOne) {
  for (DType dtype : {bfloat16, float16}) {
    Generator g(3);
    const auto u = rand({200003}, {.dtype = dtype}, g).to_vector<double>();
    const double digits = dtype == bfloat16 ? 0x1p8 : 0x1p11;
    EXPECT_EQ(*std::max_element(u.begin(), u.end()), 1 - 1 / digits);
    double mean = 0;
    for (std::size_t i = 0; i < u.size(); ++i) {
      mean += u[i];
      const PhiloxBlock block = philox({3, 0}, i / 8);
      const double exact = (block.v[i % 8 / 2] >> (i % 2 * 16) & 0xffff) * 0x1p-16;
      ASSERT_LE(u[i], exact);
      ASSERT_GE(u[i] * (1 + 2 / digits), exact);
    }
    EXPECT_NEAR(mean / static_cast<double>(u.size()), 0.5 - 1 / (3 * digits), 0.002);
  }
}

TEST(Generator, PermutationHoldsEachOnce) {
  auto p = randperm(1009).to_vector<int64_t>();
  EXPECT_FALSE(std::is_sorted(p.begin(), p.end()));
  std::sort(p.begin(), p.end());
  for (int64_t i = 0; i < 1009; ++i) ASSERT_EQ(p[static_cast<std::size_t>(i)], i);
}

}  // namespace
}  // namespace halo
