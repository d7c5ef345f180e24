// The multiplying warpgroups of the float32-accurate matrix product (split_gemm.cuh).
#pragma once

#include "split_gemm_tile.cuh"

namespace halo::cuda {
namespace split_gemm {

/// A warpgroup that multiplies: 64 rows, all columns.
template <class Tile>
struct Consumer {
  static constexpr int kSums = Tile::kWgmmaColumns / 2;
  static constexpr int kSteps = kSplitGemmDepth / 8;
  const SplitGemmParams& p;
  const Shared<Tile>& shared;
  const int warpgroup, thread;
  float sum[Tile::kHalves][kSums];

  __device__ __forceinline__ int first_row() const { return warpgroup * 64 + thread / 32 * 16 + thread % 32 / 4; }

  /// Byte offset in a rows tile of this thread's first row at its first depth.
  __device__ __forceinline__ uint32_t place() const {
    const int row = first_row(), depth = thread % 4;
    return Tile::kDeep ? row * 128 + row % 8 * 16 + depth * 4 : (depth * Tile::kRowsPitch + row) * 4;
  }

  /// A fragments of k8 steps [first, first + 2), split.
  static __device__ __forceinline__ void load(uint32_t at, int first, uint32_t (&high)[8], uint32_t (&low)[8]) {
    float value[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int quad = first * 2 + i;
      const uint32_t from = Tile::kDeep ? at ^ quad * 16 : at + quad * 4 * Tile::kRowsPitch * 4;
      value[i * 2] = load_shared(from);
      value[i * 2 + 1] = load_shared(from + (Tile::kDeep ? 8 * 128 : 8 * 4));
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const Tf32Pair pair = split_tf32_unguarded(value[i]);
      high[i] = pair.high;
      low[i] = pair.low;
    }
  }

  static __device__ __forceinline__ uint64_t descriptor(uint32_t columns, int step, int half) {
    constexpr uint64_t kLeading = uint64_t{Tile::kColumns} << 16;  // 16 bytes a column between groups of four depths
    constexpr uint64_t kStride = uint64_t{128 >> 4} << 32;
    const uint32_t address = columns + (step * 2 * Tile::kColumns + half * Tile::kWgmmaColumns) * 16;
    return static_cast<uint64_t>(address >> 4) | kLeading | kStride;
  }

  static __device__ __forceinline__ const uint32_t (&fragment(const uint32_t (&a)[8], int step))[4] {
    return *reinterpret_cast<const uint32_t(*)[4]>(&a[step * 4]);
  }

  __device__ __forceinline__ void multiply_stage(uint32_t columns, uint32_t at) {
    constexpr uint64_t kLow = Tile::kPartBytes >> 4;
    uint32_t high[kSteps / 2][8], low[kSteps / 2][8];
#pragma unroll
    for (int half = 0; half < Tile::kHalves; ++half) {
      float part[kSums];
#pragma unroll
      for (int piece = 0; piece < kSteps / 2; ++piece) {
        if (half == 0) load(at, piece * 2, high[piece], low[piece]);
        wgmma_fence();
#pragma unroll
        for (int u = 0; u < 2; ++u) {
          const uint64_t b = descriptor(columns, piece * 2 + u, half);
          wgmma_tf32(part, fragment(low[piece], u), b, piece > 0 || u > 0);
          wgmma_tf32(part, fragment(high[piece], u), b + kLow, 1);
          wgmma_tf32(part, fragment(high[piece], u), b, 1);
        }
        wgmma_commit();
      }
      wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < kSums; ++i) sum[half][i] += part[i];
    }
  }

  __device__ __forceinline__ int64_t row_of(const Work& work, int i) const {
    return work.row + first_row() + i / 2 % 2 * 8;
  }
  __device__ __forceinline__ int64_t column_of(const Work& work, int half, int i) const {
    return work.column + half * Tile::kWgmmaColumns + i / 4 * 8 + thread % 4 * 2 + i % 2;
  }

  /// Bit kSums * h + i: sum[h][i] is not finite. Usually none is, which takes one multiply-add a sum to find out.
  __device__ __forceinline__ uint64_t not_finite() const {
    float zero = 0.0f;
#pragma unroll
    for (const auto& half : sum)
      for (float s : half) zero = fmaf(s, 0.0f, zero);
    uint64_t mask = 0;
    if (zero == 0.0f) return mask;
#pragma unroll
    for (int half = 0; half < Tile::kHalves; ++half)
#pragma unroll
      for (int i = 0; i < kSums; ++i) mask |= static_cast<uint64_t>(!isfinite(sum[half][i])) << (half * kSums + i);
    return mask;
  }

  __device__ __forceinline__ void store(const Work& work) const {
    const SplitGemmPlan& plan = p.plan;
    const bool partial = p.partial != nullptr;
    float* to = partial ? p.partial + (work.split * plan.batch + work.batch) * plan.rows.extent * plan.columns.extent
                        : p.target + work.batch * plan.batch_step;
    // A workspace has no gaps.
    const int64_t row_step = !partial || plan.swapped ? plan.row_step : plan.columns.extent;
    const int64_t column_step = !partial || !plan.swapped ? plan.column_step : plan.rows.extent;
    const uint64_t again = partial ? 0 : not_finite();
    const float alpha = partial ? 1.0f : p.alpha, beta = partial ? 0.0f : p.beta;
    float* const first = to + row_of(work, 0) * row_step + column_of(work, 0, 0) * column_step;
    const int64_t rows = plan.rows.extent - row_of(work, 0), columns = plan.columns.extent - column_of(work, 0, 0);
    const bool pairs = column_step == 1 && row_step % 2 == 0 && reinterpret_cast<uintptr_t>(first) % 8 == 0;
#pragma unroll
    for (int half = 0; half < Tile::kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < kSums; i += 2) {
        const int row = i / 2 % 2 * 8, column = half * Tile::kWgmmaColumns + i / 4 * 8;
        if (row >= rows || column >= columns) continue;
        float* element = first + row * row_step + column * column_step;
        const auto skip = static_cast<int>(again >> (half * kSums + i) & 3);
        const float result[2] = {sum[half][i] * alpha, sum[half][i + 1] * alpha};
        if (pairs && column + 1 < columns && skip == 0) {
          auto* both = reinterpret_cast<float2*>(element);
          const float2 before = beta == 0 ? float2{0.0f, 0.0f} : *both;
          *both = beta == 0 ? float2{result[0], result[1]}
                            : float2{fmaf(beta, before.x, result[0]), fmaf(beta, before.y, result[1])};
          continue;
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (column + j >= columns || (skip >> j & 1) != 0) continue;
          float& one = element[j * column_step];
          one = beta == 0 ? result[j] : fmaf(beta, one, result[j]);
        }
      }
    }
    for (uint64_t rest = again; rest != 0; rest &= rest - 1) {
      const int bit = __ffsll(static_cast<long long>(rest)) - 1;
      const int64_t row = row_of(work, bit % kSums), column = column_of(work, bit / kSums, bit % kSums);
      if (row >= plan.rows.extent || column >= plan.columns.extent) continue;
      float* element = to + row * row_step + column * column_step;
      const float result = plain_sum(p, work.batch, row, column) * alpha;
      *element = beta == 0 ? result : fmaf(beta, *element, result);
    }
  }

  __device__ __forceinline__ void consume() {
    Slot<Tile::kTileSlots> tile;
    Slot<Tile::kRowSlots> rows;
    for (int64_t t = blockIdx.x; t < p.plan.tiles; t += gridDim.x) {
      const Work work(p.plan, t, Tile::kRows, Tile::kColumns);
#pragma unroll
      for (auto& half : sum)
        for (float& s : half) s = 0.0f;
      for (int stage = 0; stage < work.stages; ++stage) {
        barrier_wait(shared.full(tile.index), tile.parity);
        multiply_stage(shared.columns(tile.index), shared.rows(rows.index) + place());
        __syncwarp();
        if (thread % 32 == 0) barrier_arrive(shared.empty(tile.index));
        tile.next();
        rows.next();
      }
      store(work);
    }
  }
};

}  // namespace split_gemm
}  // namespace halo::cuda
