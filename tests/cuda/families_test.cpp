// Every op family, forward and gradients: the GPU against the CPU.
#include <halo/ops/optim_step.h>

#include "tests/cuda/gpu_testing.h"

namespace halo {
namespace {

using testing::Bounds;
using testing::compare;
using testing::Gpu;
using testing::near;
using testing::Operation;
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

TEST_F(Gpu, Pooling) {
  const Tensor line = randn({3, 2, 29}), plane = randn({2, 3, 17, 13}), volume = randn({2, 2, 7, 9, 8});
  const MaxPoolOptions most{.stride = 2, .padding = 1, .dilation = 1, .ceil_mode = true};
  compare("max_pool1d", {line}, with_gradients([&](const Tensors& t) { return max_pool1d(t[0], 3, most); }));
  compare("max_pool2d", {plane}, with_gradients([&](const Tensors& t) {
            return max_pool2d(t[0], {3, 2}, {.stride = {2, 3}, .padding = {1, 0}, .dilation = {2, 1}});
          }));
  compare("max_pool3d", {volume}, with_gradients([&](const Tensors& t) { return max_pool3d(t[0], 3, most); }));
  compare("max_pool of a large window", {randn({2, 40, 41})}, with_gradients([&](const Tensors& t) {
            return max_pool2d(t[0].unsqueeze(0), {19, 20}, {.stride = 7});
          }));
  compare("indices", {plane},
          [&](const Tensors& t) {
            return Tensors{max_pool2d_with_indices(t[0], 3, most).indices, adaptive_max_pool2d(t[0], {5, 4})};
          },
          {0, 0});
  Tensor odd = randn({1, 1, 8, 8});
  odd.select(2, 3).fill_(NAN);
  odd.select(2, 6).fill_(-INFINITY);
  compare("max_pool of NaN", {odd},
          [&](const Tensors& t) {
            const MaxPoolOutput result = max_pool2d_with_indices(t[0], 3, most);
            return Tensors{result.output, result.indices};
          },
          {0, 0});
  for (bool include : {false, true}) {
    const AvgPoolOptions average{.stride = 2, .padding = 1, .ceil_mode = true, .count_include_pad = include};
    compare("avg_pool1d", {line}, with_gradients([&](const Tensors& t) { return avg_pool1d(t[0], 3, average); }));
    compare("avg_pool2d", {plane}, with_gradients([&](const Tensors& t) { return avg_pool2d(t[0], {3, 4}, average); }));
    compare("avg_pool3d", {volume}, with_gradients([&](const Tensors& t) { return avg_pool3d(t[0], 2, average); }));
  }
  compare("adaptive", {plane}, with_gradients([&](const Tensors& t) { return adaptive_avg_pool2d(t[0], {6, 5}); }));
}

TEST_F(Gpu, Normalisation) {
  for (const Shape& shape : {Shape{5, 6}, Shape{4, 6, 7}, Shape{2, 6, 9, 11}, Shape{1, 6, 20011}, Shape{700, 6}}) {
    const Tensor x = randn(shape) + 3.0, w = randn({6}), b = randn({6});
    const Bounds bounds{3e-6, 1e-12};
    for (bool training : {false, true}) {
      compare("batch_norm", {x, w, b, randn({6}), rand({6}) + 0.5}, with_gradients([&](const Tensors& t) {
                const Tensor mean = t[3].detach().clone(), var = t[4].detach().clone();
                const Tensor y = batch_norm(t[0], mean, var, t[1], t[2], {.training = training});
                return y + (mean + var).sum() * 0.01;  // the running statistics count too
              }),
              bounds);
    }
    compare("layer_norm", {x, randn(Shape{shape.back()}), randn(Shape{shape.back()})},
            with_gradients([&](const Tensors& t) { return layer_norm(t[0], {shape.back()}, t[1], t[2]); }), bounds);
    // Of two values, normalised to -1 and 1, the gradient is what eps leaves of terms that cancel to five digits.
    compare("group_norm", {x, w, b}, with_gradients([&](const Tensors& t) { return group_norm(t[0], 3, t[1], t[2]); }),
            shape.rank() == 2 ? Bounds{3e-6, 1e-11} : bounds);
    if (shape.rank() > 2) {
      compare("instance_norm", {x, w}, with_gradients([&](const Tensors& t) { return instance_norm(t[0], t[1]); }),
              bounds);
    }
  }
  compare("large means", {randn({64, 2, 3}) + 1000.0},
          with_gradients([](const Tensors& t) { return instance_norm(t[0]); }), {1e-5, 1e-10});
}

TEST_F(Gpu, LocalResponseNorm) {
  for (int64_t size : {int64_t{1}, int64_t{2}, int64_t{5}, int64_t{70}, int64_t{500}}) {
    for (const Shape& shape : {Shape{2, 1, 3}, Shape{3, 37, 5, 7}, Shape{1, 400, 3}}) {
      compare("lrn", {randn(shape)}, with_gradients([&](const Tensors& t) {
                return local_response_norm(t[0], size, {.alpha = 0.3, .beta = 0.75, .k = 2});
              }),
              {4e-6, 1e-13});
    }
  }
}

TEST_F(Gpu, MatrixProducts) {
  const std::vector<std::pair<Shape, Shape>> shapes{
      {{5, 7}, {7, 3}},          {{1, 1}, {1, 1}}, {{129, 257}, {257, 65}}, {{3, 5, 7}, {3, 7, 4}},
      {{2, 1, 5, 7}, {3, 7, 4}}, {{5, 0}, {0, 3}}, {{0, 5}, {5, 2}},        {{33, 1}, {1, 35}}};
  for (const auto& [a, b] : shapes) {
    compare("matmul " + a.str(), {randn(a), randn(b)},
            with_gradients([](const Tensors& t) { return matmul(t[0], t[1]); }));
    compare("matmul transposed", {randn(a), randn(b)}, [](const Tensors& t) {
      return Tensors{matmul(t[0].transpose(-1, -2).contiguous().transpose(-1, -2), t[1])};
    });
  }
  compare("linear", {randn({9, 31}), randn({13, 31}), randn({13})},
          with_gradients([](const Tensors& t) { return linear(t[0], t[1], t[2]); }));
}

TEST_F(Gpu, ProductsAreFullFloat32UnlessTf32IsChosen) {
  const Tensor a = randn({256, 512}), b = randn({512, 256});
  const Tensor expected = matmul(a.to(float64), b.to(float64));
  const auto error = [&] {
    const Tensor y = matmul(a.to(Device::cuda()), b.to(Device::cuda()));
    return testing::relative_error(y.to(Device::cpu()).to(float64), expected);
  };
  EXPECT_LT(error(), 1e-6);
  const PrecisionGuard guard(Precision::TF32);
  EXPECT_GT(error(), 5e-5);
  EXPECT_LT(error(), 2e-3);
}

TEST_F(Gpu, Convolution) {
  const auto run = [](const char* name, const Shape& x, const Shape& w, const ConvOptions& options, bool transposed) {
    const int64_t channels = transposed ? w[1] * options.groups : w[0];
    compare(name, {randn(x), randn(w), randn({channels})}, with_gradients([&](const Tensors& t) {
              switch (t[0].rank()) {
                case 3:
                  return transposed ? conv_transpose1d(t[0], t[1], t[2], options) : conv1d(t[0], t[1], t[2], options);
                case 4:
                  return transposed ? conv_transpose2d(t[0], t[1], t[2], options) : conv2d(t[0], t[1], t[2], options);
                default:
                  return transposed ? conv_transpose3d(t[0], t[1], t[2], options) : conv3d(t[0], t[1], t[2], options);
              }
            }));
  };
  run("conv1d", {3, 6, 37}, {10, 3, 5}, {.stride = 2, .padding = 3, .dilation = 2, .groups = 2}, false);
  run("conv2d", {2, 16, 15, 13}, {24, 16, 3, 3}, {.stride = {2, 1}, .padding = {1, 2}}, false);
  run("conv2d stem", {2, 3, 35, 31}, {20, 3, 11, 11}, {.stride = 4, .padding = 2}, false);
  run("depthwise", {2, 7, 15, 13}, {7, 1, 3, 5}, {.padding = {1, 2}, .groups = 7}, false);
  run("pointwise", {2, 8, 9, 7}, {12, 8, 1, 1}, {}, false);
  run("conv3d", {2, 4, 5, 9, 8}, {6, 4, 3, 2, 3}, {.stride = {1, 2, 2}, .padding = {1, 0, 1}}, false);
  run("conv_transpose2d", {2, 6, 7, 5}, {6, 4, 3, 3}, {.stride = 2, .padding = 1, .output_padding = 1}, true);
  run("conv_transpose3d", {1, 4, 3, 5, 6}, {4, 3, 3, 5, 5}, {.stride = {1, 2, 2}}, true);
  run("empty batch", {0, 3, 9, 9}, {4, 3, 3, 3}, {}, false);
  compare("fused activation", {randn({2, 5, 11, 9}), randn({4, 5, 3, 3}), randn({4})},
          with_gradients([](const Tensors& t) {
            return conv2d(t[0], t[1], t[2], {.padding = 1}, {.kind = ActivationKind::Gelu});
          }));
}

TEST_F(Gpu, CausalConv1d) {
  for (ActivationKind kind : {ActivationKind::None, ActivationKind::Silu}) {
    for (int64_t dilation : {int64_t{1}, int64_t{3}}) {
      const CausalConv1dOptions options{.dilation = dilation, .activation = kind};
      for (int64_t length : {1, 2, 131, 257, 1031, 9001}) {  // short rows and tiles of long ones have their own kernels
        for (int64_t kernel : {1, 2, 3, 4, 7}) {
          compare("causal_conv1d", {randn({3, 5, length}), randn({5, kernel}), randn({5})},
                  with_gradients([&](const Tensors& t) { return causal_conv1d(t[0], t[1], t[2], options); }));
        }
        compare("with state", {randn({3, 5, length}), randn({5, 4}), randn({5}), randn({3, 5, 3 * dilation})},
                with_gradients([&](const Tensors& t) {
                  const auto result = causal_conv1d_with_state(t[0], t[1], t[2], t[3], options);
                  return cat({result.output, result.final_state}, 2);
                }));
      }
    }
  }
}

TEST_F(Gpu, OptimizerSteps) {
  Tensors inputs;
  for (int64_t n : {1, 5000, 17, 0, 4096, 4097}) {
    for (int i = 0; i < 4; ++i) inputs.push_back(rand({n}) + 0.1);
  }
  for (bool momentum : {false, true}) {
    compare("sgd", inputs,
            [&](const Tensors& t) {
              Tensors results;
              std::vector<SgdTensors> entries;
              for (std::size_t repeat = 0; repeat < 7; ++repeat) {  // more entries than one launch takes
                for (std::size_t i = 0; i < t.size(); i += 4) {
                  const Tensor param = t[i].clone(), velocity = momentum ? t[i + 1].clone() : Tensor();
                  entries.push_back({param, t[i + 2], velocity});
                  results.insert(results.end(), {param, velocity});
                }
              }
              ops::sgd_step({.lr = 0.1, .momentum = momentum ? 0.9 : 0, .weight_decay = 0.01, .nesterov = true},
                            entries);
              return results;
            },
            {1e-6, 1e-14});
  }
  compare("adam", inputs,
          [&](const Tensors& t) {
            Tensors results;
            std::vector<AdamTensors> entries;
            for (std::size_t i = 0; i < t.size(); i += 4) {
              const Tensor wide = zeros({t[i].size(0), 2}, t[i].options());
              wide.select(1, 0).copy_(t[i]);
              entries.push_back(
                  {wide.select(1, 0), t[i + 1], t[i + 2].clone(), t[i + 3].clone(), static_cast<int64_t>(i + 1)});
              results.insert(results.end(), {wide, entries.back().exp_avg, entries.back().exp_avg_sq});
            }
            ops::adam_step({.lr = 0.1, .weight_decay = 0.01, .decoupled = true}, entries);
            return results;
          },
          {1e-6, 1e-14});
}

TEST_F(Gpu, LongConvolution) {
  for (LongConvMethod method : {LongConvMethod::Fft, LongConvMethod::Direct}) {
    const bool fft = method == LongConvMethod::Fft;
    for (bool causal : {true, false}) {
      for (int64_t length : {int64_t{1}, int64_t{7}, int64_t{300}, int64_t{1031}}) {
        const Tensor x = randn({2, 3, length}), w = randn({3, length}), skip = randn({3});
        const Tensor in = randn({2, 3, length}), out = randn({2, 3, length});
        compare("long_conv", {x, w, skip, in, out}, with_gradients([&](const Tensors& t) {
                  return long_conv(t[0], t[1], t[2],
                                   {.causal = causal, .gate_in = t[3], .gate_out = t[4], .method = method});
                }),
                fft ? Bounds{2e-6, 1e-13} : Bounds{});
        compare("long_conv", {x, randn({3, 5})}, with_gradients([&](const Tensors& t) {
                  return long_conv(t[0], t[1], {}, {.causal = causal, .method = method});
                }));
      }
    }
  }
}

}  // namespace
}  // namespace halo
