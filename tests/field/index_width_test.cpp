// Field cases past what 32 bits count, and past the launch limits of a GPU. The large ones need a GPU with much memory
// and are skipped elsewhere; the offset arithmetic itself is checked everywhere.
#include "field_testing.h"

namespace halo {
namespace {

using namespace testing;

constexpr int64_t kGiB = int64_t{1} << 30;

std::string needs(int64_t bytes) { return concat("needs a GPU with ", bytes / kGiB, " GiB free; ", cuda::describe(0)); }

TensorOptions on_gpu_as(DType dtype) { return {dtype, Device::cuda()}; }

// Case 1. int products formed before they were widened: fine below 2^31 elements, an illegal access above. On the CPU
// the sizes alone are checked, at the last element of both shapes.
TEST(FieldIndexWidth, OffsetsOfTheLastElements) {
  for (const Shape& shape : {Shape{1, 514, 2048, 2048}, Shape{1, 33, 8192, 8192}, Shape{70, 32, 100, 100, 100},
                             Shape{1, 1, 1, 1073741825}, Shape{3, 1, 65536, 32769}}) {
    const Shape strides = contiguous_strides(shape);
    int64_t offset = 0;
    for (int i = 0; i < shape.rank(); ++i) offset += (shape[i] - 1) * strides[i];
    EXPECT_EQ(offset, shape.numel() - 1);
    EXPECT_GT(offset, int64_t{INT32_MAX} / 2);
  }
  const ConvProblem p = ConvProblem::conv("conv2d", {1, 514, 2048, 2048}, {1, 514, 3, 3}, {.padding = 1});
  EXPECT_EQ(p.x_numel(), 2155872256);
  EXPECT_EQ(p.output_positions(), 2048 * 2048);
  EXPECT_THROW(ConvProblem::conv("conv1d", {INT64_MAX, 2, 3}, {1, 2, 1}, {}), ArgumentError);
}

// A view far into memory that is never touched: 2^33 elements of one row, by stride 0.
TEST(FieldIndexWidth, ExpandedViewsCountIn64Bits) {
  const Tensor wide = tensor({1, 2, 3}).reshape({3, 1}).expand({3, int64_t{1} << 33});
  EXPECT_EQ(wide.numel(), 3 * (int64_t{1} << 33));
  EXPECT_TRUE(holds(wide.slice(1, (int64_t{1} << 33) - 2, int64_t{1} << 33), {1, 1, 2, 2, 3, 3}));
}

TEST(FieldIndexWidth, DenseConvPast31Bits) {
  if (!gpu_has(14 * kGiB)) GTEST_SKIP() << needs(14 * kGiB);
  const Tensor x = zeros({1, 514, 2048, 2048}, on_gpu_as(float32)), w = zeros({1, 514, 3, 3}, on_gpu_as(float32));
  x.select(1, 513).select(1, 2047).select(1, 2047).fill_(1);
  w.select(1, 513).select(1, 1).select(1, 1).fill_(1);
  const Tensor y = conv2d(x, w, {}, {.padding = 1});
  EXPECT_EQ(y.sum().item(), 1);
  EXPECT_EQ(y.select(2, 2047).select(2, 2047).item(), 1);
  // The adjoint writes all 2^31 elements.
  const ConvProblem p = ConvProblem::conv("conv2d", x.shape(), w.shape(), {.padding = 1});
  const Tensor dw = conv_backward_weight(p, x, ones(y.shape(), y.options()));
  EXPECT_EQ(dw.select(1, 513).sum().item(), 4);  // the corner is seen by four taps
}

TEST(FieldIndexWidth, DepthwiseConvPast31Bits) {
  if (!gpu_has(24 * kGiB)) GTEST_SKIP() << needs(24 * kGiB);
  const Tensor x = ones({1, 33, 8192, 8192}, on_gpu_as(float32));
  const Tensor w = (arange(33, on_gpu_as(float32)) + 1.0).reshape({33, 1, 1, 1});
  const Tensor y = conv2d(x, w, {}, {.groups = 33});
  for (int64_t c : {0, 1, 31, 32}) EXPECT_TRUE(all_equal(y.select(1, c), static_cast<double>(c + 1))) << c;
}

// Case 2. Pooling formed (n * C + c) * H * W in 32 bits, and a loop counter wrapped near INT_MAX.
TEST(FieldIndexWidth, PoolingPast31Bits) {
  if (!gpu_has(20 * kGiB)) GTEST_SKIP() << needs(20 * kGiB);
  {
    const Tensor x = zeros({70, 32, 100, 100, 100}, on_gpu_as(float32));
    x.select(0, 69).select(0, 31).select(0, 99).select(0, 99).select(0, 99).fill_(7);
    const Tensor y = max_pool3d(x, 5);
    EXPECT_EQ(y.sum().item(), 7);
    EXPECT_EQ(y.select(0, 69).select(0, 31).select(0, 19).select(0, 19).select(0, 19).item(), 7);
  }
  allocator(Device::cuda()).release_cache();
  const int64_t length = 1073741825;
  const Tensor x = ones({1, 1, 1, length}, on_gpu_as(float32));
  x.select(3, length - 1).fill_(3);
  const Tensor y = avg_pool2d(x, 1);
  EXPECT_TRUE(all_equal(y.slice(3, 0, length - 1), 1));
  EXPECT_EQ(y.select(3, length - 1).item(), 3);
}

TEST(FieldIndexWidth, ElementwisePast31Bits) {
  if (!gpu_has(20 * kGiB)) GTEST_SKIP() << needs(20 * kGiB);
  const int64_t n = (int64_t{1} << 31) + 12345;
  const Tensor x = ones({n}, on_gpu_as(float32));
  x.select(0, n - 1).fill_(-5);
  const Tensor y = relu(x);
  EXPECT_EQ(y.select(0, n - 1).item(), 0);
  EXPECT_EQ(y.select(0, n - 2).item(), 1);
  EXPECT_EQ(amin(x).item(), -5);
  EXPECT_EQ(argmin(x).item(), static_cast<double>(n - 1));
}

// Case 4. A batch or channels mapped to gridDim.y or z, which end at 65535.
using FieldLaunch = Field;
INSTANTIATE_TEST_SUITE_P(Devices, FieldLaunch, both_devices(), device_name);

TEST_P(FieldLaunch, MoreThan65535ChannelsAndSamples) {
  const std::vector<Shape> shapes{{1, 65536, 4}, {65536, 1, 4}};
  const Tensor expected = make({1, 2, 2, 2}, {1, 1, 4});
  for (const Shape& shape : shapes) {
    const Tensor x = leaf(ones(shape, options())), w = leaf(ones({shape[1], 1, 2}, options()));
    const Tensor y = conv1d(x, w, {}, {.groups = shape[1], .auto_padding = AutoPadding::Causal});
    EXPECT_TRUE(same(y.detach(), expected.expand(shape)));
    y.sum().backward();
    EXPECT_TRUE(same(x.grad(), make({2, 2, 2, 1}, {1, 1, 4}).expand(shape)));
    const float samples = static_cast<float>(shape[0]);
    EXPECT_TRUE(same(w.grad(), make({3 * samples, 4 * samples}, {1, 1, 2}).expand(w.shape())));
    EXPECT_TRUE(same(causal_conv1d(x.detach(), w.detach()), expected.expand(shape)));
  }
}

TEST_P(FieldLaunch, BatchNormOf131072Samples) {
  const int64_t n = 131072;
  const Tensor x = make({1, -1}, {1, 2}).expand({n / 2, 2}).reshape({n, 1});
  const Tensor mean = zeros({1}, options()), var = ones({1}, options());
  const Tensor y = batch_norm(x, mean, var, {}, {}, {.training = true});
  EXPECT_TRUE(close(y.slice(0, 0, 4), {0.999995, -0.999995, 0.999995, -0.999995}, 1e-6));
  EXPECT_EQ(mean.item(), 0);
  EXPECT_NEAR(var.item(), 1.00000076, 1.2e-7);
}

TEST_P(FieldLaunch, OtherOperationsOn65537Planes) {
  for (const Shape& shape : {Shape{65537, 1, 4}, Shape{1, 65537, 4}, Shape{65537, 4}}) {
    const Tensor here = randn(shape), there = here.to(device());
    if (shape.rank() == 3) {
      EXPECT_TRUE(same(max_pool1d(there, 2).to(Device::cpu()), max_pool1d(here, 2)));
      EXPECT_TRUE(near(local_response_norm(there, 3).to(Device::cpu()), local_response_norm(here, 3), 1e-6));
      EXPECT_TRUE(near(long_conv(there, ones({shape[1], 4}, options())).to(Device::cpu()),
                       long_conv(here, ones({shape[1], 4})), 1e-5));
    }
    EXPECT_TRUE(near(softmax(there, -1).to(Device::cpu()), softmax(here, -1), 1e-6));
    EXPECT_TRUE(near(softmax(there, 0).to(Device::cpu()), softmax(here, 0), 1e-6));
    EXPECT_TRUE(near(layer_norm(there, {4}).to(Device::cpu()), layer_norm(here, {4}), 1e-6));
    EXPECT_TRUE(near(cumsum(there, 0).to(Device::cpu()), cumsum(here, 0), 1e-5));
    Generator a(7), b(7);
    EXPECT_TRUE(same(dropout(there, 0.5, true, a).to(Device::cpu()), dropout(here, 0.5, true, b)));
    EXPECT_TRUE(same(there.transpose(0, 1).contiguous().to(Device::cpu()), here.transpose(0, 1).contiguous()));
  }
}

}  // namespace
}  // namespace halo
