// Pooling, norms, products, convolutions and optimizers, forward and gradients: the GPU against the CPU.
#include <halo/ops/optim_step.h>

#include "tests/cuda/gpu_testing.h"

namespace halo {
namespace {

using testing::Bounds;
using testing::compare;
using testing::Gpu;
using testing::Tensors;
using testing::with_gradients;

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

// Planes of which the copy engine brings pieces, of one operand and of two.
TEST_F(Gpu, BatchNormOfManyLongPlanes) {
  compare("batch_norm", {randn({90, 6, 61, 67}) + 3.0, randn({6}), randn({6})},
          with_gradients([](const Tensors& t) { return batch_norm(t[0], {}, {}, t[1], t[2], {.training = true}); }),
          {1e-5, 1e-11});
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
  // A last tile of one position, narrower than a granule: it wrote over its neighbours and behind the tensor.
  compare("narrow tile", {randn({1, 5, 461, 461})},
          with_gradients([&](const Tensors& t) { return local_response_norm(t[0], 5); }), {4e-6, 1e-13});
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
        for (int64_t kernel : {1, 2, 3, 4, 7, 20}) {
          compare("causal_conv1d", {randn({3, 5, length}), randn({5, kernel}), randn({5})},
                  with_gradients([&](const Tensors& t) { return causal_conv1d(t[0], t[1], t[2], options); }));
        }
        for (int64_t kernel : {4, 11}) {
          compare("with state",
                  {randn({3, 5, length}), randn({5, kernel}), randn({5}), randn({3, 5, (kernel - 1) * dilation})},
                  with_gradients([&](const Tensors& t) {
                    const auto result = causal_conv1d_with_state(t[0], t[1], t[2], t[3], options);
                    return cat({result.output, result.final_state}, 2);
                  }));
        }
      }
    }
  }
  // So many rows that a block takes several samples, an odd number of them.
  for (int64_t kernel : {2, 4}) {
    compare("several samples a block", {randn({7, 530, 259}), randn({530, kernel}), randn({530})},
            with_gradients([&](const Tensors& t) { return causal_conv1d(t[0], t[1], t[2]); }));
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
