// The gradient of rows of planes that are read once: x and g wait in the shared memory of a cluster's blocks.
#pragma once

#include "../device/cluster.cuh"
#include "../device/stage_run.cuh"
#include "../device/teams.cuh"
#include "gradient_sums.cuh"
#include "planes.cuh"
#include "row_parts.h"

namespace halo::cuda {

/// What the blocks of a row work on. Of a plane that lies in several parts, the block that has its beginning gets what
/// the others found.
template <class T>
struct WholeRows {
  static constexpr int kThreads = 256, kWarps = kThreads / Teams::kWarp;
  /// GradientSums of what a warp has of a plane.
  struct Totals {
    device::Accumulator<T> plain, scaled, difference;
  };
  RowParts rows;
  Divide positions, channels;
  int planes, warps;  ///< of a part, at most; that share a plane
  bool packs;
  const T *x, *g, *weight;
  const device::Accumulator<T>*mean, *rstd;
  T* dx;                    ///< null: not wanted
  GradientSums* sums;       ///< of planes, for the gradients of weight and bias
  Slopes<Wide<T>>* slopes;  ///< of rows

  HALO_HOST_DEVICE std::size_t staged() const { return device::staged_bytes<T>(rows.room(kWide<T>)); }
  std::size_t bytes() const { return 2 * staged() + static_cast<std::size_t>(planes * warps) * sizeof(Totals); }
};

template <class T>
__global__ void __launch_bounds__(WholeRows<T>::kThreads, sizeof(T) == 8 ? 3 : 5)
    whole_row_backward_kernel(const __grid_constant__ WholeRows<T> a) {
  using Value = device::Accumulator<T>;
  using Totals = typename WholeRows<T>::Totals;
  constexpr int kThreads = WholeRows<T>::kThreads, kSize = kWide<T>;
  __shared__ device::ClusterSums<kThreads, 3> shared;
  __shared__ double of_others[RowParts::kMost][3];
  __shared__ PlaneGradient<Value> of_row;
  extern __shared__ __align__(16) unsigned char staged[];
  if (a.rows.parts > 1) device::arrive_in_cluster();
  const int thread = static_cast<int>(threadIdx.x), part = static_cast<int>(blockIdx.x) % a.rows.parts;
  const int64_t row = static_cast<int>(blockIdx.x) / a.rows.parts, row_begin = row * a.rows.length;
  const auto begin_of = [&](int any) { return a.rows.template begin<kSize>(row_begin, any); };
  const int64_t begin = begin_of(part), end = begin_of(part + 1);
  const int count = static_cast<int>(end - begin);
  const T* const x = device::stage_run<kThreads>(staged, a.x + begin, count) - begin;  // as in memory
  const T* const g = device::stage_run<kThreads>(staged + a.staged(), a.g + begin, count) - begin;
  auto* const of_warps = reinterpret_cast<Totals*>(staged + 2 * a.staged());  // [planes][warps]
  const Value mean = a.mean[row], rstd = a.rstd[row];
  const int64_t first = a.positions.quotient(begin), positions = a.positions.divisor;
  const int planes = static_cast<int>(a.positions.quotient(end - 1) - first) + 1;
  const auto piece_of = [&](int plane) {
    const int64_t at = (first + plane) * positions;
    return RunPiece::of<kSize>(max(at, begin), min(at + positions, end));
  };
  const int threads = a.warps * Teams::kWarp, rank = thread % threads, warp = rank / Teams::kWarp;
  const int teams = kThreads / threads, team = thread / threads;
  device::copy_async_wait_all();
  __syncthreads();
  for (int plane = team; plane < planes; plane += teams) {
    const RunPiece piece = piece_of(plane);
    GradientSums sums{0, 0, 0};
    const auto load = [&](const T* from, int pack) {
      using Packed = Pack<T, kSize>;
      if (a.packs) return reinterpret_cast<const Packed*>(from + piece.packs_at)[pack];
      Packed values;
#pragma unroll
      for (int k = 0; k < kSize; ++k) values.at[k] = from[piece.packs_at + pack * kSize + k];
      return values;
    };
#pragma unroll 1
    for (int pack = rank; pack < piece.packs; pack += threads) {
      sums = sums + GradientSums::of_pack(mean, load(x, pack), load(g, pack));
    }
    if (rank < piece.edges) {
      const int64_t i = piece.edge(rank);
      sums = sums + GradientSums::of_pack(mean, Pack<T, 1>{x[i]}, Pack<T, 1>{g[i]});
    }
    Totals totals{static_cast<Value>(sums.plain), static_cast<Value>(sums.scaled), static_cast<Value>(sums.difference)};
#pragma unroll
    for (int mask = 1; mask < Teams::kWarp; mask *= 2) {
      totals.plain += __shfl_xor_sync(~0u, totals.plain, mask);
      totals.scaled += __shfl_xor_sync(~0u, totals.scaled, mask);
      totals.difference += __shfl_xor_sync(~0u, totals.difference, mask);
    }
    if (thread % Teams::kWarp == 0) of_warps[plane * a.warps + warp] = totals;
  }
  __syncthreads();
  // A thread has a plane.
  GradientSums of_plane{0, 0, 0};
  double own[3] = {};
  if (thread < planes) {
    for (int w = 0; w < a.warps; ++w) {
      const Totals& more = of_warps[thread * a.warps + w];
      of_plane = of_plane + GradientSums{static_cast<double>(more.plain), static_cast<double>(more.scaled),
                                         static_cast<double>(more.difference)};
    }
    int64_t q = first + thread;
    const double w =
        a.weight == nullptr ? 1 : static_cast<double>(device::to_accumulator(a.weight[a.channels.split(q)]));
    own[0] = w * of_plane.plain;
    own[1] = w * of_plane.scaled;
    own[2] = of_plane.difference;
  }
  const bool begins_before = first * positions < begin;
  device::sum_in_cluster(a.rows.parts, part, own, shared, [&] {
    if (thread > 0 || !begins_before) return;
    int owner = part - 1;
    while (begin_of(owner) > first * positions) --owner;
    device::store_in_block(owner, &of_others[part][0], of_plane.plain);
    device::store_in_block(owner, &of_others[part][1], of_plane.scaled);
    device::store_in_block(owner, &of_others[part][2], of_plane.difference);
  });
  if (thread < planes && (thread > 0 || !begins_before)) {
    const int64_t plane_end = (first + thread + 1) * positions;
    for (int other = part + 1; other < a.rows.parts && begin_of(other) < plane_end; ++other) {
      of_plane = of_plane + GradientSums{of_others[other][0], of_others[other][1], of_others[other][2]};
    }
    a.sums[first + thread] = of_plane;
  }
  if (thread == 0) {
    const auto slopes = slopes_of<T>({own[0], own[1], own[2]}, static_cast<double>(a.rows.length), mean, rstd);
    if (part == 0) a.slopes[row] = slopes;
    of_row = {{mean, static_cast<Value>(slopes.rest), rstd, static_cast<Value>(slopes.plain),
               static_cast<Value>(slopes.scaled)},
              Value(1)};
  }
  if (a.dx == nullptr) return;
  __syncthreads();
  PlaneGradient<Value> gradient = of_row;
  for (int plane = team; plane < planes; plane += teams) {
    int64_t q = first + plane;
    if (a.weight != nullptr) gradient.weight = device::to_accumulator(a.weight[a.channels.split(q)]);
    map_piece<1>(piece_of(plane), rank, threads, a.packs, gradient, a.dx, g, x);
  }
}

}  // namespace halo::cuda
