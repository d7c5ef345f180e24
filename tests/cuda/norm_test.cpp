// Norms and softmax: rows in registers and longer ones, planes by several blocks, marches over channels.
#include "tests/cuda/gpu_testing.h"

namespace halo {
namespace {

using testing::compare;
using testing::Gpu;
using testing::same;
using testing::Tensors;
using testing::with_gradients;

TEST_F(Gpu, RowsOfEveryLength) {
  for (int64_t length : {1, 2, 7, 31, 33, 256, 257, 1000, 1024, 4097, 8192, 9001}) {
    const Tensor x = randn({5, length}) * 2.0, w = randn({length}), b = randn({length});
    const Tensor target = randint(0, length, {5}), positive = rand({length}) + 0.1;
    compare("softmax", {x}, with_gradients([&](const Tensors& t) { return softmax(t[0], 1); }), {4e-6, 1e-13});
    compare("log_softmax", {x}, with_gradients([&](const Tensors& t) { return log_softmax(t[0], 1); }), {4e-6, 1e-13});
    compare("cross_entropy", {x, positive, target}, with_gradients([&](const Tensors& t) {
              return cross_entropy(t[0], t[2], {.weight = t[1].detach(), .label_smoothing = 0.1});
            }));
    compare("cumsum", {x}, with_gradients([&](const Tensors& t) { return cumsum(t[0], 1); }));
    compare("sum", {x}, with_gradients([&](const Tensors& t) { return sum(t[0], {1}); }));
    if (length < 7) continue;  // of two values the gradient is what cancellation leaves
    compare("layer_norm", {x + 3.0, w, b},
            with_gradients([&](const Tensors& t) { return layer_norm(t[0], {length}, t[1], t[2]); }), {4e-6, 1e-12});
  }
  const Tensor many = randn({1031, 100}) + 3.0, row = randn({100});
  compare("layer_norm of many rows", {many, row, row},
          with_gradients([&](const Tensors& t) { return layer_norm(t[0], {100}, t[1], t[2]); }), {4e-6, 1e-12});
}

// Rows that a block comes to later are as those that it begins with.
TEST_F(Gpu, RowsOfLongMarches) {
  constexpr int64_t kRows = 9000, kLength = 4104, kFew = 50;
  for (DType dtype : {float32, bfloat16}) {
    const Tensor x = randn({kRows, kLength}, {.device = Device::cuda()}).to(dtype), y = layer_norm(x, {kLength});
    for (const int64_t row : {int64_t{0}, kRows / 2, kRows - kFew}) {
      const auto few = [&](const Tensor& t) { return t.slice(0, row, row + kFew).contiguous(); };
      EXPECT_TRUE(same(few(y), layer_norm(few(x), {kLength}))) << name(dtype) << ", row " << row;
      EXPECT_FALSE(same(few(y), few(x)));
    }
  }
}

// Where only the gradient of x is wanted, sums over rows are not written.
TEST_F(Gpu, GradientsOfLayerNormOneByOne) {
  for (DType dtype : {float32, bfloat16, float64}) {
    for (int64_t length : {200, 1001, 4096}) {
      const auto leaf = [&](const Shape& shape) {
        return randn(shape, {.device = Device::cuda()}).to(dtype).detach().requires_grad_();
      };
      const Tensor x = leaf({77, length}), w = leaf({length}), b = leaf({length});
      const Tensor y = layer_norm(x, {length}, w, b), g = leaf(y.shape()).detach();
      const Tensors all = grad({y}, {x, w, b}, {g}, {.retain_graph = true});
      Tensors one_by_one;
      for (const Tensor& t : {x, w, b}) one_by_one.push_back(grad({y}, {t}, {g}, {.retain_graph = true})[0]);
      for (std::size_t i = 0; i < all.size(); ++i) {
        EXPECT_TRUE(same(one_by_one[i], all[i])) << name(dtype) << ", length " << length << ", result " << i;
        EXPECT_FALSE(same(all[i], zeros_like(all[i])));
      }
    }
  }
}

// Of one channel the gradient of the weight is what cancellation leaves of a million products.
TEST_F(Gpu, NormalisationByBlocks) {
  // From the fourth on: rows of several blocks, or of several pieces a plane; the last: more rows than blocks at once.
  for (const Shape& shape :
       {Shape{40, 8, 23, 29}, Shape{64, 48, 11, 7}, Shape{130, 2, 1100}, Shape{25, 12, 55, 53}, Shape{33, 2, 101, 97},
        Shape{34, 2, 99, 122}, Shape{41, 1, 150, 151}, Shape{300, 4, 57, 31}}) {
    const Tensor x = randn(shape) + 3.0, w = randn({shape[1]}), b = randn({shape[1]});
    for (int64_t groups : {int64_t{1}, int64_t{2}, shape[1]}) {
      if (shape[1] % groups != 0) continue;
      compare("group_norm", {x, w, b},
              with_gradients([&](const Tensors& t) { return group_norm(t[0], groups, t[1], t[2]); }), {4e-6, 4e-12});
    }
  }
}

TEST_F(Gpu, MarchesOverChannels) {
  for (int64_t size : {1, 3, 5, 6}) {
    for (const Shape& shape : {Shape{3, 17, 5, 7}, Shape{1, 1, 40}, Shape{2, 33, 1}, Shape{3, 17, 9, 11},
                               Shape{2, 1, 64}, Shape{2, 5, 29, 31}, Shape{2, 6, 1100}}) {
      for (double beta : {0.75, 0.6}) {
        compare("local_response_norm", {randn(shape)}, with_gradients([&](const Tensors& t) {
                  return local_response_norm(t[0], size, {.alpha = 0.5, .beta = beta, .k = 1.5});
                }),
                {4e-6, 1e-13});
      }
    }
  }
}

// Half types march in pairs, and in wide rows where images fill the GPU: of the first two shapes.
TEST_F(Gpu, MarchesOverChannelsOfHalfTypes) {
  for (const Shape& shape : {Shape{89, 7, 55, 55}, Shape{133, 5, 2019}, Shape{3, 7, 1018}, Shape{3, 16, 27, 27},
                             Shape{1, 3, 506}, Shape{2, 17, 1667}, Shape{5, 6, 13, 13}}) {
    for (DType dtype : {bfloat16, float16}) {
      for (double beta : {0.75, 0.6}) {
        const Tensor x = randn(shape, {.device = Device::cuda()}).to(dtype), g = randn(shape, x.options()).to(dtype);
        const auto run = [&](DType type) {
          const Tensor leaf = x.to(type).detach().requires_grad_();
          const Tensor y = local_response_norm(leaf, 5, {.alpha = 0.5, .beta = beta, .k = 1.5});
          return std::pair(y.detach().to(float32), grad({y}, {leaf}, {g.to(type)})[0].to(float32));
        };
        const auto [y, dx] = run(dtype);
        const auto [wide_y, wide_dx] = run(float32);
        const double unit = dtype == bfloat16 ? 0x1p-8 : 0x1p-11;  // rounded once
        EXPECT_TRUE(testing::near(y, wide_y, unit)) << name(dtype) << shape;
        EXPECT_TRUE(testing::near(dx, wide_dx, unit)) << name(dtype) << shape;
      }
    }
  }
}

TEST_F(Gpu, ChannelWindowsOfAnySize) {
  compare("many channels", {randn({1, 2100001, 1})},
          with_gradients([&](const Tensors& t) { return local_response_norm(t[0], 6, {.alpha = 0.5}); }),
          {4e-6, 1e-13});
  compare("wide windows", {randn({1, 15001, 2})},
          with_gradients([&](const Tensors& t) { return local_response_norm(t[0], 15001, {.alpha = 0.5}); }),
          {4e-6, 1e-12});
}

}  // namespace
}  // namespace halo
