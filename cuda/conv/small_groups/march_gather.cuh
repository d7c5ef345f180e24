// Forward and backward_input of convolutions with few channels a group, in float32 on the ordinary units.
//
// A thread keeps the weights of its result channels, and the sums of as many rows of results as the kernel has: each
// step adds to them all and finishes one.
#pragma once

#include "../plain_sum.cuh"
#include "march_rows.cuh"
#include "small_groups.h"

namespace halo::cuda::conv::small_groups {

/// A strip again, as plain sums: zeros stand for taps beside the source, which plain sums leave out. Apart, since it
/// takes registers and hardly ever runs.
template <class T>
__device__ __noinline__ void repair_strip(const MarchPlan& plan, const GatherArguments<T>& arguments,
                                          const PlainSumOf<T>& plain, const MarchTile& tile, const MarchItem& item,
                                          int channels) {
  const int last = min(tile.result + channels, plan.result.channels);
  for (int o = tile.result; o < last; ++o) {
    const int64_t channel = int64_t{tile.group} * plan.result.channels + o;
    T* const to = arguments.result + (item.image * plan.groups * plan.result.channels + channel) * plan.result.plane;
    const float bias = arguments.bias != nullptr ? device::to_accumulator(arguments.bias[channel]) : 0.0f;
    const int columns = min(kMarchColumns, plan.result.extent[2] - item.column);
    for (int at = 0; at < item.rows * columns; ++at) {
      const int64_t flat = item.position(plan.result) + int64_t{at / columns} * plan.result.extent[2] + at % columns;
      to[flat] = device::from_accumulator<T>(plain.at(item.image, channel, flat) + bias);
    }
  }
}

template <class T, int Shape>
__global__ void __launch_bounds__(kMarchThreads, kMarchBlocks<Shape>)
    march_gather(const __grid_constant__ MarchPlan plan, const __grid_constant__ GatherArguments<T> arguments,
                 const __grid_constant__ PlainSumOf<T> plain) {
  constexpr MarchShape kShape = kMarchShapes[Shape];
  constexpr int kResults = kShape.results, kSources = kShape.sources, kHeight = kShape.height, kWidth = kShape.width;
  constexpr int kColumns = kMarchColumns, kSteps = kMarchSteps;
  static_assert(kSteps % kHeight == 0);
  const MarchTile tile(plan, kShape, blockIdx.x);
  const int channel = tile.group * plan.result.channels + tile.result;

  float weights[kResults][kSources][kHeight][kWidth], bias[kResults];
  bool is_result[kResults];
#pragma unroll
  for (int o = 0; o < kResults; ++o) {
    is_result[o] = tile.result + o < plan.result.channels;
    bias[o] = arguments.bias != nullptr && is_result[o] ? device::to_accumulator(arguments.bias[channel + o]) : 0.0f;
#pragma unroll
    for (int c = 0; c < kSources; ++c) {
#pragma unroll
      for (int m = 0; m < kHeight; ++m) {
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          const bool exists = is_result[o] && c < plan.source.channels && m < plan.kernel[1] && k < plan.kernel[2];
          const int tap = m * plan.kernel[2] + k;
          const int64_t at = tile.group * plan.weight_group + (tile.result + o) * plan.weight_result +
                             c * plan.weight_source + (plan.flipped ? plan.kernel[1] * plan.kernel[2] - 1 - tap : tap);
          weights[o][c][m][k] = exists ? device::to_accumulator(arguments.weight[at]) : 0.0f;
        }
      }
    }
  }

  for (int64_t index = int64_t{tile.split} * kMarchThreads + threadIdx.x; index < plan.items;
       index += int64_t{plan.splits} * kMarchThreads) {
    const MarchItem item(plan, index);
    MarchWindows<T, kSources, kHeight, kWidth + kColumns - 1> windows(plan, arguments.source, tile, item);
    MarchPlanes<T, kResults> results(arguments.result, plan.result, item.image * plan.groups + tile.group, tile.result,
                                     item.position(plan.result));
    results.advance(-(kHeight - 1) * plan.result.extent[2]);
    float sums[kHeight][kResults][kColumns] = {};  // row modulo kHeight
    float not_finite = 0;                          // NaN once a sum is
    for (int step = 0; step < windows.steps; step += kSteps) {
      T window[kSteps][kSources][kWidth + kColumns - 1];
#pragma unroll
      for (int u = 0; u < kSteps; ++u) windows.load(plan, step + u, window[u]);
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        float row[kSources][kWidth + kColumns - 1];
        convert(window[u], row);
        const bool finishes = static_cast<unsigned>(step + u - (kHeight - 1)) < static_cast<unsigned>(item.rows);
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
                  float& sum = sums[(u - m + kHeight) % kHeight][o][i];
                  sum = fmaf(weights[o][c][m][k], row[c][k + i], sum);
                }
              }
            }
            float& done = sums[(u + 1) % kHeight][o][i];
            not_finite = fmaf(done, 0.0f, not_finite);
            if (finishes && is_result[o] && item.column + i < plan.result.extent[2]) {
              results.at[o][i] = device::from_accumulator<T>(done + bias[o]);
            }
            done = 0;
          }
        }
        results.advance(plan.result.extent[2]);
      }
    }
    if (not_finite != 0.0f) repair_strip(plan, arguments, plain, tile, item, kResults);
  }
}

}  // namespace halo::cuda::conv::small_groups
