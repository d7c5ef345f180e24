// The gradient of rows of planes that are read once: x and g wait in the shared memory of a cluster's blocks.
#pragma once

#include "../device/cluster.cuh"
#include "../device/stage_run.cuh"
#include "../device/teams.cuh"
#include "gradient_sums.cuh"
#include "planes.cuh"

namespace halo::cuda {

/// Rows whose x and g wait in shared memory: `parts` neighbouring blocks, a cluster, share a row, and each has up to
/// `each` planes of it. `warps` warps have a plane, and then the next.
template <class T>
struct WholeRows {
  static constexpr int kThreads = 256, kWarps = kThreads / Teams::kWarp;
  static constexpr int64_t kBytes = 74000;  ///< of a part: three fit beside each other
  /// GradientSums of the part of a plane that a warp has.
  struct Totals {
    device::Accumulator<T> plain, scaled, difference;
  };
  int64_t positions = 0;
  int planes = 0, parts = 1, each = 0, warps = 0;
  bool packs = false;
  const T *x = nullptr, *g = nullptr, *weight = nullptr;
  const device::Accumulator<T>*mean = nullptr, *rstd = nullptr;
  T* dx = nullptr;
  GradientSums* sums = nullptr;       ///< of planes, for the gradients of weight and bias
  Slopes<Wide<T>>* slopes = nullptr;  ///< of rows

  /// Cuts rows of `planes_of` planes.
  void cut(int64_t planes_of, int64_t positions_of, bool clusters) {
    positions = positions_of;
    planes = static_cast<int>(planes_of);
    const int most = clusters ? device::kMostInCluster : 1;
    const auto needed = [&] {
      return 2 * positions * ((planes + parts - 1) / parts) * static_cast<int64_t>(sizeof(T));
    };
    while (parts < most && parts < planes && needed() > kBytes) parts *= 2;
    each = (planes + parts - 1) / parts;
    warps = each < 2 * kWarps ? kWarps : 1;
  }
  HALO_HOST_DEVICE std::size_t staged() const { return device::staged_bytes<T>(each * positions); }
  std::size_t bytes() const { return 2 * staged() + static_cast<std::size_t>(each * warps) * sizeof(Totals); }
};

template <class T>
__global__ void __launch_bounds__(WholeRows<T>::kThreads, 3)
    whole_row_backward_kernel(const __grid_constant__ WholeRows<T> a, const __grid_constant__ Divide channels) {
  using Value = device::Accumulator<T>;
  using Totals = typename WholeRows<T>::Totals;
  constexpr int kThreads = WholeRows<T>::kThreads, kSize = kWide<T>;
  __shared__ device::ClusterSums<kThreads, 3> shared;
  __shared__ PlaneGradient<Value> of_row;
  extern __shared__ __align__(16) unsigned char staged[];
  if (a.parts > 1) device::arrive_in_cluster();
  const int thread = static_cast<int>(threadIdx.x), part = static_cast<int>(blockIdx.x) % a.parts;
  const int64_t row = static_cast<int>(blockIdx.x) / a.parts, first = row * a.planes + part * a.each;
  const int planes = max(min(a.each, a.planes - part * a.each), 0);
  const int64_t begin = planes > 0 ? first * a.positions : 0;
  const int count = planes * static_cast<int>(a.positions);
  const T* const x = device::stage_run<kThreads>(staged, a.x + begin, count) - begin;  // as in memory
  const T* const g = device::stage_run<kThreads>(staged + a.staged(), a.g + begin, count) - begin;
  auto* const of_warps = reinterpret_cast<Totals*>(staged + 2 * a.staged());  // [planes][warps]
  const Value mean = a.mean[row], rstd = a.rstd[row];
  const int threads = a.warps * Teams::kWarp, rank = thread % threads, warp = rank / Teams::kWarp;
  const int teams = kThreads / threads, team = thread / threads;
  device::copy_async_wait_all();
  __syncthreads();
  for (int plane = team; plane < planes; plane += teams) {
    const int64_t at = begin + plane * a.positions;
    const RunPiece piece = RunPiece::of<kSize>(at, at + a.positions);
    GradientSums sums{0, 0, 0};
    const auto load = [&](const T* from, int pack) {
      using Packed = Pack<T, kSize>;
      if (a.packs) return reinterpret_cast<const Packed*>(from + piece.packs_at)[pack];
      Packed values;
#pragma unroll
      for (int k = 0; k < kSize; ++k) values.at[k] = from[piece.packs_at + pack * kSize + k];
      return values;
    };
#pragma unroll 2
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
  double own[3] = {};
  for (int plane = thread; plane < planes; plane += kThreads) {
    GradientSums sums{0, 0, 0};
    for (int w = 0; w < a.warps; ++w) {
      const Totals& more = of_warps[plane * a.warps + w];
      sums = sums + GradientSums{static_cast<double>(more.plain), static_cast<double>(more.scaled),
                                 static_cast<double>(more.difference)};
    }
    a.sums[first + plane] = sums;
    int64_t q = first + plane;
    const double w = a.weight == nullptr ? 1 : static_cast<double>(device::to_accumulator(a.weight[channels.split(q)]));
    own[0] += w * sums.plain;
    own[1] += w * sums.scaled;
    own[2] += sums.difference;
  }
  device::sum_in_cluster(a.parts, part, own, shared);
  if (thread == 0) {
    const auto slopes = slopes_of<T>({own[0], own[1], own[2]}, static_cast<double>(a.planes * a.positions), mean, rstd);
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
    const int64_t at = q * a.positions;
    if (a.weight != nullptr) gradient.weight = device::to_accumulator(a.weight[channels.split(q)]);
    map_piece<2>(RunPiece::of<kSize>(at, at + a.positions), rank, threads, a.packs, gradient, a.dx, g, x);
  }
}

}  // namespace halo::cuda
