#include "tests/testing.h"

namespace halo {
namespace {

using testing::same;

TEST(Cat, AnyAxisAnyTypeAnyStrides) {
  const Tensor a = testing::random_integers({2, 3}), b = testing::random_integers({2, 2});
  const Tensor joined = cat({a, testing::strided_copy(b), zeros({2, 0})}, -1);
  EXPECT_EQ(joined.shape(), Shape({2, 5}));
  EXPECT_TRUE(same(joined.slice(1, 0, 3), a));
  EXPECT_TRUE(same(joined.slice(1, 3, 5), b));
  EXPECT_EQ(cat({arange(2), arange(3)}).to_vector<int64_t>(), (std::vector<int64_t>{0, 1, 0, 1, 2}));
  EXPECT_EQ(cat({zeros({1, 2}, {.dtype = bfloat16}), ones({1, 2}, {.dtype = bfloat16})}).to_vector<float>(),
            (std::vector<float>{0, 0, 1, 1}));
}

TEST(Cat, Messages) {
  EXPECT_THROW(cat({}), ArgumentError);
  EXPECT_THROW(cat({zeros({2, 3}), zeros({3, 3})}, 1), ArgumentError);
  EXPECT_THROW(cat({zeros({2, 3}), zeros({2})}, 1), ArgumentError);
  EXPECT_THROW(cat({zeros({2}), zeros({2}, {.dtype = float64})}), ArgumentError);
  const std::string text = testing::message_of([] { cat({zeros({2, 3}), zeros({2, 3}), zeros({5, 3})}, 1); });
  EXPECT_NE(text.find("tensor 2"), std::string::npos) << text;
}

TEST(Stack, NewAxisAnywhere) {
  const Tensor a = tensor({1, 2}), b = tensor({3, 4});
  EXPECT_TRUE(same(stack({a, b}), from_vector<float>({1, 2, 3, 4}, {2, 2})));
  EXPECT_TRUE(same(stack({a, b}, -1), from_vector<float>({1, 3, 2, 4}, {2, 2})));
  EXPECT_THROW(stack({a, tensor({1})}), ArgumentError);
  EXPECT_THROW(stack({a, b}, 2), ArgumentError);
}

TEST(Split, ViewsThatCoverTheAxis) {
  const Tensor x = arange(7);
  const auto parts = split(x, 3);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[2].to_vector<int64_t>(), (std::vector<int64_t>{6}));
  EXPECT_EQ(parts[1].storage(), x.storage());
  const auto uneven = split(x, {1, 0, 6});
  ASSERT_EQ(uneven.size(), 3u);
  EXPECT_EQ(uneven[1].numel(), 0);
  EXPECT_EQ(uneven[2].numel(), 6);
  EXPECT_EQ(chunk(x, 3)[2].numel(), 1);
  EXPECT_EQ(chunk(x, 100).size(), 7u);
  EXPECT_EQ(split(zeros({0, 2}), 3).size(), 1u);
  EXPECT_THROW(split(x, {3, 3}), ArgumentError);
  EXPECT_THROW(split(x, {3, 5}), ArgumentError);
  EXPECT_THROW(split(x, {3, 4, 1}), ArgumentError);
  EXPECT_THROW(split(x, 0), ArgumentError);
  EXPECT_THROW(split(x, {INT64_MAX, INT64_MAX}), ArgumentError);
  EXPECT_EQ(split(x, INT64_MAX).size(), 1u);
  EXPECT_THROW(split(x, IntList{}), ArgumentError);
  EXPECT_THROW(chunk(x, 0), ArgumentError);
}

TEST(Flip, AnyAxesAnyStrides) {
  const Tensor x = arange(24).reshape({2, 3, 4});
  const auto got = flip(x.transpose(0, 2), {0, -1}).to_vector<int64_t>();
  for (int64_t i = 0; i < 4; ++i)
    for (int64_t j = 0; j < 3; ++j)
      for (int64_t k = 0; k < 2; ++k)
        EXPECT_EQ(got[static_cast<std::size_t>((i * 3 + j) * 2 + k)], (1 - k) * 12 + j * 4 + (3 - i));
  EXPECT_EQ(flip(zeros({0, 3}), {0}).shape(), Shape({0, 3}));
  EXPECT_TRUE(same(flip(x, {}), x));
  EXPECT_THROW(flip(x, {0, -3}), ArgumentError);
}

}  // namespace
}  // namespace halo
