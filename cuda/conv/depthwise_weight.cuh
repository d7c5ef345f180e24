// backward_weight of depthwise convolutions with unit stride and dilation.
//
// A block owns one channel and a share of its positions. A thread marches as in depthwise_march.cuh, but keeps the last
// rows of the upstream gradient instead of partial results, and every tap's sum in a register. Threads sum few enough
// terms in float32 that the error stays below the bound; the rest of the way is float64 in a fixed order.
#pragma once

#include "depthwise_march.cuh"
#include "ordered_sum.cuh"

namespace halo::cuda::conv::depthwise {

/// Where one thread's rows of the two operands start, and which of their columns they read.
template <class T>
struct WeightRows {
  const T* x;
  const T* y;
  int x_first, y_first;
};

/// Adds one task's products to the sums of all taps.
template <class T, int March, int Inner, int Width, bool Guarded>
__device__ __forceinline__ void march_weight(const MarchWeightParams<T>& p, const MarchTask& task, WeightRows<T> rows,
                                             float (&taps)[March * Inner * Width]) {
  constexpr int V = device::kVectorWidth<T>;
  constexpr int N = V + Width - 1;
  constexpr int kBatch = Guarded || Inner > 1 ? 1 : 2;  // two rows of two operands
  const MarchGeometry& g = p.geometry;
  const int steps = g.strip + March - 1;

  float gradients[March][V] = {};  // gradients[m] is row step - m
  for (int step0 = 0; step0 < steps; step0 += kBatch) {
    MarchReader<T, N, Inner> x_rows[kBatch];
    device::RowWindow<T, V> y_rows[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int step = step0 + u;
      const int shift = step * g.column_step;
      x_rows[u].template load<Guarded>(g, rows.x + u * g.source.march_pitch, task.march - g.pad_march + step,
                                       task.inner - g.pad_inner, rows.x_first + shift, step < steps, p.x_extent);
      y_rows[u].template load<Guarded>(rows.y + u * g.result.march_pitch, rows.y_first + shift, g.result.width,
                                       step < task.rows, p.y_extent);
    }
    rows.x += kBatch * g.source.march_pitch;
    rows.y += kBatch * g.result.march_pitch;
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int shift = (step0 + u) * g.column_step;
#pragma unroll
      for (int m = March - 1; m > 0; --m) {
#pragma unroll
        for (int v = 0; v < V; ++v) gradients[m][v] = gradients[m - 1][v];
      }
      y_rows[u].unpack(rows.y_first + shift, g.result.width, p.y_rows, gradients[0]);
#pragma unroll
      for (int i = 0; i < Inner; ++i) {
        float window[N];
        x_rows[u].windows[i].unpack(rows.x_first + shift, g.source.width, p.x_rows, window);
#pragma unroll
        for (int m = 0; m < March; ++m) {
#pragma unroll
          for (int v = 0; v < V; ++v) {
#pragma unroll
            for (int k = 0; k < Width; ++k) {
              float& sum = taps[(m * Inner + i) * Width + k];
              sum = fmaf(gradients[m][v], window[v + k], sum);
            }
          }
        }
      }
    }
  }
}

/// Blocks a multiprocessor that the registers must leave room for.
template <int Taps>
inline constexpr int kWeightBlocks = Taps > 30  ? 3
                                     : Taps > 9 ? 4
                                                : 5;

template <class T, int March, int Inner, int Width>
__global__ void __launch_bounds__(kMarchThreads, kWeightBlocks<March * Inner * Width>)
    depthwise_weight(const __grid_constant__ MarchWeightParams<T> p) {
  constexpr int V = device::kVectorWidth<T>;
  constexpr int kTaps = March * Inner * Width;
  constexpr int kWarps = kMarchThreads / 32;
  __shared__ float warp_sums[kWarps][kTaps];

  const MarchGeometry& g = p.geometry;
  const int64_t channel = blockIdx.x / static_cast<unsigned>(p.splits);
  const uint32_t split = blockIdx.x % static_cast<unsigned>(p.splits);
  const uint32_t end = min((split + 1) * p.share, p.tasks);
  const int64_t x_channels = p.channels / p.multiplier;
  const int64_t x_channel = channel / p.multiplier;

  float taps[kTaps] = {};
  for (uint32_t index = split * p.share + threadIdx.x; index < end; index += kMarchThreads) {
    const MarchTask task = march_task(g, index, V);
    WeightRows<T> rows;
    rows.x = p.x + ((task.plane * x_channels + x_channel) * g.fold.divisor + task.fold) * g.source.slice +
             (task.march - g.pad_march) * g.source.march_pitch + (task.inner - g.pad_inner) * g.source.inner_pitch +
             task.column - g.pad_width;
    rows.y = p.y + ((task.plane * p.channels + channel) * g.fold.divisor + task.fold) * g.result.slice +
             task.march * g.result.march_pitch + task.inner * g.result.inner_pitch + task.column;
    rows.y_first = task.column + task.march * g.column_step;
    rows.x_first = rows.y_first - g.pad_width;
    const T* x_last = rows.x + (g.strip + March - 2) * g.source.march_pitch + (Inner - 1) * g.source.inner_pitch;
    const T* y_last = rows.y + (g.strip + March - 2) * g.result.march_pitch;
    const bool guarded = rows.x - V < p.x_extent.begin || x_last + V + Width - 1 + V > p.x_extent.end ||
                         rows.y - V < p.y_extent.begin || y_last + V + V > p.y_extent.end;
    if (guarded) {
      march_weight<T, March, Inner, Width, true>(p, task, rows, taps);
    } else {
      march_weight<T, March, Inner, Width, false>(p, task, rows, taps);
    }
  }

#pragma unroll
  for (int t = 0; t < kTaps; ++t) {
    const float sum = warp_sum(taps[t]);
    if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32][t] = sum;
  }
  __syncthreads();
  for (int t = static_cast<int>(threadIdx.x); t < kTaps; t += kMarchThreads) {
    double sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += warp_sums[warp][t];
    p.partials[(channel * kTaps + t) * p.splits + split] = sum;
  }
}

}  // namespace halo::cuda::conv::depthwise
