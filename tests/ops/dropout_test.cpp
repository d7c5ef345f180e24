#include <algorithm>
#include <set>

#include "tests/testing.h"

namespace halo {
namespace {

using testing::same;

TEST(Dropout, MaskFollowsTheStateAndThePosition) {
  Generator a(3), b(3);
  const Tensor x = ones({7, 1001});
  const Tensor y = dropout(x, 0.25, true, a);
  const int threads = num_threads();
  set_num_threads(1);
  EXPECT_TRUE(same(dropout(testing::strided_copy(x), 0.25, true, b), y));  // strides change nothing
  set_num_threads(threads);
  EXPECT_FALSE(same(dropout(x, 0.25, true, b), y));  // the state moved on
  const auto values = y.to_vector<float>();
  const auto kept = std::count(values.begin(), values.end(), 1 / 0.75f);
  EXPECT_EQ(kept + std::count(values.begin(), values.end(), 0.0f), 7007);
  EXPECT_NEAR(static_cast<double>(kept) / 7007, 0.75, 0.02);
  // The mask is the one that the uniform numbers of the same state give.
  Generator c(3);
  const auto uniform = rand({7, 1001}, {}, c).to_vector<float>();
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i] == 0, uniform[i] < 0.25f) << i;
}

TEST(Dropout, BackwardUsesTheSameMask) {
  Generator generator(9);
  const Tensor x = testing::leaf(full({101}, 2));
  const Tensor y = dropout(x, 0.5, true, generator);
  EXPECT_TRUE(same(grad({y}, {x}, {ones({101})})[0] * 2.0, y.detach()));
}

TEST(Dropout, EndsOfTheRange) {
  const Tensor x = tensor({1, NAN, 3});
  EXPECT_TRUE(same(dropout(x, 1), zeros({3})));
  EXPECT_TRUE(dropout(x, 0).is_same(x));
  EXPECT_TRUE(dropout(x, 0.5, false).is_same(x));
  EXPECT_EQ(dropout(zeros({0}), 0.5).numel(), 0);
  EXPECT_THROW(dropout(x, -0.1), ArgumentError);
  EXPECT_THROW(dropout(x, 1.1), ArgumentError);
  EXPECT_THROW(dropout(x, NAN), ArgumentError);
}

TEST(Multinomial, FrequenciesFollowTheWeights) {
  Generator generator(1);
  const Tensor drawn = multinomial(tensor({1, 0, 3, 0}), 20000, true, generator);
  int64_t last = 0;
  for (int64_t c : drawn.to_vector<int64_t>()) {
    ASSERT_TRUE(c == 0 || c == 2);
    last += c == 2;
  }
  EXPECT_NEAR(static_cast<double>(last) / 20000, 0.75, 0.01);
}

TEST(Multinomial, WithoutReplacementNoClassTwice) {
  Generator generator(2);
  int64_t first = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto drawn = multinomial(tensor({1, 0, 3, 2}), 3, false, generator).to_vector<int64_t>();
    EXPECT_EQ(std::set<int64_t>(drawn.begin(), drawn.end()), (std::set<int64_t>{0, 2, 3}));
    first += drawn[0] == 2;
  }
  EXPECT_NEAR(static_cast<double>(first) / 2000, 0.5, 0.04);
}

TEST(Multinomial, RowsAndMessages) {
  Generator a(4), b(4);
  const Tensor weights = rand({3, 5});
  const Tensor x = multinomial(weights, 4, true, a);
  EXPECT_EQ(x.shape(), Shape({3, 4}));
  EXPECT_EQ(multinomial(weights, 4, true, b).to_vector<int64_t>(), x.to_vector<int64_t>());
  EXPECT_THROW(multinomial(tensor({1, 0}), 2), ArgumentError);
  EXPECT_THROW(multinomial(zeros({2}), 1, true), ArgumentError);
  EXPECT_THROW(multinomial(tensor({1, -1}), 1, true), ArgumentError);
  EXPECT_THROW(multinomial(tensor({1, NAN}), 1, true), ArgumentError);
  EXPECT_THROW(multinomial(arange(3), 1, true), ArgumentError);
}

}  // namespace
}  // namespace halo
