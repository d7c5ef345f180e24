#include "tests/testing.h"

namespace halo {
namespace {

TEST(Shape, CountsElementsAndRefusesOverflow) {
  EXPECT_EQ(Shape({2, 3, 5}).numel(), 30);
  EXPECT_EQ(Shape{}.numel(), 1);
  EXPECT_EQ(Shape({4611686018427387904, 4, 0}).numel(), 0);
  EXPECT_THROW((void)Shape({4611686018427387904, 4}).numel(), ArgumentError);
  EXPECT_THROW((Shape{1, 2, 3, 4, 5, 6, 7, 8, 9}), ArgumentError);
}

TEST(Shape, Broadcasts) {
  EXPECT_EQ(broadcast_shapes("t", {5, 1, 3}, {2, 1}), Shape({5, 2, 3}));
  EXPECT_EQ(broadcast_shapes("t", {0}, {1}), Shape({0}));
  EXPECT_NE(testing::message_of([] {
              broadcast_shapes("add", {2, 3}, {2, 4});
            }).find("[2, 3] and [2, 4]"),
            std::string::npos);
}

TEST(Shape, NormalizesAxes) {
  EXPECT_EQ(normalize_axis("t", -1, 3), 2);
  EXPECT_THROW(normalize_axis("t", 3, 3), ArgumentError);
  EXPECT_THROW(normalize_axis("t", -4, 3), ArgumentError);
}

}  // namespace
}  // namespace halo
