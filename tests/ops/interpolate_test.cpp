// Resizing against loops over the corners of each output element, which do not take the axes one after another.
#include <array>
#include <cmath>

#include "tests/testing.h"

namespace halo {
namespace {

using testing::near;
using testing::same;

/// Where output element i of one axis lies, in elements of the input.
double place(int64_t i, double from, double to, double factor, bool align_corners) {
  if (align_corners) return to > 1 ? static_cast<double>(i) * (from - 1) / (to - 1) : 0;
  const double ratio = factor > 0 ? 1 / factor : from / to;
  return std::max((static_cast<double>(i) + 0.5) * ratio - 0.5, 0.0);
}

/// x [N, C, D, H, W] in float64; `factor` 0: places follow from the sizes.
Tensor naive(const Tensor& x, const std::array<int64_t, 3>& size, InterpolateMode mode, bool align_corners,
             double factor = 0) {
  const auto in = x.to_vector<double>();
  const std::array<int64_t, 3> from{x.size(2), x.size(3), x.size(4)};
  std::vector<double> out;
  for (int64_t plane = 0; plane < x.size(0) * x.size(1); ++plane) {
    for (int64_t i = 0; i < size[0] * size[1] * size[2]; ++i) {
      const std::array<int64_t, 3> at{i / (size[1] * size[2]), i / size[2] % size[1], i % size[2]};
      double sum = 0;
      for (int corner = 0; corner < 8; ++corner) {
        double weight = 1;
        int64_t offset = plane;
        for (std::size_t axis = 0; axis < 3; ++axis) {
          const auto extent = static_cast<double>(from[axis]), wanted = static_cast<double>(size[axis]);
          const bool upper = (corner >> axis & 1) != 0;
          int64_t index;
          if (mode == InterpolateMode::Nearest) {
            const double ratio = factor > 0 ? 1 / factor : extent / wanted;
            index = static_cast<int64_t>(std::floor(static_cast<double>(at[axis]) * ratio));
            weight *= upper ? 0 : 1;
          } else {
            const double p = std::min(place(at[axis], extent, wanted, factor, align_corners), extent - 1);
            index = static_cast<int64_t>(std::floor(p)) + (upper ? 1 : 0);
            const double share = p - std::floor(p);
            weight *= upper ? share : 1 - share;
          }
          offset = offset * from[axis] + std::min(index, from[axis] - 1);
        }
        if (weight != 0) sum += weight * in[static_cast<std::size_t>(offset)];
      }
      out.push_back(sum);
    }
  }
  return from_vector(out, {x.size(0), x.size(1), size[0], size[1], size[2]});
}

// What PyTorch 2 gives for [[1, 2], [3, 4]] twice as large.
TEST(Interpolate, KnownValues) {
  const Tensor x = tensor({1, 2, 3, 4}).reshape({1, 1, 2, 2});
  EXPECT_TRUE(same(interpolate(x, {.scale_factor = {2}}),
                   tensor({1, 1, 2, 2, 1, 1, 2, 2, 3, 3, 4, 4, 3, 3, 4, 4}).reshape({1, 1, 4, 4})));
  EXPECT_TRUE(same(
      interpolate(x, {.size = {4}, .mode = InterpolateMode::Linear}),
      tensor({1, 1.25, 1.75, 2, 1.5, 1.75, 2.25, 2.5, 2.5, 2.75, 3.25, 3.5, 3, 3.25, 3.75, 4}).reshape({1, 1, 4, 4})));
  const float a = 1.f / 3, b = 2.f / 3;
  EXPECT_TRUE(near(interpolate(x, {.scale_factor = {2}, .mode = InterpolateMode::Linear, .align_corners = true}),
                   tensor({1, 1 + a, 1 + b, 2, 1 + b, 2, 2 + a, 2 + b, 2 + a, 2 + b, 3, 3 + a, 3, 3 + a, 3 + b, 4})
                       .reshape({1, 1, 4, 4}),
                   1e-6));
}

TEST(Interpolate, AgreesWithCorners) {
  const Tensor x = randn({2, 3, 5, 7, 1}, {.dtype = float64});
  for (const std::array<int64_t, 3>& size :
       {std::array<int64_t, 3>{5, 7, 1}, {1, 1, 1}, {11, 3, 4}, {2, 13, 1}, {4, 6, 2}, {10, 14, 2}}) {
    for (const bool linear : {false, true}) {
      for (const bool corners : {false, true}) {
        if (corners && !linear) continue;
        const auto mode = linear ? InterpolateMode::Linear : InterpolateMode::Nearest;
        const InterpolateOptions options{.size = {size[0], size[1], size[2]}, .mode = mode, .align_corners = corners};
        const Tensor expected = naive(x, size, mode, corners), got = interpolate(x, options);
        EXPECT_TRUE(near(got, expected, 1e-14)) << size[0] << " " << linear << corners;
        EXPECT_TRUE(near(interpolate(x.to(float32), options), expected, 3e-7));
        EXPECT_TRUE(same(interpolate(testing::strided_copy(x), options), got));
        for (DType half : {bfloat16, float16}) {  // rounded once
          EXPECT_TRUE(same(interpolate(x.to(half), options), interpolate(x.to(half).to(float32), options).to(half)));
        }
      }
    }
  }
}

// A factor fixes the places too: floor(7 * 1.4) = 9 elements, each 1 / 1.4 apart, rather than 7 / 9.
TEST(Interpolate, PlacesFollowAFactor) {
  const Tensor x = randn({1, 2, 1, 1, 7}, {.dtype = float64});
  for (const auto mode : {InterpolateMode::Nearest, InterpolateMode::Linear}) {
    const Tensor got = interpolate(x, {.scale_factor = {1, 1, 1.4}, .mode = mode});
    EXPECT_EQ(got.shape(), Shape({1, 2, 1, 1, 9}));
    EXPECT_TRUE(near(got, naive(x, {1, 1, 9}, mode, false, 1.4), 1e-14));
    EXPECT_FALSE(near(got, naive(x, {1, 1, 9}, mode, false), 1e-3)) << "a control that must differ";
  }
}

TEST(Interpolate, AnyNumberOfAxesAndNone) {
  const Tensor x = arange(6, {.dtype = float32}).reshape({1, 2, 3});
  EXPECT_TRUE(same(interpolate(x, {.size = {6}}), tensor({0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5}).reshape({1, 2, 6})));
  EXPECT_TRUE(same(interpolate(x, {.size = {2}}), tensor({0, 1, 3, 4}).reshape({1, 2, 2})));
  EXPECT_TRUE(same(interpolate(x, {.size = {3}, .mode = InterpolateMode::Linear}), x));
  EXPECT_EQ(interpolate(empty({0, 2, 3, 4}), {.size = {5, 6}, .mode = InterpolateMode::Linear}).shape(),
            Shape({0, 2, 5, 6}));
  const Tensor special = tensor({1, NAN, 2, INFINITY, 3}).reshape({1, 1, 5});
  EXPECT_TRUE(same(interpolate(special, {.size = {5}, .mode = InterpolateMode::Linear}), special));
  nn::Upsample layer({.scale_factor = {2}});
  EXPECT_EQ(layer(x).shape(), Shape({1, 2, 6}));
}

}  // namespace
}  // namespace halo
