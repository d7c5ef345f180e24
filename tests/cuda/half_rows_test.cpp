// Rows, sums and transposes of half types: packs of every length, wherever they begin.
#include <algorithm>
#include <cmath>

#include "tests/cuda/gpu_testing.h"

namespace halo {
namespace {

using testing::near;
using testing::same;
using HalfGpu = testing::Gpu;

double unit(DType dtype) { return dtype == bfloat16 ? 0x1p-8 : 0x1p-11; }

/// The same numbers on the GPU, `offset` elements behind an aligned address.
Tensor placed(const Tensor& x, int64_t offset) {
  const Tensor room = zeros({x.numel() + offset}, {.dtype = x.dtype(), .device = Device::cuda()});
  const Tensor place = room.slice(0, offset, offset + x.numel()).reshape(x.shape());
  place.copy_(x.to(Device::cuda()));
  return place;
}

Tensor wide(const Tensor& t) { return t.to(Device::cpu()).to(float32); }

struct RowOp {
  const char* name;
  std::function<Tensor(const Tensor&)> f;
  double roundings;
};

std::vector<RowOp> row_ops() {
  return {{"softmax", [](const Tensor& x) { return softmax(x, 1); }, 1.01},
          {"log_softmax", [](const Tensor& x) { return log_softmax(x, 1); }, 1.01},
          {"cumsum", [](const Tensor& x) { return cumsum(x, 1); }, 1.01},
          {"sum", [](const Tensor& x) { return sum(x, {1}); }, 1.01},
          {"sum of columns", [](const Tensor& x) { return sum(x, {0}); }, 1.01},
          {"amax", [](const Tensor& x) { return amax(x, {1}); }, 0},
          {"var", [](const Tensor& x) { return var(x, {1}); }, 1.01},
          {"logsumexp", [](const Tensor& x) { return logsumexp(x, {1}); }, 1.01}};
}

TEST_F(HalfGpu, RowsOfEveryLengthAndPlace) {
  for (DType dtype : {bfloat16, float16}) {
    for (int64_t length : {2, 7, 8, 40, 256, 264, 1000, 1024, 4096, 4104, 8192, 8200}) {
      const Tensor x = (rand({5, length}) * 2.0 + 0.5).to(dtype), here = x.to(float32);
      for (const RowOp& op : row_ops()) {
        const Tensor expected = op.f(here);
        const double bound = op.roundings * unit(dtype);
        const Tensor got = op.f(placed(x, 0));
        EXPECT_TRUE(near(wide(got), expected, bound)) << op.name << ' ' << length;
        EXPECT_FALSE(near(expected * (1 + 3 * unit(dtype)), expected, bound)) << op.name;
        EXPECT_TRUE(same(op.f(placed(x, 1)).to(Device::cpu()), got.to(Device::cpu()))) << op.name << ' ' << length;
      }
    }
  }
}

/// Pairs of positions and of cells at even and odd sizes: two words of a row that neighbours write, and rows that begin
/// within one.
TEST_F(HalfGpu, ChannelsAndWindowsOfPlanes) {
  const std::vector<std::pair<const char*, std::function<Tensor(const Tensor&)>>> ops{
      {"local_response_norm", [](const Tensor& x) { return local_response_norm(x, 5, {.alpha = 0.5, .k = 1.5}); }},
      {"windows of four", [](const Tensor& x) { return local_response_norm(x, 4, {.alpha = 0.5, .k = 1.5}); }},
      {"max_pool2d", [](const Tensor& x) { return max_pool2d(x, 3, {.stride = 2}); }},
      {"padded",
       [](const Tensor& x) {
         return max_pool2d(x, {3, 2}, {.stride = 2, .padding = 1});
       }},
      {"ceiling",
       [](const Tensor& x) {
         return max_pool2d(x, {2, 3}, {.stride = 2, .ceil_mode = true});
       }},
      {"avg_pool2d", [](const Tensor& x) { return avg_pool2d(x, 3, {.stride = 2, .padding = 1}); }}};
  for (DType dtype : {bfloat16, float16}) {
    const double bound = 1.01 * unit(dtype);
    for (const Shape& shape : {Shape{2, 5, 29, 31}, Shape{3, 17, 10, 10}, Shape{2, 9, 3, 367}, Shape{1, 33, 55, 55},
                               Shape{5, 3, 8, 9}, Shape{1, 3, 506, 506}}) {
      for (const auto& [name, f] : ops) {
        const Tensor x = (rand(shape) * 4.0 - 1.5).to(dtype), here = x.to(float32).requires_grad_();
        const Tensor expected = f(here), g = (rand(expected.shape()) - 0.4).to(dtype);
        const Tensor gradient = grad({expected}, {here}, {g.to(float32)})[0];
        const auto run = [&](int64_t offset) {
          const Tensor leaf = placed(x, offset).detach().requires_grad_(), y = f(leaf);
          return std::vector<Tensor>{y.detach(), grad({y}, {leaf}, {placed(g, offset)})[0]};
        };
        const auto got = run(0), moved = run(1);
        EXPECT_TRUE(near(wide(got[0]), expected.detach(), bound)) << name << ' ' << shape;
        EXPECT_TRUE(near(wide(got[1]), gradient, bound)) << name << ' ' << shape;
        EXPECT_FALSE(near(gradient * (1 + 3 * unit(dtype)), gradient, bound)) << name;
        for (int i = 0; i < 2; ++i) {
          EXPECT_TRUE(same(moved[i].to(Device::cpu()), got[i].to(Device::cpu()))) << name << ' ' << shape;
        }
      }
    }
  }
}

TEST_F(HalfGpu, ExtremesPassNanOn) {
  for (DType dtype : {bfloat16, float16}) {
    for (int64_t length : {9, 40, 1024}) {
      Tensor x = randn({3, length});
      x.select(0, 1).slice(0, length - 2, length - 1).fill_(NAN);
      const Tensor there = placed(x.to(dtype), 0), here = x.to(dtype).to(float32);
      EXPECT_TRUE(same(wide(amax(there, {1})), amax(here, {1}))) << length;
      EXPECT_TRUE(same(wide(amin(there, {1})), amin(here, {1}))) << length;
      EXPECT_TRUE(std::isnan(wide(amax(there, {1})).to_vector<double>()[1]));
    }
  }
}

/// A row that a mask has filled with a huge negative number: what rounding takes from its shift is more than exp() has
/// room for, and every element is one in the row's length.
TEST_F(HalfGpu, SoftmaxOfWhollyMaskedRows) {
  for (const double masked : {-1e9, -3e9, 5e9, -1e10, -1e38}) {
    const Tensor x = full({3, 64}, masked).to(bfloat16);
    EXPECT_TRUE(same(wide(softmax(placed(x, 0), 1)), full({3, 64}, 1.0 / 64))) << masked;
    EXPECT_TRUE(near(wide(log_softmax(placed(x, 0), 1)), full({3, 64}, -std::log(64.0)), 0x1p-8)) << masked;
  }
}

/// A constant row is its mean: differences, not what is left of two products, are what the root is multiplied with.
TEST_F(HalfGpu, NormsOfConstantRowsAreZero) {
  const auto total = [](const Tensor& t) { return sum(abs(wide(t))).item(); };
  for (const double value : {1.0, 1000.0, 60000.0}) {
    for (const int64_t length : {408, 768, 6000, 8192}) {
      const Tensor x = full({4, length}, value).to(float16);
      EXPECT_LT(total(layer_norm(placed(x, 0), {length})), 1.0) << value << ' ' << length;
    }
    const Tensor planes = full({2, 8, 55, 55}, value).to(float16);
    EXPECT_LT(total(group_norm(placed(planes, 0), 2)), 1.0) << value;
  }
}

/// Zeros that stand for sums behind a row's end meet no infinity in it.
TEST_F(HalfGpu, CausalTapsBesideAnInfinity) {
  for (const int64_t length : {256, 257, 1000}) {
    Tensor x = ones({1, 1, length});
    x.slice(2, 255, 256).fill_(INFINITY);
    const auto gradient = [&](const Tensor& in) {
      const Tensor w = full({1, 4}, 0.5).to(in.dtype()).to(in.device()).detach().requires_grad_();
      return grad({causal_conv1d(in, w)}, {w}, {ones(in.shape(), in.options())})[0];
    };
    EXPECT_TRUE(same(wide(gradient(placed(x.to(bfloat16), 0))), gradient(x).to(bfloat16).to(float32))) << length;
  }
}

TEST_F(HalfGpu, CausalConvolutionOfNothing) {
  for (const Shape& shape : {Shape{2, 0, 512}, Shape{0, 3, 512}}) {
    const Tensor x = zeros(shape, {.dtype = bfloat16, .device = Device::cuda()});
    const Tensor w = zeros({shape[1], 4}, {.dtype = bfloat16, .device = Device::cuda()});
    EXPECT_EQ(causal_conv1d(x, w).shape(), shape);
    EXPECT_EQ(causal_conv1d(x.to(float32), w.to(float32)).shape(), shape);
  }
}

TEST_F(HalfGpu, SoftmaxBackwardOfEveryLength) {
  for (DType dtype : {bfloat16, float16}) {
    for (int64_t length : {2, 7, 8, 264, 1000, 1024, 4104, 8192, 8200}) {
      const Tensor x = randn({5, length}).to(dtype), g = randn({5, length}).to(dtype);
      for (const bool log : {false, true}) {
        const auto gradient = [&](const Tensor& in, const Tensor& up) {
          const Tensor leaf = in.detach().requires_grad_();
          return grad({log ? log_softmax(leaf, 1) : softmax(leaf, 1)}, {leaf}, {up})[0];
        };
        const Tensor expected = gradient(x.to(float32), g.to(float32));
        const Tensor got = wide(gradient(x.to(Device::cuda()), g.to(Device::cuda())));
        EXPECT_TRUE(near(got, expected, 4 * unit(dtype))) << length;  // what is kept is rounded, too
        EXPECT_FALSE(near(expected * (1 + 12 * unit(dtype)), expected, 4 * unit(dtype)));
      }
    }
  }
}

using Norm = std::function<Tensor(const Tensor& x, const Tensor& weight, const Tensor& bias)>;

/// `norm` of x of `shape` and parameters of `affine_shape`, and its gradients, wherever they lie, against float32.
void compare_norm(DType dtype, const Shape& shape, const Shape& affine_shape, const Norm& norm) {
  const Tensor x = (rand(shape) * 2.0 + 0.5).to(dtype), up = (rand(shape) * 0.25 - 0.0625).to(dtype);
  const Tensor weight = (rand(affine_shape) + 0.5).to(dtype), bias = randn(affine_shape).to(dtype);
  const auto run = [&](const auto& place, bool affine) {
    std::vector<Tensor> leaves{place(x).requires_grad_()};
    if (affine) leaves.insert(leaves.end(), {place(weight).requires_grad_(), place(bias).requires_grad_()});
    const Tensor none;
    const Tensor y = norm(leaves[0], affine ? leaves[1] : none, affine ? leaves[2] : none);
    std::vector<Tensor> results = grad({y}, leaves, {place(up)});
    results.push_back(y.detach());
    return results;
  };
  for (bool affine : {true, false}) {
    const auto expected = run([](const Tensor& t) { return t.to(float32); }, affine);
    const auto got = run([](const Tensor& t) { return placed(t, 0); }, affine);
    const auto moved = run([](const Tensor& t) { return placed(t, 1); }, affine);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(near(wide(got[i]), expected[i], 1.5 * unit(dtype))) << shape << ' ' << i;
      EXPECT_FALSE(near(expected[i] * (1 + 4 * unit(dtype)), expected[i], 1.5 * unit(dtype)));
      EXPECT_TRUE(same(moved[i].to(Device::cpu()), got[i].to(Device::cpu()))) << shape << ' ' << i;
    }
  }
}

TEST_F(HalfGpu, LayerNormOfEveryLengthAndPlace) {
  for (DType dtype : {bfloat16, float16}) {
    for (int64_t length : {20, 40, 256, 1000, 1024, 2056, 4096, 4104, 6000, 8192}) {
      compare_norm(dtype, {67, length}, {length}, [&](const Tensor& x, const Tensor& weight, const Tensor& bias) {
        return layer_norm(x, {length}, weight, bias);
      });
    }
  }
}

// Rows of planes that are read once: one block a row or several, and pieces that begin anywhere.
TEST_F(HalfGpu, GroupNormOfPlanes) {
  for (DType dtype : {bfloat16, float16}) {
    for (const Shape& shape : {Shape{35, 12, 55, 53}, Shape{280, 4, 57, 31}, Shape{33, 3, 101, 97}}) {
      for (int64_t groups : {int64_t{1}, shape[1]}) {
        compare_norm(dtype, shape, {shape[1]}, [&](const Tensor& x, const Tensor& weight, const Tensor& bias) {
          return group_norm(x, groups, weight, bias);
        });
      }
    }
  }
}

// So many rows of planes that each has a block of its own: begins anywhere, and ends of pieces within packs.
TEST_F(HalfGpu, GroupNormOfManyRows) {
  constexpr int64_t kImages = 2140, kFew = 2, kGroups = 3;
  for (DType dtype : {bfloat16, float16}) {
    const auto random = [&](double from, double to) {
      return (rand({kImages, 9, 57, 53}, {.device = Device::cuda()}) * (to - from) + from).to(dtype);
    };
    const Tensor x = random(0.5, 2.5), up = random(-0.0625, 0.1875);
    const Tensor weight = (rand({9}) + 0.5).to(dtype), bias = randn({9}).to(dtype);
    const auto run = [&](const Tensor& of, const Tensor& of_up) {
      const auto place = [&](const Tensor& t) { return of.device().is_cuda() ? t.to(of.device()) : t.to(float32); };
      const Tensor leaf = of.detach().requires_grad_(), y = group_norm(leaf, kGroups, place(weight), place(bias));
      return std::vector<Tensor>{y.detach(), grad({y}, {leaf}, {of_up})[0]};
    };
    const auto got = run(x, up);
    for (const int64_t image : {int64_t{0}, kImages / 2, kImages - kFew}) {
      const auto few = [&](const Tensor& t) { return wide(t.slice(0, image, image + kFew)); };
      const auto expected = run(few(x), few(up));
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(near(few(got[i]), expected[i], 1.5 * unit(dtype))) << image << ' ' << i;
        EXPECT_FALSE(near(expected[i] * (1 + 4 * unit(dtype)), expected[i], 1.5 * unit(dtype))) << i;
      }
    }
    const auto moved = run(placed(x, 1), placed(up, 1));
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same(moved[i], got[i])) << name(dtype) << ' ' << i;
  }
}

TEST_F(HalfGpu, TransposesOfTwoBytes) {
  for (const Shape& shape :
       {Shape{3, 130, 66}, Shape{2, 64, 128}, Shape{3, 67, 66}, Shape{5, 66, 67}, Shape{1, 8, 8}}) {
    const Tensor x = randn(shape).to(bfloat16);
    for (int64_t offset : {0, 1, 2}) {
      const Tensor there = placed(x, offset);
      for (const Shape& dims : {Shape{0, 2, 1}, Shape{2, 1, 0}, Shape{2, 0, 1}}) {
        EXPECT_TRUE(same(there.permute(dims).contiguous().to(Device::cpu()), x.permute(dims).contiguous())) << shape;
      }
    }
  }
}

/// Rows in tiles: the sums and what they leave for the parameters are float32. Neighbouring taps have kernels of their
/// own, for rows of whole packs and others.
TEST_F(HalfGpu, CausalConvolutionOfLongRows) {
  for (DType dtype : {bfloat16, float16}) {
    for (const auto& [kernel, dilation, length] : {std::tuple<int64_t, int64_t, int64_t>{3, 2, 4700},
                                                   {4, 2, 4700},
                                                   {6, 2, 4700},
                                                   {2, 1, 9000},
                                                   {3, 1, 17608},
                                                   {4, 1, 4704}}) {
      for (const bool silu : {false, true}) {
        const CausalConv1dOptions options{.dilation = dilation,
                                          .activation = silu ? ActivationKind::Silu : ActivationKind::None};
        const std::vector<Tensor> half{randn({2, 5, length}).to(dtype), randn({5, kernel}).to(dtype),
                                       randn({5}).to(dtype), randn({2, 5, (kernel - 1) * dilation}).to(dtype)};
        const Tensor up = randn({2, 5, length}).to(dtype), up_state = randn({2, 5, (kernel - 1) * dilation}).to(dtype);
        const auto run = [&](const std::function<Tensor(const Tensor&)>& place) {
          std::vector<Tensor> leaves;
          for (const Tensor& t : half) leaves.push_back(place(t).detach().requires_grad_());
          const auto y = causal_conv1d_with_state(leaves[0], leaves[1], leaves[2], leaves[3], options);
          std::vector<Tensor> results = grad({y.output, y.final_state}, leaves, {place(up), place(up_state)});
          results.push_back(y.output.detach());
          return results;
        };
        const auto expected = run([](const Tensor& t) { return t.to(float32); });
        const auto got = run([](const Tensor& t) { return placed(t, 1); });
        const auto aligned = run([](const Tensor& t) { return placed(t, 0); });
        for (std::size_t i = 0; i < expected.size(); ++i) {
          ASSERT_EQ(got[i].dtype(), dtype);
          EXPECT_TRUE(near(wide(got[i]), expected[i], 1.01 * unit(dtype))) << kernel << ' ' << silu << " result " << i;
          EXPECT_FALSE(near(expected[i] * (1 + 3 * unit(dtype)), expected[i], 1.01 * unit(dtype)));
          EXPECT_TRUE(same(aligned[i].to(Device::cpu()), got[i].to(Device::cpu())))
              << kernel << ' ' << silu << ' ' << i;
        }
      }
    }
  }
}

/// Where no gradient arrives it does not matter that a sum is not finite, in either type.
TEST_F(HalfGpu, CausalConvolutionOfInfiniteSums) {
  for (const int64_t length : {264, 9000, 263}) {
    const Tensor x = randn({2, 3, length}).to(bfloat16), up = randn({2, 3, length}).to(bfloat16);
    const Tensor weight = randn({3, 4}).to(bfloat16);
    for (const int64_t at : {int64_t{0}, int64_t{77}, length - 2}) {
      x.slice(2, at, at + 1).fill_(at == 77 ? -INFINITY : INFINITY);
      up.slice(2, at, std::min(at + 4, length)).fill_(0);
    }
    const auto gradient = [&](DType dtype) {
      const auto place = [&](const Tensor& t) { return t.to(dtype).to(Device::cuda()); };
      const Tensor leaf = place(x).detach().requires_grad_();
      const Tensor y = causal_conv1d(leaf, place(weight), {}, {1, ActivationKind::Silu});
      return wide(grad({y}, {leaf}, {place(up)})[0]);
    };
    const Tensor expected = gradient(float32);
    EXPECT_TRUE(std::isfinite(sum(expected).item())) << length;
    EXPECT_TRUE(near(gradient(bfloat16), expected, 1.01 * unit(bfloat16))) << length;
  }
}

}  // namespace
}  // namespace halo
