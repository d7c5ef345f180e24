// backward_weight of convolutions with few channels a group, in float32 on the ordinary units.
//
// A thread keeps the sums of a tile of channels and taps, and the last rows of y, as many as the kernel has: each
// number is loaded once. Lanes, warps and blocks are added up in a fixed order, from warps on in float64.
#pragma once

#include "../ordered_sum.cuh"
#include "march_rows.cuh"

namespace halo::cuda::conv::small_groups {

template <class T, int Shape>
__global__ void __launch_bounds__(kMarchThreads, kMarchBlocks<Shape>)
    march_weight(const __grid_constant__ MarchPlan plan, const T* __restrict__ x, const T* __restrict__ y,
                 double* partials) {
  constexpr MarchShape kShape = kMarchShapes[Shape];
  constexpr int kResults = kShape.results, kSources = kShape.sources, kHeight = kShape.height, kWidth = kShape.width;
  constexpr int kColumns = kMarchColumns, kSteps = kMarchSteps, kSums = kMarchSums<Shape>;
  static_assert(kSteps % kHeight == 0);
  const MarchTile tile(plan, kShape, blockIdx.x);

  float sums[kSums] = {};  // [result][source][row of taps][column]
  for (int64_t index = int64_t{tile.split} * kMarchThreads + threadIdx.x; index < plan.items;
       index += int64_t{plan.splits} * kMarchThreads) {
    const MarchItem item(plan, index);
    MarchWindows<T, kSources, kHeight, kWidth + kColumns - 1> windows(plan, x, tile, item);
    MarchPlanes<const T, kResults> results(y, plan.result, item.image * plan.groups + tile.group, tile.result,
                                           item.position(plan.result));
    float gradients[kHeight][kResults][kColumns] = {};  // row modulo kHeight
    for (int step = 0; step < windows.steps; step += kSteps) {
      T window[kSteps][kSources][kWidth + kColumns - 1], arrived[kSteps][kResults][kColumns];
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        windows.load(plan, step + u, window[u]);
#pragma unroll
        for (int o = 0; o < kResults; ++o) {
#pragma unroll
          for (int i = 0; i < kColumns; ++i) {
            const bool exists = step + u < item.rows && item.column + i < plan.result.extent[2];
            arrived[u][o][i] = exists ? results.at[o][i] : T{};
          }
        }
        results.advance(plan.result.extent[2]);
      }
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        float row[kSources][kWidth + kColumns - 1];
        convert(window[u], row);
        convert(arrived[u], gradients[u % kHeight]);
#pragma unroll
        for (int o = 0; o < kResults; ++o) {
#pragma unroll
          for (int i = 0; i < kColumns; ++i) {
#pragma unroll
            for (int c = 0; c < kSources; ++c) {
#pragma unroll
              for (int m = 0; m < kHeight; ++m) {
#pragma unroll
                for (int k = 0; k < kWidth; ++k) {
                  float& sum = sums[((o * kSources + c) * kHeight + m) * kWidth + k];
                  sum = fmaf(gradients[(u - m + kHeight) % kHeight][o][i], row[c][k + i], sum);
                }
              }
            }
          }
        }
      }
    }
  }

  __shared__ float warp_sums[kMarchThreads / 32][kSums];
  for_each_warp_sum(sums, [&](int i, float sum) { warp_sums[threadIdx.x / 32][i] = sum; });
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kSums; i += kMarchThreads) {
    const int k = tile.tap[2] + i % kWidth, m = tile.tap[1] + i / kWidth % kHeight;
    const int c = tile.source + i / (kWidth * kHeight) % kSources;
    const int o = tile.result + i / (kWidth * kHeight * kSources);
    if (k >= plan.kernel[2] || m >= plan.kernel[1] || c >= plan.source.channels || o >= plan.result.channels) continue;
    double sum = 0;
    for (const auto& of_warp : warp_sums) sum += of_warp[i];
    const int64_t weight = tile.group * plan.weight_group + o * plan.weight_result + c * plan.weight_source +
                           (tile.tap[0] * plan.kernel[1] + m) * plan.kernel[2] + k;
    partials[weight * plan.splits + tile.split] = sum;
  }
}

}  // namespace halo::cuda::conv::small_groups
