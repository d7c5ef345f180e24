// How the float32-accurate matrix product is cut. Needs no GPU.
#include <halo/cuda/matmul/split_gemm_plan.h>

#include <gtest/gtest.h>

namespace halo::cuda {
namespace {

GemmProblem dense(int64_t m, int64_t n, int64_t k) {
  return {.m = m, .n = n, .k = k, .lda = k, .ldb = n, .ldc = n, .batch_a = m * k, .batch_b = k * n, .batch_c = m * n};
}

/// Addresses that are looked at, never read.
const float* at(uintptr_t address) { return reinterpret_cast<const float*>(address); }

SplitGemmPlan plan(const GemmProblem& p) { return plan_split_gemm(p, at(4096), at(8192), 132); }

TEST(SplitGemmPlan, TilesCoverTheProduct) {
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{4096, 4096, 4096},
                                {256, 4096, 9216},
                                {131072, 768, 256},
                                {256, 256, 131072},
                                {4, 8, 12},
                                {1000, 4, 40000}}) {
    const SplitGemmPlan p = plan(dense(m, n, k));
    ASSERT_TRUE(p.valid);
    EXPECT_EQ(p.rows.extent, p.swapped ? n : m);
    EXPECT_EQ(p.columns.extent, p.swapped ? m : n);
    EXPECT_GE(p.row_tiles * p.tile_rows, p.rows.extent);
    EXPECT_GE(p.column_tiles * p.tile_columns, p.columns.extent);
    EXPECT_GE(p.stages * kSplitGemmDepth, k);
    EXPECT_GE(p.splits, 1);
    EXPECT_LE(p.splits, p.stages);
    EXPECT_EQ(p.tiles, p.splits * p.row_tiles * p.column_tiles);
    EXPECT_EQ(p.workspace_bytes, p.splits == 1 ? 0 : static_cast<std::size_t>(p.splits * m * n) * 4);
    EXPECT_LE(p.workspace_bytes, std::size_t{256} << 20);
  }
  // Few tiles of a deep sum are split so that every multiprocessor has work.
  EXPECT_GE(plan(dense(256, 256, 131072)).tiles, 100);
}

TEST(SplitGemmPlan, CopiesWhatTheCopyEngineCannotFetch) {
  const auto copies = [](const SplitGemmPlan& p) { return std::pair(p.copies_a, p.copies_b); };
  const GemmProblem even = dense(64, 64, 64);
  EXPECT_EQ(copies(plan(even)), std::pair(false, false));
  EXPECT_EQ(copies(plan_split_gemm(even, at(4100), at(8192), 132)), std::pair(true, false));
  EXPECT_EQ(copies(plan_split_gemm(even, at(4096), at(8200), 132)), std::pair(false, true));
  EXPECT_EQ(copies(plan(dense(64, 62, 63))), std::pair(true, true));
  EXPECT_EQ(copies(plan(dense(1, 64, 63))), std::pair(false, false));  // a single line has no pitch
  GemmProblem batched = dense(63, 64, 64);
  batched.batch = 3;
  EXPECT_EQ(copies(plan(batched)), std::pair(false, false));
  batched.batch_a = 63 * 64 + 2;
  const SplitGemmPlan copied = plan(batched);
  EXPECT_EQ(copies(copied), std::pair(true, false));
  const SplitGemmOperand& a = copied.swapped ? copied.columns : copied.rows;
  EXPECT_EQ(a.pitch, 64);
  EXPECT_EQ(a.batch, 63 * 64);
  EXPECT_GT(copied.milliseconds, plan(dense(63, 64, 64)).milliseconds);
}

TEST(SplitGemmPlan, WhatItLeavesToOthers) {
  GemmProblem huge = dense(64, 64, 64);
  huge.k = huge.lda = int64_t{1} << 31;
  EXPECT_FALSE(plan(huge).valid);
  EXPECT_TRUE(plan(dense(1 << 16, 64, 1 << 13)).valid);
  EXPECT_FALSE(plan(dense(1 << 16, 64, (1 << 13) + 1)).valid);  // a copy of more than 1 GiB
}

}  // namespace
}  // namespace halo::cuda
