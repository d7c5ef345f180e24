// Pooling: tiles in shared memory and whole planes, windows of any size.
#include "tests/cuda/gpu_testing.h"

namespace halo {
namespace {

using testing::compare;
using testing::Gpu;
using testing::same;
using testing::Tensors;
using testing::with_gradients;

TEST_F(Gpu, PoolingOverTiles) {
  const std::vector<std::pair<IntList, MaxPoolOptions>> windows{{{3}, {.stride = 2}},
                                                                {{3}, {.stride = 2, .padding = 1}},
                                                                {{3}, {.stride = 1, .padding = 1}},
                                                                {{5}, {.stride = 1, .padding = 2}},
                                                                {{2}, {.stride = 2, .ceil_mode = true}},
                                                                {{3, 2}, {.stride = 2, .padding = 1}},
                                                                {{2, 3}, {.stride = 2, .ceil_mode = true}},
                                                                {{3, 4}, {.stride = {1, 2}, .padding = {1, 2}}},
                                                                {{5, 2}, {.stride = {7, 1}}}};
  for (const Shape& shape : {Shape{2, 3, 150, 141}, Shape{70, 2, 5, 6}, Shape{1, 1, 3, 2503}, Shape{1, 2, 17, 1503}}) {
    const Tensor x = randn(shape);
    for (const auto& [kernel, most] : windows) {
      const AvgPoolOptions average{.stride = most.stride, .padding = most.padding, .ceil_mode = most.ceil_mode};
      if (shape[2] < kernel[0]) continue;
      compare("max_pool2d", {x}, with_gradients([&](const Tensors& t) { return max_pool2d(t[0], kernel, most); }));
      compare("avg_pool2d", {x}, with_gradients([&](const Tensors& t) { return avg_pool2d(t[0], kernel, average); }));
    }
  }
}

// Half types are written by words, which begin within planes of odd width, and of even width not at a row's begin.
TEST_F(Gpu, PoolingOfHalfTypes) {
  const std::vector<std::pair<IntList, MaxPoolOptions>> windows{{{3}, {.stride = 2}},
                                                                {{3}, {.stride = 2, .padding = 1}},
                                                                {{3}, {.stride = 1, .padding = 1}},
                                                                {{2}, {.stride = 2, .ceil_mode = true}},
                                                                {{3, 2}, {.stride = 2, .padding = 1}},
                                                                {{2, 3}, {.stride = 2, .ceil_mode = true}}};
  for (const Shape& shape : {Shape{5, 3, 55, 55}, Shape{70, 2, 5, 6}, Shape{2, 3, 64, 64}, Shape{1, 3, 37, 112},
                             Shape{1, 2, 150, 301}, Shape{3, 1, 4, 3}}) {
    for (DType dtype : {bfloat16, float16}) {
      const Tensor x = randn(shape, {.device = Device::cuda()}).to(dtype), wide = x.to(float32);
      for (const auto& [kernel, most] : windows) {
        const AvgPoolOptions average{.stride = most.stride, .padding = most.padding, .ceil_mode = most.ceil_mode};
        const auto compare_types = [&](const char* name, const std::function<Tensor(const Tensor&)>& pool) {
          const Tensor leaf = x.detach().requires_grad_(), wide_leaf = wide.detach().requires_grad_();
          const Tensor y = pool(leaf), wide_y = pool(wide_leaf);
          const Tensor g = randn(y.shape(), {.device = y.device()}).to(dtype);
          const Tensor got = grad({y}, {leaf}, {g})[0], expected = grad({wide_y}, {wide_leaf}, {g.to(float32)})[0];
          const double unit = dtype == bfloat16 ? 0x1p-8 : 0x1p-11;  // rounded once
          EXPECT_TRUE(testing::near(y.detach().to(float32), wide_y.detach(), unit)) << name << shape;
          EXPECT_TRUE(testing::near(got.to(float32), expected, unit)) << name << shape;
          return testing::same(got, expected.to(dtype));
        };
        EXPECT_TRUE(compare_types("max_pool2d", [&](const Tensor& t) { return max_pool2d(t, kernel, most); }));
        compare_types("avg_pool2d", [&](const Tensor& t) { return avg_pool2d(t, kernel, average); });
      }
    }
  }
}

// Tiles in shared memory were once asked for that no GPU has.
TEST_F(Gpu, PoolingAtUnusualSizes) {
  const AvgPoolOptions apart{.stride = {1, 7}}, dense{.stride = 1}, divided{.stride = 1, .divisor_override = 3};
  const std::vector<std::tuple<Shape, IntList, AvgPoolOptions>> cases{
      {{1, 1, 40, 3001}, {32, 1}, dense},
      {{2, 1, 67, 301}, {32, 1}, divided},
      {{1, 2, 3, 2503}, {1, 5}, apart},
      {{1, 1, 2503, 3}, {9, 2}, dense},
      {{3, 1, 31, 29}, {31, 29}, dense},
      // Few cells in narrow rows: a block has threads for more.
      {{1, 1, 5000, 1}, {278, 1}, {.stride = {278, 1}}},
      {{2, 1, 3400, 2}, {100, 1}, {.stride = {100, 1}}}};
  for (const auto& [shape, kernel, options] : cases) {
    const Tensor x = randn(shape);
    compare("avg_pool2d", {x}, with_gradients([&](const Tensors& t) { return avg_pool2d(t[0], kernel, options); }));
    if (kernel[0] * kernel[1] > 256) continue;
    compare("max_pool2d", {x},
            with_gradients([&](const Tensors& t) { return max_pool2d(t[0], kernel, {.stride = options.stride}); }));
  }
  // Of the last window's row, a byte behind it is read: it was behind the block's shared memory.
  compare("max_pool2d of 39 x 39 windows", {randn({1, 16, 80, 80})},
          with_gradients([](const Tensors& t) { return max_pool2d(t[0], 3, {.stride = 2}); }));
}

// Windows of three axes, dilated, at edges, of more taps than a byte numbers, and adaptive ones.
TEST_F(Gpu, PoolingOfVolumes) {
  const std::vector<std::pair<IntList, MaxPoolOptions>> windows{
      {{2}, {.stride = 2}},
      {{3}, {.stride = 1, .padding = 1}},
      {{2, 3, 1}, {.stride = {2, 1, 3}, .padding = {1, 1, 0}}},
      {{3}, {.stride = 2, .padding = 1, .dilation = {1, 2, 3}}},
      {{7}, {.stride = 3, .padding = 3}}};
  const Tensor x = randn({2, 3, 9, 11, 13});
  for (const auto& [kernel, most] : windows) {
    compare("max_pool3d", {x}, with_gradients([&](const Tensors& t) { return max_pool3d(t[0], kernel, most); }));
    if (!most.dilation.empty()) continue;
    for (bool padded : {false, true}) {
      const AvgPoolOptions average{.stride = most.stride, .padding = most.padding, .count_include_pad = padded};
      compare("avg_pool3d", {x}, with_gradients([&](const Tensors& t) { return avg_pool3d(t[0], kernel, average); }));
    }
  }
  for (const auto& pool : {adaptive_max_pool3d, adaptive_avg_pool3d}) {
    compare("adaptive", {x}, with_gradients([&](const Tensors& t) { return pool(t[0], {4, 11, 5}); }));
  }
}

}  // namespace
}  // namespace halo
