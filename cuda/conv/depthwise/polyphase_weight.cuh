// Weight gradients of depthwise convolution phase by phase (polyphase.cuh).
#pragma once

#include "../ordered_sum.cuh"
#include "polyphase.cuh"

namespace halo::cuda::conv::depthwise {

inline constexpr int kPolyWarpRuns = 3;     ///< of a warp
inline constexpr int kPolyMostGroups = 16;  ///< of such runs in a block

template <class T>
struct PolyWeightParams {
  PolyGeometry geometry;
  PolyBox gradients;
  int taps, runs, groups;  ///< groups of kPolyWarpRuns runs of a block
  int channels, multiplier;
  FastDivide run_sets, splits;
  uint32_t tasks;  ///< tiles of a channel, of all samples
  int box_elements, gradient_elements;
  const T *x, *y;
  double* partials;  ///< [channel, tap, split]
};

template <int Taps, int Rows, class E>
__device__ __forceinline__ void add_gradients(const E (&gradients)[Rows], const E* from, E (&sums)[kPolyRun]) {
  E values[Rows + Taps - 1];
#pragma unroll
  for (int i = 0; i < Rows + Taps - 1; ++i) values[i] = from[i];
#pragma unroll
  for (int t = 0; t < Taps; ++t) {
#pragma unroll
    for (int r = 0; r < Rows; ++r) sums[t] = fma(values[r + t], gradients[r], sums[t]);
  }
}

/// Block: (channel of y, set of runs, split). A warp adds the products of one group of runs over a share of the tile's
/// slots, in float32, and a tile's sums in float64.
template <class T, int Rows>
__global__ void __launch_bounds__(kPolyMostGroups * 32, 2)
    depthwise_polyphase_weight(const __grid_constant__ PolyWeightParams<T> p) {
  using E = PolyElement<T>;
  extern __shared__ double2 shared[];
  __shared__ double warp_sums[kPolyMostGroups][kPolyWarpRuns * kPolyRun];
  const PolyGeometry& g = p.geometry;
  E* const gradients = reinterpret_cast<E*>(shared);  // [slot, row]
  E* const box = gradients + p.gradient_elements;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int warp = thread / 32, lane = thread % 32, shares = threads / 32 / p.groups;
  const int group = warp % p.groups, share = warp / p.groups;
  uint32_t split, set;
  const int64_t channel = p.run_sets.divide(p.splits.divide(blockIdx.x, split), set);
  const int first_run = (static_cast<int>(set) * p.groups + group) * kPolyWarpRuns;
  const E* from[kPolyWarpRuns];
  int counts[kPolyWarpRuns];
#pragma unroll
  for (int i = 0; i < kPolyWarpRuns; ++i) {
    const bool exists = first_run + i < p.runs;
    const PolyRunTaps run = poly_run(g, exists ? first_run + i : 0);
    from[i] = box + poly_offset(g, run.depth, run.height.first, run.width);
    counts[i] = exists ? run.height.count : 0;
  }
  // What no copy fills must be finite: it is multiplied by a gradient of zero.
  for (int i = thread; i < p.gradient_elements + p.box_elements; i += threads) gradients[i] = 0;
  const int64_t x_slice = int64_t{g.box.depth} * g.box.height * g.box.width;
  const int64_t y_slice = int64_t{g.depth.result} * g.height.result * g.width.result;
  double totals[kPolyWarpRuns][kPolyRun] = {};
  for (uint32_t task = split; task < p.tasks; task += p.splits.divisor) {
    PolyTile tile;
    const int64_t sample = poly_tile(g, task, tile);
    __syncthreads();
    load_box(g, tile, p.x + (sample * (p.channels / p.multiplier) + channel / p.multiplier) * x_slice, box);
    load_box(p.gradients, tile.depth * g.depth.tile, tile.height * g.height.tile, tile.width * g.width.tile,
             p.y + (sample * p.channels + channel) * y_slice, gradients);
    device::copy_async_wait_all();
    __syncthreads();
    E sums[kPolyWarpRuns][kPolyRun] = {};
    for (int s = share * 32 + lane; s < g.slots; s += shares * 32) {
      const int at = box_element(g.box, poly_slot<Rows>(g, s));
      E values[Rows];
#pragma unroll
      for (int r = 0; r < Rows; ++r) values[r] = gradients[s * Rows + r];
#pragma unroll
      for (int i = 0; i < kPolyWarpRuns; ++i) {
        switch (counts[i]) {
          case 0: break;
          case 1: add_gradients<1>(values, from[i] + at, sums[i]); break;
          case 2: add_gradients<2>(values, from[i] + at, sums[i]); break;
          default: add_gradients<3>(values, from[i] + at, sums[i]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kPolyWarpRuns; ++i) {
#pragma unroll
      for (int t = 0; t < kPolyRun; ++t) totals[i][t] += static_cast<double>(sums[i][t]);
    }
  }
#pragma unroll
  for (int i = 0; i < kPolyWarpRuns; ++i) {
#pragma unroll
    for (int t = 0; t < kPolyRun; ++t) {
      const double sum = warp_sum(totals[i][t]);
      if (lane == 0) warp_sums[warp][i * kPolyRun + t] = sum;
    }
  }
  __syncthreads();
  for (int i = thread; i < p.groups * kPolyWarpRuns * kPolyRun; i += threads) {
    const int t = i % kPolyRun, index = static_cast<int>(set) * p.groups * kPolyWarpRuns + i / kPolyRun;
    if (index >= p.runs) continue;
    const PolyRunTaps run = poly_run(g, index);
    if (t >= run.height.count) continue;
    double sum = 0;
    const int in_warp = i % (kPolyWarpRuns * kPolyRun), of_group = i / (kPolyWarpRuns * kPolyRun);
    for (int s = 0; s < shares; ++s) sum += warp_sums[s * p.groups + of_group][in_warp];
    p.partials[(channel * p.taps + run.tap(g, t)) * p.splits.divisor + split] = sum;
  }
}

}  // namespace halo::cuda::conv::depthwise
