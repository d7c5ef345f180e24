// Hostile inputs of optimisers and of clipping: parameters and gradients of any layout get the bits of dense ones.
#include <halo/core/cuda_backend.h>

#include "tests/testing.h"

namespace halo {
namespace {

using namespace testing;

class HostileOptimizer : public ::testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    if (GetParam().is_cuda() && cuda::device_count() == 0) GTEST_SKIP() << cuda::describe(0);
  }
};

using Make = std::function<std::unique_ptr<optim::Optimizer>(const std::vector<Tensor>&)>;

Tensor transposed_copy(const Tensor& t) { return t.transpose(0, 1).clone().transpose(0, 1); }

/// Three steps from the same values; `layout` turns parameter and gradient into another form of the same tensor.
Tensor trained(const Make& make, const Tensor& start, const std::vector<Tensor>& gradients,
               const std::function<Tensor(const Tensor&)>& param_as,
               const std::function<Tensor(const Tensor&)>& grad_as) {
  const Tensor param = param_as(start.clone()).requires_grad_();
  const auto optimizer = make({param});
  for (const Tensor& gradient : gradients) {
    param.set_grad(grad_as(gradient));
    optimizer->step();
  }
  return param.detach().contiguous();
}

TEST_P(HostileOptimizer, AnyLayoutOfParametersAndGradients) {
  const PoisonGuard poison;
  const TensorOptions options{.device = GetParam()};
  const std::vector<Make> all{
      [](const auto& p) { return std::make_unique<optim::SGD>(p, optim::SGDOptions{.lr = 0.1, .momentum = 0.9}); },
      [](const auto& p) { return std::make_unique<optim::AdamW>(p, optim::AdamWOptions{.lr = 0.1}); },
      [](const auto& p) { return std::make_unique<optim::Adam>(p, optim::AdamOptions{.lr = 0.1}); }};
  const auto as_is = [](const Tensor& t) { return t; };
  for (const Make& make : all) {
    for (const Shape& shape : {Shape{7, 5}, Shape{1, 1}, Shape{33, 65}, Shape{0, 3}}) {
      const Tensor start = randn(shape, options);
      const std::vector<Tensor> gradients{randn(shape, options), randn(shape, options),
                                          ones({}, options).expand(shape)};
      const Tensor expected = trained(make, start, gradients, as_is, [](const Tensor& g) { return g.clone(); });
      EXPECT_TRUE(same(trained(make, start, gradients, as_is, as_is), expected));
      for (Tensor (*layout)(const Tensor&) : {strided_copy, transposed_copy}) {
        EXPECT_TRUE(same(trained(make, start, gradients, as_is, layout), expected));
        EXPECT_TRUE(same(trained(make, start, gradients, layout, as_is), expected));
        EXPECT_TRUE(same(trained(make, start, gradients, layout, layout), expected));
      }
      if (start.numel() > 0) {
        EXPECT_FALSE(same(start, expected));
      }
    }
  }
}

TEST_P(HostileOptimizer, ClippingTakesAnyLayout) {
  const TensorOptions options{.device = GetParam()};
  const Tensor gradient = randn({33, 5}, options);
  const auto clipped = [&](const Tensor& g, double norm_type) {
    const Tensor param = zeros({33, 5}, options).requires_grad_();
    param.set_grad(g);
    const Tensor norm = optim::clip_grad_norm_({param}, 0.5, norm_type);
    return std::pair(param.grad().contiguous(), norm.to(Device::cpu()));
  };
  for (double norm_type : {2.0, static_cast<double>(INFINITY)}) {
    const auto [expected, norm] = clipped(gradient.clone(), norm_type);
    for (Tensor (*layout)(const Tensor&) : {strided_copy, transposed_copy}) {
      const auto [got, got_norm] = clipped(layout(gradient), norm_type);
      EXPECT_TRUE(near(got, expected, 1e-7));
      EXPECT_TRUE(near(got_norm, norm, 1e-12));
    }
  }
}

std::string device_name(const ::testing::TestParamInfo<Device>& info) { return info.param.is_cpu() ? "cpu" : "gpu"; }
INSTANTIATE_TEST_SUITE_P(Devices, HostileOptimizer, ::testing::Values(Device::cpu(), Device::cuda()), device_name);

}  // namespace
}  // namespace halo
