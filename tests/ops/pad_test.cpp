#include "tests/testing.h"

namespace halo {
namespace {

using testing::same;

TEST(Pad, OneAxisByHand) {
  const Tensor x = tensor({1, 2, 3});
  EXPECT_TRUE(same(pad(x, {2, 1}, PadMode::Constant, 9), tensor({9, 9, 1, 2, 3, 9})));
  EXPECT_TRUE(same(pad(x, {2, 1}, PadMode::Reflect), tensor({3, 2, 1, 2, 3, 2})));
  EXPECT_TRUE(same(pad(x, {2, 4}, PadMode::Replicate), tensor({1, 1, 1, 2, 3, 3, 3, 3, 3})));
  EXPECT_TRUE(same(pad(x, {2, 3}, PadMode::Circular), tensor({2, 3, 1, 2, 3, 1, 2, 3})));
  EXPECT_EQ(pad(arange(2), {1, 1}, PadMode::Constant, -5).to_vector<int64_t>(), (std::vector<int64_t>{-5, 0, 1, -5}));
}

// Axes are independent: padding them together is padding one after the other.
TEST(Pad, AxesOneByOne) {
  const Tensor x = testing::random_integers({2, 3, 4, 5});
  for (PadMode mode : {PadMode::Constant, PadMode::Reflect, PadMode::Replicate, PadMode::Circular}) {
    const Tensor together = pad(testing::strided_copy(x), {2, 1, 0, 3, 1, 2}, mode, 7);
    const auto along = [&](const Tensor& t, int64_t dim, const IntList& amounts) {
      return pad(t.transpose(dim, 3), amounts, mode, 7).transpose(dim, 3);
    };
    EXPECT_TRUE(same(together, along(along(along(x, 3, {2, 1}), 2, {0, 3}), 1, {1, 2})));
    EXPECT_EQ(together.shape(), Shape({2, 6, 7, 8}));
  }
}

TEST(Pad, OrderIsLastAxisFirst) { EXPECT_EQ(pad(zeros({2, 3}), {1, 0, 0, 5}).shape(), Shape({7, 4})); }

TEST(Pad, Empties) {
  EXPECT_TRUE(same(pad(zeros({2, 0}), {1, 2}, PadMode::Constant, 4), full({2, 3}, 4)));
  EXPECT_EQ(pad(zeros({0, 3}), {1, 2}, PadMode::Reflect).shape(), Shape({0, 6}));
  EXPECT_THROW(pad(zeros({2, 0}), {1, 0}, PadMode::Replicate), ArgumentError);
  const Tensor x = testing::leaf(zeros({2, 0}));
  EXPECT_EQ(grad({pad(x, {1, 2})}, {x}, {ones({2, 3})})[0].shape(), Shape({2, 0}));
}

TEST(Pad, Messages) {
  const Tensor x = zeros({2, 3});
  EXPECT_THROW(pad(x, {3, 0}, PadMode::Reflect), ArgumentError);
  EXPECT_THROW(pad(x, {0, 4}, PadMode::Circular), ArgumentError);
  EXPECT_THROW(pad(x, {-1, 0}), ArgumentError);
  EXPECT_THROW(pad(x, {INT64_MAX, INT64_MAX}), ArgumentError);
  EXPECT_THROW(pad(x, {1}), ArgumentError);
  EXPECT_THROW(pad(x, {1, 1, 1, 1, 1, 1}), ArgumentError);
  const std::string text = testing::message_of([&] { pad(x, {0, 0, 2, 0}, PadMode::Reflect); });
  EXPECT_NE(text.find("dim 0 (extent 2)"), std::string::npos) << text;
  EXPECT_NE(text.find("got 2"), std::string::npos) << text;
}

}  // namespace
}  // namespace halo
