// Forward and backward_input of depthwise convolutions with unit stride and dilation. depthwise_geometry.h says how
// threads are laid out; depthwise.cu states the limits.
#pragma once

#include <cstdint>

#include "../device/activation.cuh"
#include "../device/vector.cuh"
#include "depthwise.h"

namespace halo::cuda::conv::depthwise {

/// Where a thread stands.
struct MarchTask {
  uint32_t plane;  ///< what is left of the index above the fold
  uint32_t fold;
  int march;  ///< first result row
  int inner;
  int column;  ///< first result column
  int rows;    ///< result rows to do
};

__device__ __forceinline__ MarchTask march_task(const MarchGeometry& g, uint32_t index, int vector) {
  uint32_t column, inner, strip, fold;
  index = g.columns.divide(index, column);
  index = g.inner.divide(index, inner);
  index = g.strips.divide(index, strip);
  index = g.fold.divide(index, fold);
  const int march = static_cast<int>(strip) * g.strip;
  return {index,
          fold,
          march,
          static_cast<int>(inner),
          static_cast<int>(column) * vector,
          min(g.strip, g.result.march - march)};
}

/// Source rows a thread has in flight: enough for the memory latency, few enough for the registers.
template <int March, int Inner, int Width>
inline constexpr int kMarchBatch = Inner > 1                 ? 1
                                   : March == 1              ? 4
                                   : March <= 3 && Width < 5 ? 3
                                                             : 2;

/// The source rows of one step.
template <class T, int N, int Inner>
struct MarchReader {
  device::RowWindow<T, N> windows[Inner];

  /// `row` is the address of the window of inner tap 0; it and the taps after it are rows (march, inner + tap).
  template <bool Guarded>
  __device__ __forceinline__ void load(const MarchGeometry& g, const T* row, int march, int inner, int first,
                                       bool wanted, device::Extent<T> extent) {
    const bool march_exists =
        wanted && (g.column_step != 0 || static_cast<unsigned>(march) < static_cast<unsigned>(g.source.march));
#pragma unroll
    for (int i = 0; i < Inner; ++i) {
      const bool exists = march_exists && static_cast<unsigned>(inner + i) < static_cast<unsigned>(g.source.inner);
      windows[i].template load<Guarded>(row + i * g.source.inner_pitch, first, g.source.width, exists, extent);
    }
  }
};

template <class T, int Taps>
__device__ __forceinline__ void load_taps(const T* weight, bool flip, float (&taps)[Taps]) {
#pragma unroll
  for (int t = 0; t < Taps; ++t) taps[t] = device::to_accumulator(weight[flip ? Taps - 1 - t : t]);
}

/// A thread's march. `source` is the address of its window in step 0.
template <class T, int March, int Inner, int Width, bool Guarded>
__device__ __forceinline__ void march(const MarchParams<T>& p, const MarchTask& task, const T* source,
                                      const float (&taps)[March * Inner * Width], float bias,
                                      device::RowStore<T, March == 1 && Inner == 1>& store) {
  constexpr int V = device::kVectorWidth<T>;
  constexpr int N = V + Width - 1;
  constexpr int kBatch = Guarded ? 1 : kMarchBatch<March, Inner, Width>;
  const MarchGeometry& g = p.geometry;
  const int steps = g.strip + March - 1;
  const int first0 = task.column - g.pad_width + task.march * g.column_step;  // case 1: the march is along the row

  float sums[March][V];  // sums[j] belongs to result row step - (March - 1) + j
#pragma unroll
  for (int m = 0; m < March; ++m) {
#pragma unroll
    for (int v = 0; v < V; ++v) sums[m][v] = bias;
  }
  int64_t offset = 0;  // of the result row
  for (int step0 = 0; step0 < steps; step0 += kBatch) {
    MarchReader<T, N, Inner> reader[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int step = step0 + u;
      reader[u].template load<Guarded>(g, source + u * g.source.march_pitch, task.march - g.pad_march + step,
                                       task.inner - g.pad_inner, first0 + step * g.column_step, step < steps, p.extent);
    }
    source += kBatch * g.source.march_pitch;
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int step = step0 + u;
#pragma unroll
      for (int i = 0; i < Inner; ++i) {
        float window[N];
        reader[u].windows[i].unpack(first0 + step * g.column_step, g.source.width, p.rows, window);
#pragma unroll
        for (int m = 0; m < March; ++m) {
#pragma unroll
          for (int k = 0; k < Width; ++k) {
#pragma unroll
            for (int v = 0; v < V; ++v) {
              sums[March - 1 - m][v] = fmaf(taps[(m * Inner + i) * Width + k], window[v + k], sums[March - 1 - m][v]);
            }
          }
        }
      }
      if (step >= March - 1 && step < steps) {
        float out[V];
#pragma unroll
        for (int v = 0; v < V; ++v) out[v] = sums[0][v];
        if (p.activation.kind != ActivationKind::None) {
#pragma unroll
          for (int v = 0; v < V; ++v) out[v] = device::apply_activation(p.activation, out[v]);
        }
        const int row = step - (March - 1);
        store.write(out, March == 1 && Inner == 1 ? row * g.column_step : row, offset);
        offset += g.result.march_pitch;
      }
#pragma unroll
      for (int m = 0; m < March; ++m) {
#pragma unroll
        for (int v = 0; v < V; ++v) sums[m][v] = m + 1 < March ? sums[m + 1 < March ? m + 1 : m][v] : bias;
      }
    }
  }
}

/// Blocks a multiprocessor that the registers must leave room for.
template <int Taps>
inline constexpr int kMarchBlocks = Taps > 25  ? 3
                                    : Taps > 9 ? 4
                                               : 5;

template <class T, int March, int Inner, int Width>
__global__ void __launch_bounds__(kMarchThreads, kMarchBlocks<March * Inner * Width>)
    depthwise_march(const __grid_constant__ MarchParams<T> p) {
  constexpr int V = device::kVectorWidth<T>;
  using Store = device::RowStore<T, March == 1 && Inner == 1>;
  __shared__ typename Store::Shared shared[kMarchThreads / 32];

  const MarchGeometry& g = p.geometry;
  const uint32_t index = blockIdx.x * uint32_t{kMarchThreads} + threadIdx.x;
  const bool active = index < p.tasks;  // idle lanes stay: the warp stores together
  MarchTask task = march_task(g, active ? index : 0, V);
  if (!active) task.rows = 0;
  uint32_t channel;
  p.channels.divide(task.plane, channel);
  const int64_t source_plane = p.multiplier.divide(task.plane);

  const T* source = p.source + (source_plane * g.fold.divisor + task.fold) * g.source.slice +
                    (task.march - g.pad_march) * g.source.march_pitch +
                    (task.inner - g.pad_inner) * g.source.inner_pitch + task.column - g.pad_width;
  T* result = p.result + (int64_t{task.plane} * g.fold.divisor + task.fold) * g.result.slice +
              task.march * g.result.march_pitch + task.inner * g.result.inner_pitch + task.column;
  const T* last = source + (g.strip + March - 2) * g.source.march_pitch + (Inner - 1) * g.source.inner_pitch;
  const bool guarded = source - V < p.extent.begin || last + V + Width - 1 + V > p.extent.end;

  float taps[March * Inner * Width];
  load_taps(p.weight + int64_t{channel} * (March * Inner * Width), p.flip, taps);
  const float bias = p.bias ? device::to_accumulator(p.bias[channel]) : 0.0f;
  Store store(shared[threadIdx.x / 32], {result, g.result.width - task.column - task.march * g.column_step, task.rows},
              p.store);
  if (__any_sync(0xffffffffu, guarded)) {
    march<T, March, Inner, Width, true>(p, task, source, taps, bias, store);
  } else {
    march<T, March, Inner, Width, false>(p, task, source, taps, bias, store);
  }
}

}  // namespace halo::cuda::conv::depthwise
