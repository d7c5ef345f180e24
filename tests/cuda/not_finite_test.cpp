// A NaN or an infinity is neither lost nor made: every function in every floating type, on the CPU and on the GPU, has
// them where the CPU has them in float64. The NaNs have all bits set, but perhaps the sign: GPUs compute those, and
// integer arithmetic on bits wraps them to numbers.
#include <cstring>

#include "tests/cuda/gpu_testing.h"
#include "tests/cuda/special_numbers.h"

namespace halo {
namespace {

using testing::Gpu;
using testing::Operation;
using testing::Tensors;

struct Function {
  std::string name;
  std::vector<Shape> shapes;
  Operation of;
};

void put_nan(const Tensor& x, int64_t i, bool negative) {
  const std::size_t size = size_of(x.dtype());
  auto* const at = static_cast<unsigned char*>(x.data()) + static_cast<std::size_t>(i) * size;
  std::memset(at, 0xff, size);
  if (!negative) at[size - 1] = 0x7f;
}

/// Random numbers with a NaN or an infinity in each of rows 1 to 4, rows being runs of the axes from the third on for
/// images and of the last one elsewhere; row 0, and what is behind row 4, stays finite.
Tensor with_specials(const Shape& shape, DType dtype) {
  const Tensor x = randn(shape).to(dtype);
  int64_t row = 1;
  for (int axis = std::min(2, shape.rank() - 1); axis < shape.rank(); ++axis) row *= shape[axis];
  const Tensor flat = x.reshape({-1});
  flat.slice(0, 3 * row + 7, 3 * row + 8).fill_(INFINITY);
  flat.slice(0, 4 * row, 4 * row + 1).fill_(-INFINITY);
  put_nan(x, row + row / 2, false);
  put_nan(x, 3 * row - 1, true);
  return x;
}

/// Of x's type and device, the same numbers in all of them but for rounding, and none of them 0.
Tensor factor_like(const Tensor& x, const Shape& shape) {
  Generator generator(7);
  return (rand(shape, {}, generator) + 0.25).to(x.dtype()).to(x.device());
}

/// The result of f and the gradient for a cotangent that is the same in every type.
Operation with_gradient(const std::function<Tensor(const Tensor&)>& f) {
  return [f](const Tensors& t) {
    const Tensor x = testing::leaf(t[0]), y = f(x);
    return Tensors{y.detach(), grad({y}, {x}, {factor_like(y, y.shape())})[0]};
  };
}

std::vector<Function> functions() {
  const std::vector<Shape> rows{{7, 1031}, {6, 1024}, {300, 24}, {6, 9001}};
  const std::vector<Shape> images{{2, 6, 19, 21}, {2, 6, 24, 64}, {1, 8, 150, 141}};
  std::vector<Function> list;
  const auto of_rows = [&](const std::string& name, const std::function<Tensor(const Tensor&)>& f) {
    list.push_back({name, rows, with_gradient(f)});
  };
  const auto of_images = [&](const std::string& name, const std::function<Tensor(const Tensor&)>& f) {
    list.push_back({name, images, with_gradient(f)});
  };
  of_rows("relu", [](const Tensor& x) { return relu(x); });
  of_rows("leaky_relu", [](const Tensor& x) { return leaky_relu(x, 0.1); });
  of_rows("clamp", [](const Tensor& x) { return clamp(x, -0.5, 0.5); });
  of_rows("abs", [](const Tensor& x) { return abs(x); });
  of_rows("sigmoid", [](const Tensor& x) { return sigmoid(x); });
  of_rows("tanh", [](const Tensor& x) { return tanh(x); });
  of_rows("softplus", [](const Tensor& x) { return softplus(x); });
  of_rows("gelu", [](const Tensor& x) { return gelu(x); });
  of_rows("silu", [](const Tensor& x) { return silu(x); });
  of_rows("maximum", [](const Tensor& x) { return maximum(x, x * 0.5); });
  of_rows("minimum", [](const Tensor& x) { return minimum(x * 0.5, x); });
  of_rows("cast to bfloat16", [](const Tensor& x) { return x.to(bfloat16); });
  of_rows("cast to float16", [](const Tensor& x) { return x.to(float16); });
  of_rows("cast to float32", [](const Tensor& x) { return x.to(float32); });
  of_rows("cast to float64", [](const Tensor& x) { return x.to(float64); });
  of_rows("transpose", [](const Tensor& x) { return x.transpose(0, 1).contiguous(); });
  for (int64_t dim : {int64_t{0}, int64_t{1}}) {
    const std::string along = " along " + std::to_string(dim);
    of_rows("amax" + along, [=](const Tensor& x) { return amax(x, {dim}); });
    of_rows("amin" + along, [=](const Tensor& x) { return amin(x, {dim}); });
    of_rows("sum" + along, [=](const Tensor& x) { return sum(x, {dim}); });
    of_rows("norm" + along, [=](const Tensor& x) { return norm(x, 2, {dim}); });
    of_rows("var" + along, [=](const Tensor& x) { return var(x, {dim}); });
    of_rows("logsumexp" + along, [=](const Tensor& x) { return logsumexp(x, {dim}); });
    of_rows("softmax" + along, [=](const Tensor& x) { return softmax(x, dim); });
    of_rows("log_softmax" + along, [=](const Tensor& x) { return log_softmax(x, dim); });
    of_rows("cumsum" + along, [=](const Tensor& x) { return cumsum(x, dim); });
    list.push_back({"order" + along, rows, [=](const Tensors& t) {
                      Tensors results{argmax(t[0], dim), argmin(t[0], dim), isnan(t[0])};
                      for (bool descending : {false, true}) results.push_back(sort(t[0], dim, descending).values);
                      results.push_back(topk(t[0], 3, dim).values);
                      return results;
                    }});
  }
  for (Reduction reduction : {Reduction::None, Reduction::Sum}) {
    of_rows("mse_loss", [=](const Tensor& x) { return mse_loss(x, zeros_like(x), reduction); });
    of_rows("l1_loss", [=](const Tensor& x) { return l1_loss(x, zeros_like(x), reduction); });
    of_rows("huber_loss", [=](const Tensor& x) { return huber_loss(x, zeros_like(x), reduction); });
    of_rows("binary cross entropy", [=](const Tensor& x) {
      return binary_cross_entropy_with_logits(x, full(x.shape(), 0.25, x.options()), reduction);
    });
  }
  of_rows("matmul from the left", [](const Tensor& x) { return matmul(x, factor_like(x, {x.size(1), 33})); });
  of_rows("matmul from the right", [](const Tensor& x) { return matmul(factor_like(x, {33, x.size(0)}), x); });
  of_rows("dropout", [](const Tensor& x) {
    manual_seed(5);
    return dropout(x, 0.5);
  });
  of_rows("residual_norm", [](const Tensor& x) {
    const Tensor row = ones({x.size(1)}, x.options());
    const auto [added, normed] = residual_norm(x, row, ones_like(x), row, row);
    return added + normed;
  });
  of_rows("layer_norm", [](const Tensor& x) { return layer_norm(x, {x.size(1)}); });
  for (double smoothing : {0.0, 0.1}) {
    of_rows("cross_entropy", [=](const Tensor& x) {
      const Tensor labels = zeros({x.size(0)}, {.dtype = int64, .device = x.device()});
      return cross_entropy(x, labels, {.reduction = Reduction::None, .label_smoothing = smoothing});
    });
  }
  for (const auto& [kernel, stride, padding] : {std::tuple{3, 2, 0}, {3, 2, 1}, {2, 2, 0}, {3, 1, 1}, {5, 1, 2}}) {
    const MaxPoolOptions most{.stride = stride, .padding = padding};
    const AvgPoolOptions average{.stride = stride, .padding = padding};
    const IntList window{kernel};
    const std::string name = std::to_string(kernel) + "/" + std::to_string(stride);
    of_images("max_pool2d " + name, [=](const Tensor& x) { return max_pool2d(x, window, most); });
    of_images("avg_pool2d " + name, [=](const Tensor& x) { return avg_pool2d(x, window, average); });
    list.push_back({"max_pool2d alone " + name, images, [=](const Tensors& t) {  // nobody asks where maxima are
                      return Tensors{max_pool2d(t[0], window, most)};
                    }});
  }
  of_images("max_pool3d", [](const Tensor& x) {
    const Tensor volume = x.reshape({1, x.size(0), x.size(1), x.size(2), x.size(3)});
    return max_pool3d(volume, 3, {.stride = 1, .padding = 1});
  });
  of_images("adaptive_max_pool2d", [](const Tensor& x) { return adaptive_max_pool2d(x, 5); });
  of_images("group_norm", [](const Tensor& x) { return group_norm(x, 2); });
  of_images("instance_norm", [](const Tensor& x) { return instance_norm(x); });
  of_images("batch_norm", [](const Tensor& x) {
    const TensorOptions options = x.options();
    const Shape channels{x.size(1)};
    return batch_norm(x, zeros(channels, options), ones(channels, options), {}, {}, {.training = true});
  });
  of_images("local_response_norm", [](const Tensor& x) { return local_response_norm(x, 3); });
  of_images("interpolate", [](const Tensor& x) {
    return interpolate(x, {.scale_factor = {1.5, 2}, .mode = InterpolateMode::Linear});
  });
  of_images("pad", [](const Tensor& x) { return pad(x, {1, 2, 1, 0}); });
  list.push_back({"causal_conv1d", {{2, 6, 301}, {2, 6, 1024}}, with_gradient([](const Tensor& x) {
                    return causal_conv1d(x, full({6, 4}, 0.5, x.options()));
                  })});
  return list;
}

/// Where `got` and `expected` differ in kind, or, being integers, at all.
std::string difference(const Tensor& got, const Tensor& expected) {
  if (got.shape() != expected.shape()) return "shapes";
  const auto a = got.to_vector<double>(), b = expected.to_vector<double>();
  const bool floating = is_floating_point(got.dtype());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (floating ? !cuda::same_kind(a[i], b[i]) : a[i] != b[i]) {
      return "element " + std::to_string(i) + ": " + std::to_string(a[i]) + ", expected " + std::to_string(b[i]);
    }
  }
  return {};
}

void expect_kinds(Device device) {
  for (const Function& f : functions()) {
    for (const Shape& shape : f.shapes) {
      for (DType dtype : {float32, bfloat16, float16, float64}) {
        const Tensor x = with_specials(shape, dtype);
        ASSERT_EQ(sum(isnan(x.to(float64))).item(), 2);
        const Tensors expected = f.of({x.to(float64)}), got = f.of({x.to(device)});
        ASSERT_EQ(got.size(), expected.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
          EXPECT_EQ(difference(got[i].to(Device::cpu()), expected[i]), "")
              << f.name << " of " << shape << ", " << name(dtype) << ", result " << i;
        }
      }
    }
  }
}

TEST(NotFinite, StaysSoOnTheCpu) {
  manual_seed(31);
  expect_kinds(Device::cpu());
}
TEST_F(Gpu, WhatIsNotFiniteStaysSo) { expect_kinds(Device::cuda()); }

}  // namespace
}  // namespace halo
