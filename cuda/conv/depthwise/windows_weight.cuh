// Weight gradients of depthwise convolution of many taps: neighbouring taps of a row slide along the rows of x.
//
// A block has one channel of y, a set of runs of kTapRun neighbouring taps and a share of the tiles of all images. Rows
// of y and the rows of x under them lie in shared memory (line_box.cuh). A warp has one run, a lane a line: for every
// four results it reads four more elements of x and four gradients, 16 bytes at once, and makes 4 * kTapRun products.
#pragma once

#include "../ordered_sum.cuh"
#include "line_box.cuh"

namespace halo::cuda::conv::depthwise {

inline constexpr int kTapRun = 8;
inline constexpr int kWeightWarps = 8;  ///< of a block, at most

struct WindowsWeightGeometry {
  LineBox x, y;  ///< planes: images
  int tile[3], padding[3], dilation[3], kernel[3];
  int images, channels, multiplier;
  int row_runs, runs, warp_runs;             ///< runs of a row of taps, of all, and of a block
  int segment, segments;                     ///< columns of y that a lane walks, and how many of these a line has
  FastDivide by_lines, by_height, by_depth;  ///< lines of y of a tile
  FastDivide tiles_w, tiles_h, tiles_d, sets, splits;
  uint32_t tasks;  ///< tiles of a channel, of all images
  int x_elements;
};

template <class T>
struct WindowsWeightParams {
  WindowsWeightGeometry geometry;
  const T *x, *y;
  double* partials;  ///< [channel, tap, split]
};

/// Products of four gradients. `v` is a ring of x's elements; that of the first gradient and tap is number `First`.
template <int First, class E>
__device__ __forceinline__ void add_gradient_quad(const E* x, const E* y, E (&v)[kTapRun + 4], E (&sums)[kTapRun]) {
  constexpr int kRing = kTapRun + 4;
  const auto next = *reinterpret_cast<const WindowQuad<E>*>(x);
  const auto gradients = *reinterpret_cast<const WindowQuad<E>*>(y);
#pragma unroll
  for (int i = 0; i < 4; ++i) v[(First + kTapRun + i) % kRing] = next.at[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int t = 0; t < kTapRun; ++t) sums[t] = fma(v[(First + i + t) % kRing], gradients.at[i], sums[t]);
  }
}

/// Adds the products of `quads` quads of a line.
template <class E>
__device__ __forceinline__ void add_gradient_line(const E* x, const E* y, int quads, E (&sums)[kTapRun]) {
  E v[kTapRun + 4];
#pragma unroll
  for (int i = 0; i < kTapRun; i += 4) {
    const auto first = *reinterpret_cast<const WindowQuad<E>*>(x + i);
#pragma unroll
    for (int j = 0; j < 4; ++j) v[i + j] = first.at[j];
  }
  x += kTapRun;
  for (;;) {
    add_gradient_quad<0>(x, y, v, sums);
    if (quads == 1) return;
    add_gradient_quad<4>(x + 4, y + 4, v, sums);
    if (quads == 2) return;
    add_gradient_quad<8>(x + 8, y + 8, v, sums);
    if (quads == 3) return;
    quads -= 3;
    x += 12;
    y += 12;
  }
}

template <class T>
__global__ void __launch_bounds__(kWeightWarps * 32, 3)
    depthwise_windows_weight(const __grid_constant__ WindowsWeightParams<T> p) {
  using E = device::Accumulator<T>;
  extern __shared__ double2 shared[];
  __shared__ double warp_sums[kWeightWarps][kTapRun];
  const WindowsWeightGeometry& g = p.geometry;
  E* const x_box = reinterpret_cast<E*>(shared);
  E* const y_box = x_box + g.x_elements;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int shares = static_cast<int>(blockDim.x) / 32 / g.warp_runs, share = warp / g.warp_runs;
  uint32_t split, set;
  const int64_t channel = g.sets.divide(g.splits.divide(blockIdx.x, split), set);
  const int run = static_cast<int>(set) * g.warp_runs + warp % g.warp_runs;
  const int row = run / g.row_runs, first_tap = run % g.row_runs * kTapRun;
  const int kd = row / g.kernel[1], kh = row % g.kernel[1];
  const int of_run = (kd * g.dilation[0] * g.x.extent[1] + kh * g.dilation[1]) * g.x.pitch + first_tap;
  const int slots = g.y.lines() * g.segments;
  double totals[kTapRun] = {};
  for (uint32_t task = split; task < g.tasks; task += g.splits.divisor) {
    uint32_t d, h, w;
    const auto first_image =
        static_cast<int>(g.tiles_d.divide(g.tiles_h.divide(g.tiles_w.divide(task, w), h), d)) * g.y.planes;
    const int at_d = static_cast<int>(d) * g.tile[0], at_h = static_cast<int>(h) * g.tile[1],
              at_w = static_cast<int>(w) * g.tile[2];
    const int images = min(g.y.planes, g.images - first_image);
    __syncthreads();
    load_lines(g.x, at_d - g.padding[0], at_h - g.padding[1], at_w - g.padding[2], images, p.x, x_box, [&](int image) {
      return int64_t{first_image + image} * (g.channels / g.multiplier) + channel / g.multiplier;
    });
    load_lines(g.y, at_d, at_h, at_w, images, p.y, y_box,
               [&](int image) { return int64_t{first_image + image} * g.channels + channel; });
    device::copy_async_wait_all();
    __syncthreads();
    E sums[kTapRun] = {};
    if (run < g.runs) {
      for (int slot = share * 32 + lane; slot < slots; slot += shares * 32) {
        uint32_t line, of_height, of_depth;
        const auto segment = static_cast<int>(g.by_lines.divide(static_cast<uint32_t>(slot), line)) * g.segment;
        const uint32_t image = g.by_depth.divide(g.by_height.divide(line, of_height), of_depth);
        const int x_line = (static_cast<int>(image) * g.x.extent[0] + static_cast<int>(of_depth)) * g.x.extent[1] +
                           static_cast<int>(of_height);
        add_gradient_line(x_box + x_line * g.x.pitch + of_run + segment,
                          y_box + static_cast<int>(line) * g.y.pitch + segment, g.segment / 4, sums);
      }
    }
#pragma unroll
    for (int t = 0; t < kTapRun; ++t) totals[t] += static_cast<double>(sums[t]);
  }
#pragma unroll
  for (int t = 0; t < kTapRun; ++t) {
    const double sum = warp_sum(totals[t]);
    if (lane == 0) warp_sums[warp][t] = sum;
  }
  __syncthreads();
  for (int i = thread; i < g.warp_runs * kTapRun; i += static_cast<int>(blockDim.x)) {
    const int of_warp = i / kTapRun, t = i % kTapRun, of_set = static_cast<int>(set) * g.warp_runs + of_warp;
    const int column = of_set % g.row_runs * kTapRun + t;
    if (of_set >= g.runs || column >= g.kernel[2]) continue;
    double sum = 0;
    for (int s = 0; s < shares; ++s) sum += warp_sums[s * g.warp_runs + of_warp][t];
    const int taps = g.kernel[0] * g.kernel[1] * g.kernel[2], tap = of_set / g.row_runs * g.kernel[2] + column;
    p.partials[(channel * taps + tap) * g.splits.divisor + split] = sum;
  }
}

}  // namespace halo::cuda::conv::depthwise
