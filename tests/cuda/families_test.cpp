// Elementwise functions, reductions, order, indexing and resizing, forward and gradients: the GPU against the CPU.
#include "tests/cuda/gpu_testing.h"

namespace halo {
namespace {

using testing::Bounds;
using testing::compare;
using testing::Gpu;
using testing::same;
using testing::Tensors;
using testing::with_gradients;

Tensor above(const Tensor& x, int value) { return gt(x, value); }

TEST_F(Gpu, Reductions) {
  for (const Shape& shape : {Shape{3, 5, 7}, Shape{1, 1}, Shape{40009}, Shape{2, 40009}, Shape{40009, 2},
                             Shape{64, 3, 33, 17}, Shape{2, 0, 3}, Shape{1000, 7}}) {
    const Tensor x = randn(shape);
    std::vector<Shape> dim_sets{{}, {0}, {-1}};
    if (shape.rank() > 2) dim_sets.insert(dim_sets.end(), {Shape{1}, Shape{0, 2}});
    for (const Shape& dims : dim_sets) {
      compare("reductions of " + shape.str() + " over " + dims.str(), {x}, [&](const Tensors& t) {
        Tensors results{sum(t[0], dims), mean(t[0], dims, true),    logsumexp(t[0], dims),     norm(t[0], 2, dims),
                        var(t[0], dims), any(above(t[0], 3), dims), all(above(t[0], -3), dims)};
        if (t[0].numel() > 0) results.insert(results.end(), {amax(t[0], dims), amin(t[0], dims)});
        return results;
      });
    }
  }
}

TEST_F(Gpu, ReductionsOfIntegersNanAndLargeMeans) {
  const Tensor counts = randint(-9, 9, {101, 33});
  compare("integers", {counts},
          [](const Tensors& t) {
            return Tensors{sum(t[0]), amax(t[0], {0}), sum(above(t[0], 3), {1})};
          },
          {0, 0});
  Tensor x = randn({50, 33});
  x.select(1, 4).fill_(NAN);
  x.select(1, 5).fill_(INFINITY);
  compare("nan", {x}, [](const Tensors& t) {
    return Tensors{sum(t[0], {0}), amax(t[0], {0}), amin(t[0], {0}), var(t[0], {0}), logsumexp(t[0], {0})};
  });
  compare("variance", {randn({7, 20011}, {.dtype = float64}) + 1e6},
          [](const Tensors& t) { return Tensors{var(t[0].to(float64), {1})}; }, {1e-9, 1e-9});
}

TEST_F(Gpu, ArgExtremesSortAndTopk) {
  const Tensor x = randint(-20, 20, {7, 1031}).to(float32);  // many equal values
  Tensor odd = randn({5, 129});
  odd.select(1, 3).fill_(NAN);
  odd.select(1, 77).fill_(-INFINITY);
  odd.select(1, 78).fill_(-0.0);
  odd.select(1, 79).fill_(0.0);
  const Tensor long_row = randint(-20, 20, {3, 1000}).to(float32), bytes = randint(0, 200, {3, 257}).to(uint8);
  for (const Tensor& t : {x, odd, long_row, randint(-5, 5, {3, 257}), bytes, randn({1, 1})}) {
    compare("order", {t},
            [](const Tensors& v) {
              Tensors results{argmax(v[0], 1), argmin(v[0], 0), argmax(v[0])};
              for (bool descending : {false, true}) {
                const SortResult sorted = sort(v[0], -1, descending), columns = sort(v[0], 0, descending);
                results.insert(results.end(), {sorted.values, sorted.indices, columns.values, columns.indices});
              }
              const SortResult top = topk(v[0], 1, -1, true);
              results.insert(results.end(), {top.values, top.indices});
              return results;
            },
            {0, 0});
  }
}

TEST_F(Gpu, RunningSums) {
  for (const Shape& shape : {Shape{1}, Shape{1000}, Shape{3, 257}, Shape{257, 3}, Shape{2, 5, 300}}) {
    for (int64_t dim : {int64_t{0}, int64_t{-1}}) {
      compare("cumsum", {randn(shape)}, with_gradients([&](const Tensors& t) { return cumsum(t[0], dim); }));
      compare("cumsum", {randint(-9, 9, shape)}, [&](const Tensors& t) { return Tensors{cumsum(t[0], dim)}; }, {0, 0});
    }
  }
}

TEST_F(Gpu, Softmax) {
  for (const Shape& shape : {Shape{3, 5}, Shape{7, 1}, Shape{2, 1031}, Shape{3, 10, 77}, Shape{257, 10}, Shape{2, 0}}) {
    for (int64_t dim : {int64_t{0}, int64_t{1}}) {
      const Bounds bounds{4e-6, 1e-13};  // the gradient of a row that is nearly certain is what cancellation leaves
      compare("softmax", {randn(shape) * 3.0}, with_gradients([&](const Tensors& t) { return softmax(t[0], dim); }),
              bounds);
      compare("log_softmax", {randn(shape) * 3.0},
              with_gradients([&](const Tensors& t) { return log_softmax(t[0], dim); }), bounds);
    }
  }
  Tensor x = randn({5, 9});
  x.select(0, 1).fill_(-INFINITY);
  x.select(0, 2).select(0, 3).fill_(NAN);
  x.select(0, 3).select(0, 3).fill_(-INFINITY);
  x.select(0, 4).fill_(1e4);
  compare("softmax", {x}, [](const Tensors& t) { return Tensors{softmax(t[0], 1), log_softmax(t[0], 1)}; });
}

TEST_F(Gpu, CrossEntropy) {
  for (const Shape& shape : {Shape{5, 7}, Shape{300, 10}, Shape{3, 1031}, Shape{2, 5, 17, 3}}) {
    Shape positions = shape;
    positions.erase(1);
    const Tensor x = randn(shape) * 2.0, weight = rand({shape[1]}) + 0.1;
    Tensor target = randint(0, shape[1], positions);
    target.select(0, 0).fill_(-100);
    for (Reduction reduction : {Reduction::None, Reduction::Mean, Reduction::Sum}) {
      for (double smoothing : {0.0, 0.1}) {
        compare("cross_entropy", {x, weight, target}, with_gradients([&](const Tensors& t) {
                  return cross_entropy(t[0], t[2],
                                       {.weight = t[1].detach(), .reduction = reduction, .label_smoothing = smoothing});
                }));
      }
      compare("nll_loss", {log_softmax(x, 1), target},
              with_gradients([&](const Tensors& t) { return nll_loss(t[0], t[1], {.reduction = reduction}); }));
    }
  }
}

TEST_F(Gpu, LabelsOutsideGiveNan) {
  const Device gpu = Device::cuda();
  const Tensor x = randn({3, 4}, {.device = gpu});
  const Tensor target = from_vector<int64_t>({1, 4, 0}, {3}, gpu);
  const auto loss = cross_entropy(x, target, {.reduction = Reduction::None}).to_vector<float>();
  EXPECT_FALSE(std::isnan(loss[0]));
  EXPECT_TRUE(std::isnan(loss[1]));
  EXPECT_FALSE(std::isnan(loss[2]));
}

TEST_F(Gpu, Indexing) {
  const Tensor x = randn({11, 7, 5}), index = randint(0, 7, {13}), all = randint(0, 7, {11, 4, 5});
  compare("index_select", {x, index}, with_gradients([](const Tensors& t) { return index_select(t[0], 1, t[1]); }));
  compare("gather", {x, all}, with_gradients([](const Tensors& t) { return gather(t[0], 1, t[1]); }));
  compare("scatter_add", {x, all, randn({11, 4, 5})},
          with_gradients([](const Tensors& t) { return scatter_add(t[0], 1, t[1], t[2]); }));
  compare("scatter_add one line", {randn({7}), randint(0, 7, {5003}), randn({5003})},
          with_gradients([](const Tensors& t) { return scatter_add(t[0], 0, t[1], t[2]); }));
  compare("index_add", {x, index, randn({11, 13, 5})},
          with_gradients([](const Tensors& t) { return index_add(t[0], 1, t[1], t[2]); }));
  for (int64_t vocabulary : {int64_t{5}, int64_t{1009}}) {
    compare("embedding", {randint(0, vocabulary, {9, 1031}), randn({vocabulary, 33})},
            with_gradients([](const Tensors& t) { return embedding(t[0], t[1], 2); }));
  }
  compare("bools", {randint(0, 2, {7, 3}).to(boolean), index},
          [](const Tensors& t) { return Tensors{index_select(t[0], 0, t[1])}; }, {0, 0});
}

TEST_F(Gpu, IndicesOutsideReadNothing) {
  const Device gpu = Device::cuda();
  const Tensor x = ones({3, 2}, {.device = gpu}), index = from_vector<int64_t>({0, 3, -1}, {3}, gpu);
  const auto values = index_select(x, 0, index).to_vector<float>();
  EXPECT_EQ(values[0], 1);
  for (std::size_t i = 2; i < 6; ++i) EXPECT_TRUE(std::isnan(values[i]));
}

TEST_F(Gpu, Padding) {
  const Tensor x = randn({3, 5, 7, 4});
  for (PadMode mode : {PadMode::Constant, PadMode::Reflect, PadMode::Replicate, PadMode::Circular}) {
    for (const IntList& amounts : {IntList{2, 3}, IntList{1, 0, 4, 5}, IntList{3, 3, 0, 2, 4, 1}}) {
      compare("pad", {x}, with_gradients([&](const Tensors& t) { return pad(t[0], amounts, mode, 1.5); }));
    }
  }
  compare("pad integers", {randint(0, 9, {3, 4})},
          [](const Tensors& t) {
            return Tensors{pad(t[0], {1, 2}, PadMode::Constant, 7)};
          },
          {0, 0});
}

TEST_F(Gpu, Resizing) {
  const Tensor line = randn({3, 2, 29}), plane = randn({2, 3, 17, 13}), volume = randn({2, 2, 3, 5, 4});
  for (const auto mode : {InterpolateMode::Nearest, InterpolateMode::Linear}) {
    for (const Tensor& x : {line, plane, volume}) {
      compare("interpolate", {x}, with_gradients([&](const Tensors& t) {
                return interpolate(t[0], {.scale_factor = {1.7}, .mode = mode});
              }));
      compare("interpolate to a size", {x},
              with_gradients([&](const Tensors& t) { return interpolate(t[0], {.size = {7}, .mode = mode}); }));
    }
  }
  compare("interpolate with corners", {plane}, with_gradients([&](const Tensors& t) {
            return interpolate(t[0], {.size = {31, 5}, .mode = InterpolateMode::Linear, .align_corners = true});
          }));
}

// Neither places nor weights come from the host, which a graph could not ask again.
TEST_F(Gpu, AGraphHoldsResizing) {
  const Device gpu = Device::cuda();
  const Tensor x = randn({2, 3, 17, 13}, {.device = gpu}).requires_grad_();
  for (const InterpolateOptions& options :
       {InterpolateOptions{.scale_factor = {1.7}}, InterpolateOptions{.size = {7, 31}, .mode = InterpolateMode::Linear},
        InterpolateOptions{.size = {31}, .mode = InterpolateMode::Linear, .align_corners = true}}) {
    const auto step = [&] {
      x.set_grad(Tensor());
      const Tensor y = interpolate(x, options);
      (y * y).sum().backward();
      return Tensors{y.detach(), x.grad()};
    };
    step();
    Tensors results;
    const cuda::Graph graph = cuda::Graph::capture(gpu, [&] { results = step(); });
    {
      const NoGradGuard guard;
      x.copy_(randn(x.shape(), {.device = gpu}));
    }
    graph.replay();
    const Tensors expected = step();
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(same(results[i].to(Device::cpu()), expected[i].to(Device::cpu())));
    }
  }
}

TEST_F(Gpu, CountsFromZero) {
  for (const int64_t n : {0, 1, 7, 4099}) {
    for (const DType dtype : {int64, int32, float32, float64}) {
      EXPECT_TRUE(
          same(arange(n, {.dtype = dtype, .device = Device::cuda()}).to(Device::cpu()), arange(n, {.dtype = dtype})));
    }
  }
}

TEST_F(Gpu, WhatIsFinite) {
  Tensor x = randn({40, 33});
  x.select(1, 3).fill_(NAN);
  x.select(1, 7).fill_(INFINITY);
  x.select(1, 8).fill_(-INFINITY);
  compare("finite", {x},
          [](const Tensors& t) {
            return Tensors{isfinite(t[0]), isinf(t[0]), isnan(t[0]), logical_not(gt(t[0], 0.5)), full_like(t[0], 2)};
          },
          {0, 0});
}

}  // namespace
}  // namespace halo
