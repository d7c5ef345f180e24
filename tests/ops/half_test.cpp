// bfloat16 and float16 through every kind of op: float32 arithmetic, one rounding at the end, on the CPU and on the
// GPU.
#include <halo/core/cuda_backend.h>

#include <algorithm>
#include <functional>

#include "tests/testing.h"

namespace halo {
namespace {

struct HalfCase {
  const char* name;
  std::vector<Shape> shapes;
  std::function<Tensor(const std::vector<Tensor>&)> f;
  double scale = 1;  ///< roundings: more than one where what is kept for the gradient is rounded too
};

std::vector<HalfCase> half_cases() {
  using Args = std::vector<Tensor>;
  return {
      {"add", {{5, 7}, {7}}, [](const Args& a) { return a[0] + a[1]; }},
      {"divide", {{5, 7}, {5, 1}}, [](const Args& a) { return a[0] / (a[1] * a[1] + 1.0); }, 6},
      {"gelu", {{300}}, [](const Args& a) { return gelu(a[0]); }},
      {"silu", {{300}}, [](const Args& a) { return silu(a[0]); }},
      {"exp", {{300}}, [](const Args& a) { return exp(a[0]); }, 2},
      {"sum", {{40, 70}}, [](const Args& a) { return sum(a[0], {1}); }},
      {"mean", {{40, 7}}, [](const Args& a) { return mean(a[0], {0}); }, 2},
      {"softmax", {{9, 70}}, [](const Args& a) { return softmax(a[0], 1); }},
      {"cumsum", {{9, 70}}, [](const Args& a) { return cumsum(a[0], 1); }},
      {"layer_norm", {{9, 70}, {70}, {70}}, [](const Args& a) { return layer_norm(a[0], {70}, a[1], a[2]); }, 3},
      {"group_norm", {{3, 8, 11}, {8}, {8}}, [](const Args& a) { return group_norm(a[0], 2, a[1], a[2]); }, 3},
      {"local_response_norm", {{2, 9, 5}}, [](const Args& a) { return local_response_norm(a[0], 4); }},
      {"max_pool2d", {{2, 3, 9, 11}}, [](const Args& a) { return max_pool2d(a[0], 3, {.stride = 2}); }},
      {"avg_pool1d", {{2, 3, 19}}, [](const Args& a) { return avg_pool1d(a[0], 4); }},
      {"pad",
       {{2, 3, 5}},
       [](const Args& a) {
         return pad(a[0], {2, 1}, PadMode::Reflect);
       }},
      {"matmul", {{17, 33}, {33, 9}}, [](const Args& a) { return matmul(a[0], a[1]); }},
      {"linear", {{17, 33}, {9, 33}, {9}}, [](const Args& a) { return linear(a[0], a[1], a[2]); }, 2},
      {"conv2d", {{2, 4, 9, 8}, {6, 4, 3, 3}, {6}}, [](const Args& a) { return conv2d(a[0], a[1], a[2]); }},
      {"conv_transpose1d", {{2, 4, 9}, {4, 3, 5}}, [](const Args& a) { return conv_transpose1d(a[0], a[1]); }},
      {"depthwise conv1d",
       {{2, 4, 30}, {4, 1, 3}},
       [](const Args& a) { return conv1d(a[0], a[1], {}, {.padding = 1, .groups = 4}); }},
      {"causal_conv1d", {{2, 4, 30}, {4, 3}, {4}}, [](const Args& a) { return causal_conv1d(a[0], a[1], a[2]); }},
      {"long_conv", {{2, 3, 40}, {3, 40}, {3}}, [](const Args& a) { return long_conv(a[0], a[1], a[2]); }},
      {"cross_entropy", {{6, 10}}, [](const Args& a) { return cross_entropy(a[0], arange(6).to(a[0].device())); }, 4},
      {"mse_loss", {{6, 10}, {6, 10}}, [](const Args& a) { return mse_loss(a[0], a[1]); }, 2},
      {"cat",
       {{2, 3}, {2, 5}},
       [](const Args& a) {
         return cat({a[0], a[1]}, 1);
       }},
      {"gather", {{4, 6}}, [](const Args& a) { return index_select(a[0], 1, arange(3).to(a[0].device())); }},
      {"where", {{4, 6}, {4, 6}}, [](const Args& a) { return where(gt(a[0], a[1]), a[0], a[1]); }},
      {"sort", {{4, 6}}, [](const Args& a) { return sort(a[0], 1).values; }},
      {"clamp", {{50}}, [](const Args& a) { return clamp(a[0], -0.5, 0.5); }},
  };
}

/// One rounding: half a unit in the last of 8 or 11 bits.
double unit(DType dtype) { return dtype == bfloat16 ? 0x1p-8 : 0x1p-11; }

/// Value and gradients of `f` at the half-precision numbers `inputs`, computed in their dtype.
std::vector<Tensor> run(const HalfCase& c, const std::vector<Tensor>& inputs, const Tensor& upstream) {
  std::vector<Tensor> leaves;
  for (const Tensor& t : inputs) leaves.push_back(testing::leaf(t));
  const Tensor y = c.f(leaves);
  std::vector<Tensor> results{y.detach()};
  for (const Tensor& g : grad({y}, leaves, {upstream.to(y.dtype()).to(y.device())})) results.push_back(g);
  return results;
}

void check(const HalfCase& c, DType dtype, Device device) {
  std::vector<Tensor> half, wide;
  for (const Shape& shape : c.shapes) {
    half.push_back(randn(shape).to(dtype));
    wide.push_back(half.back().to(float32));
  }
  const Tensor upstream = randn(c.f(wide).shape()).to(dtype).to(float32);
  const auto expected = run(c, wide, upstream);
  for (Tensor& t : half) t = t.to(device);
  const auto got = run(c, half, upstream);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(got[i].dtype(), dtype) << c.name;
    EXPECT_TRUE(testing::near(got[i].to(Device::cpu()).to(float32), expected[i], 1.01 * c.scale * unit(dtype)))
        << c.name << " result " << i;
  }
  // The bound sees one wrong digit.
  EXPECT_FALSE(testing::near(expected[0] * (1 + 3 * c.scale * unit(dtype)), expected[0], 1.01 * c.scale * unit(dtype)));
}

void PrintTo(const HalfCase& c, std::ostream* out) { *out << c.name; }

class Half : public ::testing::TestWithParam<HalfCase> {};

TEST_P(Half, RoundsOnceOnTheCpu) {
  for (DType dtype : {bfloat16, float16}) check(GetParam(), dtype, Device::cpu());
}

TEST_P(Half, RoundsOnceOnTheGpu) {
  if (cuda::device_count() == 0) GTEST_SKIP() << cuda::describe(0);
  const PoisonGuard poison;
  for (DType dtype : {bfloat16, float16}) check(GetParam(), dtype, Device::cuda());
}

INSTANTIATE_TEST_SUITE_P(Ops, Half, ::testing::ValuesIn(half_cases()), [](const auto& test) {
  std::string name = test.param.name;
  std::ranges::replace(name, ' ', '_');
  return name;
});

}  // namespace
}  // namespace halo
