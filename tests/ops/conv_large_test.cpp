// The trilinear form on large shapes, where loops in float64 would take minutes:
// <forward(x, w), g> = <x, backward_input(g, w)> = <w, backward_weight(x, g)>, on the CPU and, a hundred times larger,
// on the GPU in float32 with the fast kernels.
#include <halo/core/cuda_backend.h>
#include <halo/ops/conv.h>

#include "tests/testing.h"

namespace halo {
namespace {

struct LargeConv {
  const char* name;
  Shape x, w;  // x as the CPU sees it; the GPU's has `gpu_batch` samples and its last axis is 4 times as long
  ConvOptions options;
  int64_t gpu_batch;
};

const LargeConv kCases[] = {
    {"alexnet_stem", {2, 3, 59, 61}, {96, 3, 11, 11}, {.stride = 4, .padding = 2}, 96},
    {"three_axes", {1, 16, 11, 20, 37}, {24, 16, 3, 5, 7}, {.padding = {1, 2, 3}}, 24},
    {"strided_dilated", {2, 24, 999}, {40, 24, 5}, {.stride = 3, .padding = 4, .padding_after = 1, .dilation = 2}, 200},
    {"groups", {1, 32, 37, 41}, {64, 8, 3, 3}, {.stride = 2, .padding = 1, .groups = 4}, 128},
    {"depthwise", {2, 64, 1777}, {128, 1, 7}, {.padding = 3, .groups = 64}, 256},
    {"pointwise", {2, 96, 997}, {80, 96, 1}, {}, 200},
    {"wide_even_kernel", {1, 9, 50, 61}, {33, 9, 4, 6}, {.padding = {1, 2}, .padding_after = {2, 3}}, 128},
};

double dot(const Tensor& a, const Tensor& b) { return (a.to(float64) * b.to(float64)).sum().item(); }

/// The form from its three contractions: they may differ by rounding, `bound` times the size of a random sum of this
/// many terms. A contraction that leaves out one channel must differ by more.
void check_form(const LargeConv& c, Shape x_shape, DType dtype, Device device, double bound) {
  const TensorOptions options{.dtype = dtype, .device = device};
  const auto p = ConvProblem::conv("conv", x_shape, c.w, c.options);
  const Tensor x = randn(p.x_shape(), options), w = randn(p.w_shape(), options), g = randn(p.y_shape(), options);
  const double form = dot(ops::conv_forward(p, x, w), g);
  const double size =
      std::sqrt(static_cast<double>(p.y_numel()) * static_cast<double>(p.in_channels_per_group() * p.taps()));
  const Tensor dx = ops::conv_backward_input(p, g, w);
  EXPECT_NEAR(dot(x, dx), form, bound * size) << p.str();
  EXPECT_NEAR(dot(w, ops::conv_backward_weight(p, x, g)), form, bound * size) << p.str();

  dx.select(1, p.in_channels - 1).fill_(0);
  EXPECT_GT(std::abs(dot(x, dx) - form), bound * size) << "the bound sees nothing";
}

class ConvLarge : public ::testing::TestWithParam<LargeConv> {};

TEST_P(ConvLarge, TheFormHoldsOnTheCpu) {
  check_form(GetParam(), GetParam().x, float64, Device::cpu(), 1e-13);
  check_form(GetParam(), GetParam().x, float32, Device::cpu(), 3e-6);
}

TEST_P(ConvLarge, TheFormHoldsOnTheGpu) {
  if (cuda::device_count() == 0) GTEST_SKIP() << cuda::describe(0);
  Shape x = GetParam().x;
  x[0] = GetParam().gpu_batch;
  x[x.rank() - 1] *= 4;
  check_form(GetParam(), x, float32, Device::cuda(), 3e-6);
  check_form(GetParam(), GetParam().x, float64, Device::cuda(), 1e-13);
  const PrecisionGuard tf32(Precision::TF32);
  check_form(GetParam(), x, float32, Device::cuda(), 2e-3);
}

INSTANTIATE_TEST_SUITE_P(Shapes, ConvLarge, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace halo
