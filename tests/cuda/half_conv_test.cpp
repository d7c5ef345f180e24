// Which kernels convolutions of half types reach.
#include <halo/cuda/conv/dispatch.h>
#include <halo/cuda/runtime/traits.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/cuda/gpu_testing.h"

namespace halo {
namespace {

using HalfConvGpu = testing::Gpu;

/// "pass dtype kernel" of each convolution in forward and backward of `f`.
std::vector<std::string> kernels_of(const std::function<Tensor()>& f) {
  std::vector<std::string> ran;
  for (const auto& key : cuda::conv::convolutions_of(0, [&] { f().sum().backward(); })) {
    const cuda::conv::ConvConfig config{
        .pass = key.pass, .dtype = key.dtype, .precision = key.precision, .alignment = 16};
    ran.push_back(std::string(name(key.pass)) + ' ' + name(key.dtype) + ' ' +
                  cuda::conv::select_algorithm(key.problem, config).name);
  }
  return ran;
}

Tensor leaf(const Shape& shape, DType dtype) {
  return rand(shape).to(dtype).to(Device::cuda()).detach().requires_grad_();
}

TEST_F(HalfConvGpu, DepthwiseReachesItsKernels) {
  for (DType dtype : {bfloat16, float16}) {
    const Tensor x = leaf({8, 64, 254, 254}, dtype), w = leaf({64, 1, 3, 3}, dtype);
    const auto ran = kernels_of([&] { return conv2d(x, w, {}, {.padding = 1, .groups = 64}); });
    EXPECT_EQ(ran.size(), 3u);
    for (const std::string pass : {"forward", "backward_input", "backward_weight"}) {
      const bool weight = pass == "backward_weight";
      if (weight && !cuda::device_traits().is_hopper()) continue;
      const std::string wanted = pass + ' ' + name(dtype) + (weight ? " depthwise rows" : " depthwise half");
      EXPECT_EQ(std::ranges::count(ran, wanted), 1) << wanted << "; first: " << (ran.empty() ? "none" : ran[0]);
    }
  }
  const Tensor x = leaf({8, 64, 254, 254}, float32), w = leaf({64, 1, 3, 3}, float32);  // the negative control
  for (const std::string& one : kernels_of([&] { return conv2d(x, w, {}, {.padding = 1, .groups = 64}); })) {
    EXPECT_EQ(one.find("half"), std::string::npos) << one;
  }
}

TEST_F(HalfConvGpu, OneTapNeedsNoCopies) {
  const Tensor x = leaf({2, 64, 64, 64}, bfloat16), w = leaf({96, 64, 1, 1}, bfloat16);
  const auto ran = kernels_of([&] { return conv2d(x, w); });
  ASSERT_EQ(ran.size(), 3u);
  for (const std::string& one : ran) EXPECT_EQ(one.find("widened"), std::string::npos) << one;
}

TEST_F(HalfConvGpu, ManyChannelsAreWidenedWhereNoHopperIs) {
  const Tensor x = leaf({8, 320, 64, 64}, bfloat16), w = leaf({96, 320, 3, 3}, bfloat16);
  const auto ran = kernels_of([&] { return conv2d(x, w, {}, {.padding = 1}); });
  ASSERT_EQ(ran.size(), 3u);  // not the float32 convolutions within
  EXPECT_EQ(ran[0], cuda::device_traits().is_hopper() ? "forward bfloat16 dense" : "forward bfloat16 widened");
}

/// Nothing to sum: the bias or zeros, whatever the type.
TEST_F(HalfConvGpu, NothingToSum) {
  for (DType dtype : {float32, bfloat16, float16}) {
    const Tensor x = empty({2, 0, 5, 5}, {.dtype = dtype, .device = Device::cuda()});
    const Tensor w = empty({3, 0, 3, 3}, {.dtype = dtype, .device = Device::cuda()});
    const Tensor bias = full({3}, 0.5, {.dtype = dtype, .device = Device::cuda()});
    const Tensor y = conv2d(x, w, bias);
    EXPECT_EQ(y.shape(), (Shape{2, 3, 3, 3}));
    for (double value : y.to_vector<double>()) EXPECT_EQ(value, 0.5);
  }
}

}  // namespace
}  // namespace halo
