// Depthwise convolution with any stride and dilation out of shared memory, phase by phase: positions whose distance is
// a multiple of the stride make a phase, and between the phases of x and y the convolution has stride 1.
//
// A tile of y is [depth, height, width] of y's positions. The box of x under it lies in shared memory by phases, each
// [depth, width, height]: box position c of an axis is element c / stride of phase c % stride. A position of y reads
// its own number plus a tap's offset, the same for the whole tile. A lane has a column and in it `Rows` neighbouring
// rows, which taps that are neighbours in a phase share: a run of n taps reads Rows + n - 1 elements for Rows * n
// products.
//
// backward_input is the same with y in the box, which has one phase, and a set of runs for each phase of x.
#pragma once

#include <cstdint>

#include "../../device/activation.cuh"
#include "../../device/fast_divide.h"
#include "../plain_sum.cuh"
#include "polyphase_box.cuh"

namespace halo::cuda::conv::depthwise {

inline constexpr int kPolyRows = 4;         ///< results of a thread, where y has as many rows
inline constexpr int kPolyRun = 3;          ///< taps of a run, at most
inline constexpr int kPolyThreads = 256;    ///< at most, of forward and backward_input
inline constexpr int kPolyMostStride = 64;  ///< of an axis

/// One axis. The box of a tile begins at source position `origin` + tile * `step`.
struct PolyAxis {
  int result;  ///< extent of y; of backward_input that of x
  int kernel, stride, dilation;
  int tile, reach;  ///< positions of a tile, and so many more that its taps read
  int origin, step;
  int first;  ///< backward_input: x position of phase 0 of tile 0
  FastDivide tiles, by_stride, by_kernel;
};

/// The taps of an axis. Those whose distance is a multiple of `classes` read, or for backward_input reach, the same
/// phase; in runs of neighbours.
struct PolyTaps {
  FastDivide classes;
  int least, longer;            ///< taps of a class; the first `longer` have one more
  int least_runs, longer_runs;  ///< of a class
  int runs;                     ///< of all
  int8_t of[kPolyMostStride];   ///< class of a phase, or -1: no tap reaches it

  struct Range {
    int start, count;
  };
  /// Runs of a class.
  __device__ Range of_class(int c) const {
    const bool is_longer = c < longer;
    return {c * least_runs + min(c, longer) * (longer_runs - least_runs), is_longer ? longer_runs : least_runs};
  }
  __device__ Range of_phase(int phase) const { return of[phase] < 0 ? Range{0, 0} : of_class(of[phase]); }

  struct Run {
    int of_class, first, step, count;  ///< taps first, first + step, ...
  };
  __device__ Run run(int index) const {
    const int before = longer * longer_runs;
    const bool is_longer = index < before;
    const int runs_of_class = is_longer ? longer_runs : least_runs, taps = is_longer ? least + 1 : least;
    const int rest = is_longer ? index : index - before;
    const int c = rest / runs_of_class + (is_longer ? 0 : longer), part = rest % runs_of_class;
    const int from = part * taps / runs_of_class, to = (part + 1) * taps / runs_of_class;
    const int step = static_cast<int>(classes.divisor);
    return {c, c + from * step, step, to - from};
  }
};

struct PolyGeometry {
  PolyAxis depth, height, width;
  PolyTaps depth_taps, height_taps, width_taps;  ///< runs along the height; one tap each along the others
  PolyBox box;
  int slots, groups;  ///< columns of a tile in groups of rows; groups of a depth
  FastDivide by_width, by_groups;
};

struct PolySlot {
  int depth, row, column;
};

template <int Rows>
__device__ __forceinline__ PolySlot poly_slot(const PolyGeometry& g, int slot) {
  uint32_t column, group;
  const uint32_t depth = g.by_groups.divide(g.by_width.divide(static_cast<uint32_t>(slot), column), group);
  return {static_cast<int>(depth), static_cast<int>(group) * Rows, static_cast<int>(column)};
}

__device__ __forceinline__ int box_element(const PolyBox& b, const PolySlot& slot) {
  return slot.depth * b.slice + slot.column * b.column + slot.row * b.pitch;
}

struct PolyTile {
  int depth, height, width;
};

/// Splits a tile's number; what is left is the plane.
__device__ __forceinline__ uint32_t poly_tile(const PolyGeometry& g, uint32_t index, PolyTile& tile) {
  uint32_t d, h, w;
  index = g.width.tiles.divide(index, w);
  index = g.height.tiles.divide(index, h);
  index = g.depth.tiles.divide(index, d);
  tile = {static_cast<int>(d), static_cast<int>(h), static_cast<int>(w)};
  return index;
}

/// The box of a tile.
template <class T>
__device__ __forceinline__ void load_box(const PolyGeometry& g, const PolyTile& tile, const T* source,
                                         PolyElement<T>* box) {
  load_box(g.box, g.depth.origin + tile.depth * g.depth.step, g.height.origin + tile.height * g.height.step,
           g.width.origin + tile.width * g.width.step, source, box);
}

/// Neighbouring taps of a phase.
template <class E>
struct alignas(16) PolyRun {
  int place;  ///< elements between a position's and the run's first, times 4, plus the number of taps
  E weight[kPolyRun];
};

template <int Taps, int Rows, class E>
__device__ __forceinline__ void add_run(const PolyRun<E>& run, const E* from, E (&sums)[Rows]) {
  E values[Rows + Taps - 1];
#pragma unroll
  for (int i = 0; i < Rows + Taps - 1; ++i) values[i] = from[i];
#pragma unroll
  for (int t = 0; t < Taps; ++t) {
#pragma unroll
    for (int r = 0; r < Rows; ++r) sums[r] = fma(values[r + t], run.weight[t], sums[r]);
  }
}

/// Adds the products of `count` runs to the results of a slot.
template <int Rows, class E>
__device__ __forceinline__ void add_runs(const PolyRun<E>* runs, int count, const E* at, E (&sums)[Rows]) {
#pragma unroll 2
  for (int i = 0; i < count; ++i) {
    const PolyRun<E> run = runs[i];
    const E* const from = at + (run.place >> 2);
    switch (run.place & 3) {
      case 1: add_run<1>(run, from, sums); break;
      case 2: add_run<2>(run, from, sums); break;
      default: add_run<3>(run, from, sums);
    }
  }
}

/// Where a position of y reads through a tap: so many elements behind its own.
__device__ __forceinline__ int poly_offset(const PolyGeometry& g, int kd, int kh, int kw) {
  const auto split = [](const PolyAxis& axis, int k, uint32_t& phase) {
    return static_cast<int>(axis.by_stride.divide(static_cast<uint32_t>(k * axis.dilation), phase));
  };
  uint32_t pd, ph, pw;
  const PolySlot at{split(g.depth, kd, pd), split(g.height, kh, ph), split(g.width, kw, pw)};
  const uint32_t phase = (pd * g.height.by_stride.divisor + ph) * g.width.by_stride.divisor + pw;
  return static_cast<int>(phase) * g.box.slab + box_element(g.box, at);
}

/// One run of a channel's taps: along the height, at one tap of the other axes.
struct PolyRunTaps {
  int depth, width;
  PolyTaps::Run height;
  /// Tap t of the run.
  __device__ __forceinline__ int tap(const PolyGeometry& g, int t) const {
    return (depth * g.height.kernel + height.first + t * height.step) * g.width.kernel + width;
  }
};

__device__ __forceinline__ PolyRunTaps poly_run(const PolyGeometry& g, int index) {
  uint32_t width;
  const auto row = static_cast<int>(g.width.by_kernel.divide(static_cast<uint32_t>(index), width));
  return {row / g.height_taps.runs, static_cast<int>(width), g.height_taps.run(row % g.height_taps.runs)};
}

template <class T>
struct PolyParams {
  PolyGeometry geometry;
  PlainSumOf<T> plain;  ///< of the same
  int taps = 0, runs = 0;
  FastDivide channels, multiplier;  ///< of the result; results of a source channel
  const T *source = nullptr, *weight = nullptr, *bias = nullptr;
  T* result = nullptr;
  Activation activation;
  // backward_input
  int box_elements = 0, rows_pitch = 0;
  FastDivide by_tile_height;

  PolyParams(const PolyGeometry& geometry, const PlainSumOf<T>& plain) : geometry(geometry), plain(plain) {}
};

/// All results of a tile as plain sums: padding, which is multiplied as zeros, makes NaN of infinite weights.
template <class T>
__device__ __noinline__ void plain_tile(const PolyParams<T>& p, uint32_t plane, const PolySlot& first,
                                        const PolySlot& size) {
  const PolyGeometry& g = p.geometry;
  uint32_t channel;
  const uint32_t image = p.channels.divide(plane, channel);
  T* const result = p.result + int64_t{plane} * g.depth.result * g.height.result * g.width.result;
  for (int i = static_cast<int>(threadIdx.x); i < size.depth * size.row * size.column;
       i += static_cast<int>(blockDim.x)) {
    const int row = i / size.column, w = first.column + i % size.column;
    const int h = first.row + row % size.row, d = first.depth + row / size.row;
    if (d < 0 || h < 0 || w < 0 || d >= g.depth.result || h >= g.height.result || w >= g.width.result) continue;
    const int position = (d * g.height.result + h) * g.width.result + w;
    PolyElement<T> sum = p.plain.at(image, channel, position);
    if (p.bias != nullptr) sum += device::to_accumulator(p.bias[channel]);
    result[position] = device::from_accumulator<T>(device::apply_activation(p.activation, sum));
  }
}

template <class T, int Rows>
__global__ void __launch_bounds__(kPolyThreads, 5) depthwise_polyphase(const __grid_constant__ PolyParams<T> p) {
  using E = PolyElement<T>;
  extern __shared__ double2 shared[];
  const PolyGeometry& g = p.geometry;
  auto* const runs = reinterpret_cast<PolyRun<E>*>(shared);
  E* const box = reinterpret_cast<E*>(runs + p.runs);
  PolyTile tile;
  const uint32_t plane = poly_tile(g, blockIdx.x, tile);
  uint32_t channel;
  p.channels.divide(plane, channel);
  const int64_t source_slice = int64_t{g.box.depth} * g.box.height * g.box.width;
  load_box(g, tile, p.source + p.multiplier.divide(plane) * source_slice, box);
  const T* const weight = p.weight + int64_t{channel} * p.taps;
  for (int i = static_cast<int>(threadIdx.x); i < p.runs; i += static_cast<int>(blockDim.x)) {
    const PolyRunTaps run = poly_run(g, i);
    runs[i].place = poly_offset(g, run.depth, run.height.first, run.width) * 4 + run.height.count;
    for (int t = 0; t < run.height.count; ++t) runs[i].weight[t] = device::to_accumulator(weight[run.tap(g, t)]);
  }
  const E bias = p.bias != nullptr ? device::to_accumulator(p.bias[channel]) : E(0);
  const int first_d = tile.depth * g.depth.tile, first_h = tile.height * g.height.tile;
  const int column = tile.width * g.width.tile;
  T* const result = p.result + int64_t{plane} * g.depth.result * g.height.result * g.width.result;
  bool finite = true;
  device::copy_async_wait_all();
  __syncthreads();
  for (int s = static_cast<int>(threadIdx.x); s < g.slots; s += static_cast<int>(blockDim.x)) {
    const PolySlot slot = poly_slot<Rows>(g, s);
    E sums[Rows];
#pragma unroll
    for (int r = 0; r < Rows; ++r) sums[r] = bias;
    add_runs<Rows>(runs, p.runs, box + box_element(g.box, slot), sums);
    const int d = first_d + slot.depth, h = first_h + slot.row, w = column + slot.column;
    if (d >= g.depth.result || w >= g.width.result) continue;
    const int rows = min(g.height.tile - slot.row, g.height.result - h);
#pragma unroll
    for (int r = 0; r < Rows; ++r) finite = finite && (r >= rows || isfinite(sums[r]));
    if (p.activation.kind != ActivationKind::None) {
#pragma unroll
      for (int r = 0; r < Rows; ++r) sums[r] = device::call_activation(p.activation, sums[r]);
    }
    T* const to = result + (d * g.height.result + h) * g.width.result + w;
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      if (r < rows) to[r * g.width.result] = device::from_accumulator<T>(sums[r]);
    }
  }
  if (__syncthreads_and(finite)) return;
  plain_tile(p, plane, {first_d, first_h, column}, {g.depth.tile, g.height.tile, g.width.tile});
}

/// x from y. Position j of phase f of x is x[stride * j + f - padding] and sees y[j - (k * dilation - f) / stride]
/// through the taps k of its phase. All phases of a row of x leave together.
template <class T, int Rows>
__global__ void __launch_bounds__(kPolyThreads, 5) depthwise_polyphase_input(const __grid_constant__ PolyParams<T> p) {
  using E = PolyElement<T>;
  extern __shared__ double2 shared[];
  const PolyGeometry& g = p.geometry;
  auto* const runs = reinterpret_cast<PolyRun<E>*>(shared);
  E* const box = reinterpret_cast<E*>(runs + p.runs);
  PolyTile tile;
  const uint32_t plane = poly_tile(g, blockIdx.x, tile);
  uint32_t channel;
  p.channels.divide(plane, channel);
  const int planes = g.box.planes;
  const int64_t source_slice = int64_t{g.box.depth} * g.box.height * g.box.width;
  load_box(g, tile, p.source + int64_t{plane} * planes * source_slice, box);
  const int slice_runs = g.height_taps.runs * g.width.kernel;
  for (int i = static_cast<int>(threadIdx.x); i < p.runs; i += static_cast<int>(blockDim.x)) {
    // Of [plane, depth, height, width] to places in the order [depth's class, height's, width's, plane, ...].
    uint32_t kd, kw;
    const auto row = static_cast<int>(g.width.by_kernel.divide(static_cast<uint32_t>(i), kw));
    const auto of_plane =
        static_cast<int>(g.depth.by_kernel.divide(static_cast<uint32_t>(row / g.height_taps.runs), kd));
    const int run_index = row % g.height_taps.runs;
    const auto run = g.height_taps.run(run_index);
    uint32_t d, w;
    const auto index_d = static_cast<int>(g.depth_taps.classes.divide(kd, d));
    const auto index_w = static_cast<int>(g.width_taps.classes.divide(kw, w));
    const auto of_d = g.depth_taps.of_class(static_cast<int>(d)), of_h = g.height_taps.of_class(run.of_class);
    const auto of_w = g.width_taps.of_class(static_cast<int>(w));
    const int before = of_d.start * slice_runs + of_d.count * (of_h.start * g.width.kernel + of_h.count * of_w.start);
    const int index = planes * before +
                      ((of_plane * of_d.count + index_d) * of_h.count + run_index - of_h.start) * of_w.count + index_w;
    const auto ahead = [](const PolyAxis& axis, int k) {
      return axis.reach - static_cast<int>(axis.by_stride.divide(static_cast<uint32_t>(k * axis.dilation)));
    };
    const int last = run.first + (run.count - 1) * run.step;  // reads first
    const PolySlot at{ahead(g.depth, static_cast<int>(kd)), ahead(g.height, last),
                      ahead(g.width, static_cast<int>(kw))};
    runs[index].place = (of_plane * g.box.slab + box_element(g.box, at)) * 4 + run.count;
    const T* const weight = p.weight + (int64_t{channel} * planes + of_plane) * p.taps;
    for (int t = 0; t < run.count; ++t) {
      const int tap =
          (static_cast<int>(kd) * g.height.kernel + last - t * run.step) * g.width.kernel + static_cast<int>(kw);
      runs[index].weight[t] = device::to_accumulator(weight[tap]);
    }
  }
  T* const result = p.result + int64_t{plane} * g.depth.result * g.height.result * g.width.result;
  bool finite = true;
  device::copy_async_wait_all();
  __syncthreads();
  E* const rows = box + p.box_elements;  // of x, one phase of its depth and height
  const int row_length = g.width.tile * g.width.stride, column = g.width.first + tile.width * row_length;
  for (int fd = 0; fd < g.depth.stride; ++fd) {
    const auto of_d = g.depth_taps.of_phase(fd);
    for (int fh = 0; fh < g.height.stride; ++fh) {
      const auto of_h = g.height_taps.of_phase(fh);
      const PolyRun<E>* const row_runs =
          runs + planes * (of_d.start * slice_runs + of_d.count * of_h.start * g.width.kernel);
      const int runs_of_tap = planes * of_d.count * of_h.count;
      for (int s = static_cast<int>(threadIdx.x); s < g.slots; s += static_cast<int>(blockDim.x)) {
        const PolySlot slot = poly_slot<Rows>(g, s);
        const E* const at = box + box_element(g.box, slot);
        E* const to = rows + (slot.depth * g.groups * Rows + slot.row) * g.width.tile + slot.column;
        for (int fw = 0; fw < g.width.stride; ++fw) {
          const auto of_w = g.width_taps.of_phase(fw);
          E sums[Rows] = {};
          add_runs<Rows>(row_runs + runs_of_tap * of_w.start, runs_of_tap * of_w.count, at, sums);
#pragma unroll
          for (int r = 0; r < Rows; ++r) to[fw * p.rows_pitch + r * g.width.tile] = sums[r];
        }
      }
      __syncthreads();
      const auto row_at = [&](int row) {
        uint32_t at_h;
        const auto at_d = static_cast<int>(p.by_tile_height.divide(static_cast<uint32_t>(row), at_h));
        const int d = g.depth.first + (tile.depth * g.depth.tile + at_d) * g.depth.stride + fd;
        const int h = g.height.first + (tile.height * g.height.tile + static_cast<int>(at_h)) * g.height.stride + fh;
        const bool exists = static_cast<unsigned>(d) < static_cast<unsigned>(g.depth.result) &&
                            static_cast<unsigned>(h) < static_cast<unsigned>(g.height.result);
        return PolyPlace{exists ? (d * g.height.result + h) * g.width.result + column : kOutside,
                         (at_d * g.groups * Rows + static_cast<int>(at_h)) * g.width.tile};
      };
      const auto column_at = [&](int c) {
        uint32_t fw;
        const auto at = static_cast<int>(g.width.by_stride.divide(static_cast<uint32_t>(c), fw));
        const bool exists = static_cast<unsigned>(column + c) < static_cast<unsigned>(g.width.result);
        return PolyPlace{exists ? c : kOutside, static_cast<int>(fw) * p.rows_pitch + at};
      };
      with_lanes(row_length, [&](auto lanes) {
        constexpr int kLanes = decltype(lanes)::value;
        for_each_piece<kLanes>(
            g.depth.tile * g.height.tile, row_length, row_at, column_at,
            [&](const PolyPlace& row, int c, const int(&places)[kPolyColumns], uint32_t exist, uint32_t inside) {
              if (row.tensor == kOutside) return;
              exist &= inside;
              T* const to = result + row.tensor + c;
              const E* const from = rows + row.shared;
              E values[kPolyColumns];
#pragma unroll
              for (int i = 0; i < kPolyColumns; ++i) {
                if ((exist >> i & 1) != 0) values[i] = from[places[i]];
              }
#pragma unroll
              for (int i = 0; i < kPolyColumns; ++i) {
                if ((exist >> i & 1) == 0) continue;
                finite = finite && isfinite(values[i]);
                to[i * kLanes] = device::from_accumulator<T>(values[i]);
              }
            });
      });
      __syncthreads();
    }
  }
  if (__syncthreads_and(finite)) return;
  plain_tile(p, plane,
             {g.depth.first + tile.depth * g.depth.tile * g.depth.stride,
              g.height.first + tile.height * g.height.tile * g.height.stride, column},
             {g.depth.tile * g.depth.stride, g.height.tile * g.height.stride, row_length});
}

}  // namespace halo::cuda::conv::depthwise
