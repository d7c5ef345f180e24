// The float32 matrix products on tensor cores and of few rows, called directly, against float64 on the CPU.
#include <halo/cuda/matmul/few_rows.h>
#include <halo/cuda/matmul/split_gemm.h>

#include <array>

#include "tests/cuda/gpu_testing.h"

namespace halo {
namespace {

using testing::near;
using testing::random_integers;
using testing::same;

/// A product whose operands lie in larger buffers: `gap` floats after each line of a, b and c.
struct Case {
  int64_t m, n, k, batch = 1;
  bool transpose_a = false, transpose_b = false;
  std::array<int64_t, 3> gap{};
  double alpha = 1, beta = 0;
  bool one_a = false, one_b = false;  ///< every matrix of the batch takes the same

  int64_t a_rows() const { return transpose_a ? k : m; }
  int64_t a_columns() const { return transpose_a ? m : k; }
  int64_t b_rows() const { return transpose_b ? n : k; }
  int64_t b_columns() const { return transpose_b ? k : n; }
  Shape a_shape() const { return {one_a ? 1 : batch, a_rows(), a_columns() + gap[0]}; }
  Shape b_shape() const { return {one_b ? 1 : batch, b_rows(), b_columns() + gap[1]}; }
  Shape c_shape() const { return {batch, m, n + gap[2]}; }

  GemmProblem problem() const {
    GemmProblem p{.transpose_a = transpose_a, .transpose_b = transpose_b, .m = m, .n = n, .k = k};
    p.lda = a_columns() + gap[0];
    p.ldb = b_columns() + gap[1];
    p.ldc = n + gap[2];
    p.batch = batch;
    p.batch_a = one_a ? 0 : a_rows() * p.lda;
    p.batch_b = one_b ? 0 : b_rows() * p.ldb;
    p.batch_c = m * p.ldc;
    p.alpha = alpha;
    p.beta = beta;
    return p;
  }

  /// What c becomes, gaps as they were. Loops of the caller's dtype.
  Tensor expected(const Tensor& a, const Tensor& b, const Tensor& c) const {
    const auto matrix = [](const Tensor& t, int64_t columns, bool transpose) {
      const Tensor dense = t.slice(2, 0, columns);
      return transpose ? dense.transpose(1, 2) : dense;
    };
    const Tensor product = matmul(matrix(a, a_columns(), transpose_a), matrix(b, b_columns(), transpose_b)) * alpha;
    Tensor result = c.clone();
    Tensor inner = result.slice(2, 0, n);
    inner.copy_(beta == 0 ? product : product + c.slice(2, 0, n) * beta);
    return result;
  }
};

class SplitGemm : public testing::Gpu {
 protected:
  void SetUp() override {
    Gpu::SetUp();
    if (IsSkipped()) return;
    const Case probe{.m = 4, .n = 4, .k = 4};
    const Tensor a = ones({1, 4, 4}, {.device = Device::cuda()});
    if (!cuda::split_gemm(probe.problem(), a, a, a.clone(), true)) GTEST_SKIP() << "not a Hopper GPU";
  }

  /// The kernel's result on the GPU, back on the CPU.
  static Tensor run(const Case& one, const Tensor& a, const Tensor& b, const Tensor& c) {
    const Tensor there = c.to(Device::cuda()).clone();
    EXPECT_TRUE(cuda::split_gemm(one.problem(), a.to(Device::cuda()), b.to(Device::cuda()), there, true));
    return there.to(Device::cpu());
  }
};

TEST_F(SplitGemm, IntegersAreExactInAnyLayout) {
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 1, 1},
                                {4, 8, 12},
                                {64, 64, 32},
                                {193, 129, 33},
                                {7, 515, 100},
                                {521, 3, 77},
                                {200, 260, 2052},
                                {5, 9, 70001}}) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        Case one{.m = m, .n = n, .k = k, .transpose_a = transpose_a, .transpose_b = transpose_b};
        const auto round_up = [](int64_t columns) { return (4 - columns % 4) % 4; };  // to 16 bytes
        for (const bool aligned : {true, false}) {
          one.gap = {aligned ? round_up(one.a_columns()) : 0, aligned ? round_up(one.b_columns()) + 4 : 3, 3};
          const Tensor a = random_integers(one.a_shape()), b = random_integers(one.b_shape());
          const Tensor c = random_integers(one.c_shape());
          const Tensor got = run(one, a, b, c), expected = one.expected(a, b, c);
          EXPECT_TRUE(same(got, expected)) << m << ' ' << n << ' ' << k << ' ' << transpose_a << transpose_b << aligned;
          EXPECT_FALSE(same(got + 1.0, expected));
        }
      }
    }
  }
}

TEST_F(SplitGemm, BatchesScalesAndSums) {
  for (const bool one_a : {false, true}) {
    for (const bool one_b : {false, true}) {
      Case one{.m = 65, .n = 130, .k = 40, .batch = 3, .transpose_b = one_a, .gap = {0, 2, 0}};
      if (one_a) one.gap[1] = 0;
      one.alpha = 0.5;
      one.beta = one_b ? 1 : -2;
      one.one_a = one_a;
      one.one_b = one_b;
      const Tensor a = random_integers(one.a_shape()), b = random_integers(one.b_shape());
      const Tensor c = random_integers(one.c_shape());
      EXPECT_TRUE(same(run(one, a, b, c), one.expected(a, b, c))) << one_a << one_b;
    }
  }
}

TEST_F(SplitGemm, DeepBatches) {  // every matrix of the batch in splits
  for (const bool transpose_b : {false, true}) {
    const Case one{.m = 65, .n = 5, .k = 30000, .batch = 3, .transpose_b = transpose_b};
    const Tensor a = random_integers(one.a_shape()), b = random_integers(one.b_shape()), c = zeros(one.c_shape());
    EXPECT_TRUE(same(run(one, a, b, c), one.expected(a, b, c))) << transpose_b;
  }
}

TEST_F(SplitGemm, OperandsThatBeginAnywhere) {
  const Case one{.m = 70, .n = 66, .k = 37, .batch = 2, .transpose_a = true};
  const Tensor a = random_integers(one.a_shape()), b = random_integers(one.b_shape()), c = zeros(one.c_shape());
  // The same operands in buffers of NaN, three floats after their beginning.
  const auto later = [](const Tensor& t) {
    const Tensor buffer = full({t.numel() + 8}, NAN, {.device = Device::cuda()});
    const Tensor part = buffer.slice(0, 3, 3 + t.numel());
    part.copy_(t.reshape({t.numel()}));
    return part.reshape(t.shape());
  };
  const Tensor there = c.to(Device::cuda());
  EXPECT_TRUE(cuda::split_gemm(one.problem(), later(a), later(b), there, true));
  EXPECT_TRUE(same(there.to(Device::cpu()), one.expected(a, b, c)));
}

TEST_F(SplitGemm, AsAccurateAsFloat32) {
  for (const int64_t k : {4, 300, 5000, 200000}) {
    const Case one{.m = 36, .n = 100, .k = k, .transpose_b = true};
    const Tensor a = randn(one.a_shape()), b = randn(one.b_shape()), c = zeros(one.c_shape());
    const Tensor wide = one.expected(a.to(float64), b.to(float64), c.to(float64));
    const Tensor got = run(one, a, b, c).to(float64);
    EXPECT_TRUE(near(got, wide, k > 100000 ? 1e-6 : 4e-7)) << k;
    EXPECT_FALSE(near(got * 1.000002, wide, 1e-6)) << k;
    EXPECT_TRUE(same(run(one, a, b, c).to(float64), got));
  }
}

TEST_F(SplitGemm, BadlyScaledLines) {
  const Case one{.m = 70, .n = 68, .k = 512, .transpose_b = true};
  const auto scales = [](int64_t lines) {
    std::vector<float> values;
    for (int64_t exponent : randint(-20, 21, {lines}).to_vector<int64_t>())
      values.push_back(std::ldexp(1.0f, static_cast<int>(exponent)));
    return from_vector(values, {1, lines, 1});
  };
  const Tensor left = scales(70), right = scales(68);
  const Tensor a = randn(one.a_shape()) * left, b = randn(one.b_shape()) * right, c = zeros(one.c_shape());
  const Tensor undo = left * right.transpose(1, 2);  // powers of two: every element counts alike
  const Tensor wide = one.expected(a.to(float64), b.to(float64), c.to(float64)) / undo.to(float64);
  const Tensor got = run(one, a, b, c).to(float64) / undo.to(float64);
  EXPECT_TRUE(near(got, wide, 4e-7));
  EXPECT_FALSE(near(got * 1.000002, wide, 1e-6));
}

TEST_F(SplitGemm, LargeNumbersInfinitiesAndNan) {
  for (const int64_t k : {40, 30000}) {  // in one piece, in splits
    const Case one{.m = 40, .n = 48, .k = k};
    Tensor a = random_integers(one.a_shape()), b = random_integers(one.b_shape());
    a.select(1, 3).fill_(0);
    a.select(1, 3).slice(1, 7, 8).fill_(3.402e38);  // next to the largest float
    a.select(1, 5).slice(1, 9, 10).fill_(NAN);
    a.select(1, 6).slice(1, 11, 12).fill_(INFINITY);
    b.select(2, 8).slice(1, 1, 2).fill_(-INFINITY);
    b.select(1, 7).fill_(1);
    const Tensor c = zeros(one.c_shape());
    const Tensor got = run(one, a, b, c), expected = one.expected(a, b, c);
    EXPECT_TRUE(near(got, expected, 1e-6)) << k;  // counts infinities and NaN that differ
    EXPECT_FALSE(near(zeros_like(got), expected, 1e-6));
  }
}

TEST_F(SplitGemm, WhatItLeavesToOthers) {
  const Case small{.m = 64, .n = 64, .k = 32};
  const TensorOptions gpu{.device = Device::cuda()};
  const Tensor a = random_integers(small.a_shape(), gpu), b = random_integers(small.b_shape(), gpu);
  const Tensor c = zeros(small.c_shape(), gpu);
  EXPECT_TRUE(cuda::split_gemm(small.problem(), a, b, c, true));
  EXPECT_FALSE(cuda::split_gemm(small.problem(), a.to(float64), b.to(float64), c.to(float64), true));
  const PrecisionGuard guard(Precision::TF32);
  EXPECT_FALSE(cuda::split_gemm(small.problem(), a, b, c, true));
}

class DeepBatch : public testing::Gpu {};

TEST_F(DeepBatch, IntegersAreExact) {
  for (const DType dtype : {float32, float64}) {
    for (const Precision precision : {Precision::Float32, Precision::TF32}) {
      const PrecisionGuard guard(precision);
      const TensorOptions options{.dtype = dtype};
      const Tensor a = random_integers({3, 5, 5003}, options),
                   b = random_integers({3, 7, 5003}, options).transpose(1, 2);
      const Tensor got = matmul(a.to(Device::cuda()), b.to(Device::cuda())).to(Device::cpu());
      EXPECT_TRUE(same(got, matmul(a, b)));
      EXPECT_FALSE(same(got + 1.0, matmul(a, b)));
    }
  }
}

class FewRows : public testing::Gpu {};

TEST_F(FewRows, IntegersAreExact) {
  for (const int64_t rows : {1, 2, 3, 4}) {
    for (const auto& [n, k] :
         {std::array<int64_t, 2>{1, 4}, {7, 128}, {64, 132}, {515, 256}, {257, 1024}, {16, 5000}, {12, 0}}) {
      for (const double beta : {0.0, -2.0}) {
        const Case one{.m = rows, .n = n, .k = k, .transpose_b = true, .gap = {4, 8, 3}, .alpha = 0.5, .beta = beta};
        const Tensor a = random_integers(one.a_shape()), b = random_integers(one.b_shape());
        const Tensor c = random_integers(one.c_shape()), there = c.to(Device::cuda()).clone();
        ASSERT_TRUE(cuda::few_rows_gemm(one.problem(), a.to(Device::cuda()), b.to(Device::cuda()), there));
        const Tensor got = there.to(Device::cpu()), expected = one.expected(a, b, c);
        EXPECT_TRUE(same(got, expected)) << rows << ' ' << n << ' ' << k << ' ' << beta;
        EXPECT_FALSE(same(got + 1.0, expected));
      }
    }
  }
}

TEST_F(FewRows, WhatItLeavesToOthers) {
  const auto takes = [](const Case& one, DType dtype = float32) {
    const TensorOptions gpu{.dtype = dtype, .device = Device::cuda()};
    return cuda::few_rows_gemm(one.problem(), zeros(one.a_shape(), gpu), zeros(one.b_shape(), gpu),
                               zeros(one.c_shape(), gpu));
  };
  const Case one{.m = 2, .n = 8, .k = 8, .transpose_b = true};
  EXPECT_TRUE(takes(one));
  EXPECT_FALSE(takes(one, float64));
  EXPECT_FALSE(takes({.m = 5, .n = 8, .k = 8, .transpose_b = true}));
  EXPECT_FALSE(takes({.m = 2, .n = 8, .k = 8, .batch = 2, .transpose_b = true}));
  EXPECT_FALSE(takes({.m = 2, .n = 8, .k = 8}));
  EXPECT_FALSE(takes({.m = 2, .n = 8, .k = 8, .transpose_a = true, .transpose_b = true}));
  EXPECT_FALSE(takes({.m = 2, .n = 8, .k = 7, .transpose_b = true}));
  EXPECT_FALSE(takes({.m = 2, .n = 8, .k = 8, .transpose_b = true, .gap = {0, 1, 0}}));
  EXPECT_FALSE(takes({.m = 1, .n = 2048, .k = 2048, .transpose_b = true}));
}

TEST_F(SplitGemm, LinearAndItsGradients) {
  const Tensor x = randn({1024, 256}), w = randn({512, 256}), bias = randn({512}), g = randn({1024, 512});
  const auto all = [&](Device device, DType dtype) {
    const auto move = [&](const Tensor& t) { return t.to(dtype).to(device).requires_grad_(); };
    const Tensor a = move(x), b = move(w), c = move(bias), y = linear(a, b, c);
    std::vector<Tensor> results = grad({y}, {a, b, c}, {g.to(dtype).to(device)});
    results.push_back(y.detach());
    return results;
  };
  const auto wide = all(Device::cpu(), float64), got = all(Device::cuda(), float32);
  for (std::size_t i = 0; i < wide.size(); ++i) {
    EXPECT_TRUE(near(got[i].to(Device::cpu()).to(float64), wide[i], 1e-6)) << i;
  }
}

}  // namespace
}  // namespace halo
