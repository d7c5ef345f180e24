// Field cases of convolution: padding, transposed convolution, gradients, groups and odd geometries.
#include "field_testing.h"

namespace halo {
namespace {

using namespace testing;

using FieldConv = Field;
INSTANTIATE_TEST_SUITE_P(Devices, FieldConv, both_devices(), device_name);

// Case 13. "Same" padding of an even kernel has one zero too many for both sides. Libraries put it on different sides,
// or allocated for one side and computed for the other. Halo puts it after the data.
TEST_P(FieldConv, SamePaddingPutsTheOddZeroAfter) {
  const Tensor one = ones({}, options());
  check({.x = make({1, 2, 3, 4}, {1, 1, 4}),
         .w = make({1, 1}, {1, 1, 2}),
         .options = {.auto_padding = AutoPadding::Same},
         .y = {3, 5, 7, 4},
         .up = one,
         .dx = {1, 2, 2, 2},
         .dw = {10, 9}});
  check({.x = make({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {1, 1, 10}),
         .w = make({1, 1, 1, 1}, {1, 1, 4}),
         .options = {.dilation = 3, .auto_padding = AutoPadding::Same},
         .y = {9, 12, 15, 18, 22, 15, 18, 21, 13, 15}});
  const Tensor pooled =
      max_pool2d(ones({1, 3, 16, 16}, options()), 2, {.stride = 1, .auto_padding = AutoPadding::Same});
  EXPECT_EQ(pooled.shape(), Shape({1, 3, 16, 16}));
}

// The rule for strides, which others refuse: ceil(L / s) outputs, and L * s for the transposed convolution.
TEST_P(FieldConv, SamePaddingWithStridesAndTransposed) {
  for (int64_t length : {1, 2, 7, 8, 9}) {
    for (int64_t stride : {1, 2, 3, 5}) {
      for (int64_t kernel : {1, 2, 3, 4}) {
        const Tensor x = ones({1, 1, length}, options()), w = ones({1, 1, kernel}, options());
        const ConvOptions same{.stride = stride, .auto_padding = AutoPadding::Same};
        EXPECT_EQ(conv1d(x, w, {}, same).size(2), (length + stride - 1) / stride);
        EXPECT_EQ(conv_transpose1d(x, w, {}, same).size(2), length * stride);
      }
    }
  }
  // Uneven numbers: one zero before, two after.
  check({.x = make({1, 2, 3}, {1, 1, 3}),
         .w = make({1, 10}, {1, 1, 2}),
         .options = {.stride = 2, .padding = 1, .padding_after = 2},
         .y = {10, 32, 0}});
}

// Case 14. A scatter that ignored stride or dilation gave the right shape with the values in the wrong places, and a
// gradient check passed, as forward and backward were wrong alike.
TEST_P(FieldConv, TransposedWithStrideAndDilation) {
  check({.x = make({1, 1, 1}, {1, 1, 3}),
         .w = make({1, 1, 1}, {1, 1, 3}),
         .options = {.stride = 2, .padding = 1, .dilation = 2, .output_padding = 1},
         .transposed = true,
         .y = {0, 2, 0, 3, 0, 2, 0, 1}});
  const Tensor x = make({0, 0, 0, 0, 1, 0, 0, 0, 0}, {1, 1, 3, 3});
  const Tensor w = make({1, 2, 3, 4, 5, 6, 7, 8, 9}, {1, 1, 3, 3});
  const Tensor y = conv_transpose2d(x, w, {}, {.stride = 2, .padding = 2, .dilation = 2});
  EXPECT_TRUE(holds(y, {1, 0, 2, 0, 3, 0, 0, 0, 0, 0, 4, 0, 5, 0, 6, 0, 0, 0, 0, 0, 7, 0, 8, 0, 9}));
}

// Case 16. Stride and dilation exchanged in the adjoint: where they are equal nobody notices.
TEST_P(FieldConv, TransposedBackwardKeepsStrideAndDilationApart) {
  const Tensor x = make({1, 2, 3}, {1, 1, 3}), w = make({1, 1, 1}, {1, 1, 3}),
               up = make({1, 2, 3, 4, 5, 6, 7}, {1, 1, 7});
  check(
      {.x = x, .w = w, .options = {.stride = 2}, .transposed = true, .up = up, .dx = {6, 12, 18}, .dw = {22, 28, 34}});
  check({.x = x,
         .w = w,
         .options = {.dilation = 2},
         .transposed = true,
         .up = up,
         .dx = {9, 12, 15},
         .dw = {14, 26, 38}});
}

// Case 17. Grouped transposed weights are [Cin, Cout / groups, k]: a shape guessed from Cout, or groups and dilation
// passed in each other's place. Here both convolutions take the same options by name.
TEST_P(FieldConv, GroupedTransposedWeights) {
  check({.x = make({1, 0, 0, 1}, {1, 2, 2}),
         .w = make({1, 2, 3, 4}, {2, 1, 2}),
         .options = {.groups = 2},
         .transposed = true,
         .y = {1, 2, 0, 0, 3, 4}});
}

// Case 19. Pixels that no window reads: their gradient is 0, not what the memory held before. (Memory is poisoned
// here.)
TEST_P(FieldConv, PixelsNoWindowReadsHaveZeroGradient) {
  const Tensor x = leaf(ones({1, 1, 4, 4}, options())), w = leaf(full({1, 1, 1, 1}, 3, options()));
  conv2d(x, w, {}, {.stride = 2}).sum().backward();
  EXPECT_TRUE(holds(x.grad(), {3, 0, 3, 0, 0, 0, 0, 0, 3, 0, 3, 0, 0, 0, 0, 0}));
  const Tensor nine = ones({1, 1, 9}, options()), two = ones({1, 1, 2}, options()), one = ones({}, options());
  check({.x = nine, .w = two, .options = {.dilation = 4}, .up = one, .dx = {1, 1, 1, 1, 2, 1, 1, 1, 1}});
  check({.x = nine, .w = two, .options = {.stride = 5}, .up = one, .dx = {1, 1, 0, 0, 0, 1, 1, 0, 0}});
}

// Case 20. A blocked depthwise kernel was wrong for 24 channels and right for 23 and 25.
TEST_P(FieldConv, DepthwiseWeightGradientForEveryChannelCount) {
  const Tensor expected = make({4, 6, 6, 6, 9, 9, 6, 9, 9}, {1, 1, 3, 3});
  for (int64_t channels = 1; channels <= 70; ++channels) {
    const Tensor w = leaf(ones({channels, 1, 3, 3}, options()));
    conv2d(ones({1, channels, 6, 6}, options()), w, {}, {.stride = 2, .padding = 1, .groups = channels})
        .sum()
        .backward();
    EXPECT_TRUE(same(w.grad(), expected.expand({channels, 1, 3, 3}))) << channels << " channels";
  }
}

// Case 22. A grouped and strided data gradient fell through to a kernel that knew no groups: wrong on the GPU alone.
TEST_P(FieldConv, GroupedAndStridedGradients) {
  check({.x = make({1, 2, 3, 4, 5, 1, 2, 3, 4, 5}, {1, 2, 5}),
         .w = make({1, 2, 3, 4, 5, 6}, {2, 1, 3}),
         .options = {.stride = 2, .padding = 1, .groups = 2},
         .y = {8, 20, 14, 17, 47, 41},
         .up = make({1, 1, 1, 1, 10, 100}, {1, 2, 3}),
         .dx = {2, 4, 2, 4, 2, 5, 46, 50, 460, 500},
         .dw = {6, 9, 6, 420, 531, 42}});
}

// Case 23. A 1-D convolution run by 2-D code with its sizes in the wrong places: only the first sample was right.
TEST_P(FieldConv, OneAxisIsTheSameInEveryForm) {
  check({.x = make({1, 2, 3, 10, 20, 30}, {2, 1, 3}),
         .w = make({1, 1}, {1, 1, 2}),
         .bias = make({100}),
         .y = {103, 105, 130, 150}});
}

// Case 25. A weight gradient summed in parts into a buffer that nobody had cleared. The number of parts follows from
// the size here, so that several sizes force one and several; bits must repeat.
TEST_P(FieldConv, WeightGradientsOfSplitBatches) {
  check({.x = make({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, {4, 1, 3}),
         .w = make({1, 1}, {1, 1, 2}),
         .up = ones({}, options()),
         .dx = {1, 2, 1, 1, 2, 1, 1, 2, 1, 1, 2, 1},
         .dw = {48, 56}});
  for (int64_t batch : {1, 2, 63, 64, 1000, 20011}) {
    const Tensor w = leaf(ones({1, 1, 2}, options()));
    conv1d(ones({batch, 1, 3}, options()), w).sum().backward();
    EXPECT_TRUE(holds(w.grad(), {2.0 * static_cast<double>(batch), 2.0 * static_cast<double>(batch)})) << batch;
  }
}

// Case 26. Gradient penalties failed with groups: the second order was written for dense convolutions alone.
TEST_P(FieldConv, DoubleBackwardWithGroups) {
  const Tensor x = leaf(make({1, 2, 3, 4, 5, 6}, {1, 2, 3})), w = leaf(make({2, 5}, {2, 1, 1}));
  const Tensor s = conv1d(x, w, {}, {.groups = 2}).sum();
  const Tensor dx = grad({s}, {x}, {}, {.create_graph = true})[0];
  const Tensor penalty = (dx * dx).sum();
  EXPECT_EQ(penalty.item(), 87);
  const auto second = grad({penalty}, {w, x}, {}, {.allow_unused = true});
  EXPECT_TRUE(holds(second[0], {12, 30}));
  EXPECT_TRUE(holds(second[1], {0, 0, 0, 0, 0, 0}));
  const auto f = [](const std::vector<Tensor>& t) {
    return conv1d(t[0], t[1], {}, {.stride = 2, .padding = 1, .dilation = 2, .groups = 2});
  };
  const auto checked =
      gradcheck(f, {leaf(randn({2, 4, 9}, options(float64))), leaf(randn({6, 2, 3}, options(float64)))});
  EXPECT_TRUE(checked.ok) << checked.message;
}

}  // namespace
}  // namespace halo
