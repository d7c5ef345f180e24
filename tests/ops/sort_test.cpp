#include <algorithm>
#include <limits>

#include "tests/testing.h"

namespace halo {
namespace {

using testing::same;
using Ints = std::vector<int64_t>;

TEST(Sort, StableAndNanIsTheLargest) {
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor x = tensor({2, NAN, -inf, 2, inf, -0.0f, 0, NAN, 1});
  const auto up = sort(x), down = sort(x, 0, true);
  EXPECT_EQ(up.indices.to_vector<int64_t>(), (Ints{2, 5, 6, 8, 0, 3, 4, 1, 7}));
  EXPECT_EQ(down.indices.to_vector<int64_t>(), (Ints{1, 7, 4, 0, 3, 8, 5, 6, 2}));
  EXPECT_TRUE(same(up.values, tensor({-inf, -0.0f, 0, 1, 2, 2, inf, NAN, NAN})));
}

TEST(Sort, AnyAxisAnyStrides) {
  const Tensor x = randint(0, 50, {3, 7, 5});
  const auto [values, indices] = sort(testing::strided_copy(x.to(float32)), 1);
  EXPECT_TRUE(same(gather(x.to(float32), 1, indices), values));
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t k = 0; k < 5; ++k) {
      const auto line = values[i].select(1, k).to_vector<float>();
      EXPECT_TRUE(std::is_sorted(line.begin(), line.end()));
      auto from = indices[i].select(1, k).to_vector<int64_t>();
      std::sort(from.begin(), from.end());
      EXPECT_EQ(from, (Ints{0, 1, 2, 3, 4, 5, 6}));
    }
  }
  EXPECT_EQ(sort(zeros({2, 0})).values.shape(), Shape({2, 0}));
  EXPECT_EQ(sort(full({}, 3)).indices.item(), 0);
}

TEST(Topk, IsTheHeadOfSort) {
  const Tensor x = randint(0, 9, {4, 31}).to(float32);  // many equals
  for (bool largest : {true, false}) {
    for (int64_t k : {0, 1, 5, 31}) {
      const auto top = topk(x, k, -1, largest), all = sort(x, -1, largest);
      EXPECT_TRUE(same(top.values, all.values.slice(1, 0, k)));
      EXPECT_EQ(top.indices.to_vector<int64_t>(), all.indices.slice(1, 0, k).to_vector<int64_t>());
    }
  }
  EXPECT_THROW(topk(x, 32), ArgumentError);
  EXPECT_THROW(topk(x, -1), ArgumentError);
}

TEST(Argmax, FirstOfEqualsAndNanWins) {
  EXPECT_EQ(argmax(tensor({1, 3, 3, 2})).item(), 1);
  EXPECT_EQ(argmin(tensor({2, 1, 3, 1})).item(), 1);
  EXPECT_EQ(argmax(tensor({1, NAN, 3, NAN})).item(), 1);
  EXPECT_EQ(argmin(tensor({1, NAN, 3, NAN})).item(), 1);
  const Tensor x = from_vector<float>({1, 5, 2, 7, 0, 9}, {2, 3});
  EXPECT_EQ(argmax(x, 0).to_vector<int64_t>(), (Ints{1, 0, 1}));
  EXPECT_EQ(argmax(x, 1, true).shape(), Shape({2, 1}));
  EXPECT_EQ(argmax(x.transpose(0, 1)).item(), 5);
  EXPECT_EQ(argmax(x, std::nullopt, true).shape(), Shape({1, 1}));
  EXPECT_EQ(argmax(full({}, 2), 0).item(), 0);
  EXPECT_EQ(argmax(zeros({0, 3}), 1).shape(), Shape({0}));
  EXPECT_THROW(argmax(zeros({0, 3}), 0), ArgumentError);
  EXPECT_THROW(argmax(zeros({0})), ArgumentError);
}

TEST(Cumsum, AnyAxisAndLongSums) {
  EXPECT_EQ(cumsum(arange(6).reshape({2, 3}), 1).to_vector<int64_t>(), (Ints{0, 1, 3, 3, 7, 12}));
  EXPECT_EQ(cumsum(arange(6).reshape({2, 3}), 0).to_vector<int64_t>(), (Ints{0, 1, 2, 3, 5, 7}));
  EXPECT_EQ(cumsum(zeros({0, 3}), 0).shape(), Shape({0, 3}));
  // 2^24 + 1 is no float32: a running float32 sum of ones would stop there.
  const Tensor long_one = cumsum(ones({(1 << 24) + 3}), 0);
  EXPECT_EQ(long_one[-1].item(), (1 << 24) + 4);  // rounded to even from 2^24 + 3
  EXPECT_THROW(cumsum(zeros({2}, {.dtype = boolean}), 0), ArgumentError);
}

}  // namespace
}  // namespace halo
