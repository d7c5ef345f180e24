#include "tests/testing.h"

namespace halo {
namespace {

using testing::message_of;

ConvProblem conv(Shape x, Shape w, ConvOptions o = {}) { return ConvProblem::conv("conv", x, w, o); }
ConvProblem transposed(Shape x, Shape w, ConvOptions o = {}) {
  return ConvProblem::transposed("conv_transpose", x, w, o);
}

TEST(ConvProblem, Sizes) {
  EXPECT_EQ(conv({256, 3, 224, 224}, {96, 3, 11, 11}, {.stride = 4, .padding = 2}).y_shape(), Shape({256, 96, 55, 55}));
  EXPECT_EQ(transposed({16, 32, 64, 64, 64}, {32, 64, 3, 5, 5}).x_shape(), Shape({16, 64, 66, 68, 68}));
  EXPECT_EQ(conv({1, 1, 10}, {1, 1, 4}, {.stride = 3, .auto_padding = AutoPadding::Same}).y_shape(), Shape({1, 1, 4}));
  EXPECT_EQ(transposed({1, 1, 4}, {1, 1, 2}, {.stride = 3, .auto_padding = AutoPadding::Same}).x_shape(),
            Shape({1, 1, 12}));
  EXPECT_EQ(conv({0, 3, 5, 5}, {4, 3, 3, 3}).y_shape(), Shape({0, 4, 3, 3}));
}

// A kernel of even reach under `same` puts the extra zero after.
TEST(ConvProblem, SamePutsTheOddZeroAfter) {
  const auto p = conv({1, 1, 10}, {1, 1, 4}, {.dilation = 3, .auto_padding = AutoPadding::Same});
  EXPECT_EQ(p.padding_before[2], 4);
  EXPECT_EQ(p.padding_after[2], 5);
}

// C++ division rounds toward zero: (4 - 5) / 2 is 0, and 0 + 1 would be an output of one.
TEST(ConvProblem, KernelLargerThanPaddedInput) {
  EXPECT_NE(message_of([] {
              conv({1, 1, 4}, {1, 1, 3}, {.stride = 2, .dilation = 2});
            }).find("effective kernel 5"),
            std::string::npos);
  EXPECT_NE(message_of([] { conv({1, 1, 2, 2}, {2, 1, 3, 3}); }).find("padded input 2"), std::string::npos);
}

TEST(ConvProblem, AbsurdIntegersAreRefusedByName) {
  const Shape x{1, 1, 8}, w{1, 1, 3};
  for (int64_t bad : {int64_t{0}, int64_t{-1}, INT64_MIN}) {
    for (auto* make : {&conv, &transposed}) {
      EXPECT_NE(message_of([&] { make(x, w, {.stride = bad}); }).find("stride"), std::string::npos);
      EXPECT_NE(message_of([&] { make(x, w, {.dilation = bad}); }).find("dilation"), std::string::npos);
      EXPECT_NE(message_of([&] { make(x, w, {.groups = bad}); }).find("groups"), std::string::npos);
    }
  }
  EXPECT_NE(message_of([&] { conv(x, w, {.padding = -1}); }).find("padding"), std::string::npos);
  EXPECT_NE(message_of([&] { conv(x, {1, 1, 0}); }).find("weight"), std::string::npos);
  EXPECT_NE(message_of([&] { conv(x, w, {.dilation = INT64_MAX}); }).find("effective kernel"), std::string::npos);
  EXPECT_THROW(transposed(x, w, {.stride = INT64_MAX}), ArgumentError);
  EXPECT_THROW(transposed(x, w, {.padding = INT64_MAX}), ArgumentError);
  EXPECT_THROW(conv(x, w, {.padding = INT64_MAX}), ArgumentError);
}

TEST(ConvProblem, LargeStridesAreValid) {
  EXPECT_EQ(conv({1, 1, 4, 4}, {1, 1, 1, 1}, {.stride = {65536, 1}}).y_shape(), Shape({1, 1, 1, 4}));
  EXPECT_EQ(conv({1, 1, 4, 4}, {1, 1, 1, 1}, {.stride = {(int64_t{1} << 32) + 1, 1}}).y_shape(), Shape({1, 1, 1, 4}));
}

TEST(ConvProblem, ChannelMismatchNamesBothShapes) {
  EXPECT_EQ(message_of([] {
              ConvProblem::conv("conv2d", {8, 64, 32, 32}, {32, 12, 3, 3}, {.groups = 4});
            }),
            "conv2d: weight expects 16 input channels per group (input [8, 64, 32, 32], groups 4) but has 12 (weight "
            "[32, 12, "
            "3, 3])");
  EXPECT_THROW(conv({2, 0, 10}, {8, 3, 3}), ArgumentError);
}

TEST(ConvProblem, OutputPaddingRule) {
  EXPECT_NE(message_of([] {
              transposed({1, 1, 3}, {1, 1, 3}, {.output_padding = 1});
            }).find("max(stride 1, dilation 1)"),
            std::string::npos);
  EXPECT_EQ(transposed({1, 1, 3}, {1, 1, 3}, {.dilation = 3, .output_padding = 2}).x_shape(), Shape({1, 1, 11}));
  EXPECT_EQ(output_padding_for(3, 7, 3, 2, 1, 2), 0);
  EXPECT_EQ(output_padding_for(3, 8, 3, 2, 1, 2), 1);
  EXPECT_THROW(output_padding_for(3, 6, 3, 2, 1, 2), ArgumentError);
}

TEST(ConvProblem, HashSeesEveryField) {
  const auto p = conv({2, 4, 9, 9}, {4, 4, 3, 3}, {.padding = 1});
  auto q = p;
  q.padding_after[1] = 2;
  EXPECT_FALSE(p == q);
  EXPECT_NE(hash_value(p), hash_value(q));
}

}  // namespace
}  // namespace halo
