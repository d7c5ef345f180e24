// Forward and backward_input of depthwise convolutions of half types, as products with bands of taps.
//
// A row of results is a row of the source times a band matrix: 16 neighbours of the source, times B[k][n] = tap k - n,
// give the products of one row of taps for 8 neighbouring results. A warp has 16 such groups, 128 results, a product of
// 16 x 16 by 16 x 8, and marches down the rows as march.cuh does: one load of a source row, a product for
// each row of taps. Half-precision products are exact, sums float32.
//
// The zeros of the band multiply what lies beside a window: an infinity there makes a NaN that plain sums do not have.
// A result that is not finite is therefore computed again from the operands.
#pragma once

#include "../../device/activation.cuh"
#include "../../device/mma.cuh"
#include "../../launch.h"
#include "depthwise.h"
#include "tile.cuh"

namespace halo::cuda::conv::depthwise {

/// The share of this lane in the bands of a channel: rows k = 2t, 2t + 1, and 8 further, of column n. `shift`: elements
/// that lie before the first that a window reads.
template <class T, int March>
__device__ __forceinline__ void load_bands(const T* weight, int width, bool flip, int shift,
                                           uint32_t (&bands)[March][2]) {
  const int lane = static_cast<int>(threadIdx.x % 32), n = lane / 4, k = lane % 4 * 2;
#pragma unroll
  for (int m = 0; m < March; ++m) {
    const auto tap = [&](int at) {
      const int index = m * width + at;
      return at >= 0 && at < width ? uint32_t{weight[flip ? March * width - 1 - index : index].bits} : 0u;
    };
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = k + 8 * half - n - shift;
      bands[m][half] = tap(at) | tap(at + 1) << 16;
    }
  }
}

/// Groups of a source row: `at` is the address of this lane's first two elements. kEven: it is aligned to both.
template <bool kEven>
__device__ __forceinline__ void load_groups(const unsigned char* at, uint32_t (&a)[4]) {
  constexpr int kOffsets[4] = {0, 128, 16, 144};  // of groups g and g + 8, then 8 elements further
  const auto word = [](const unsigned char* from) { return *reinterpret_cast<const uint32_t*>(from); };
  if (kEven || reinterpret_cast<uintptr_t>(at) % 4 == 0) {  // the same in all lanes
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = word(at + kOffsets[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = __byte_perm(word(at + kOffsets[i] - 2), word(at + kOffsets[i] + 2), 0x5432);
  }
}

/// The results of a lane again, each as a plain float32 chain: `rows` from `row` on, the columns `column`, + 1, + 64
/// and
/// + 65 of them that exist.
template <class T, int March>
__device__ __noinline__ void plain_results(const BandParams<T>& p, int64_t plane, const T* weight, float bias, int row,
                                           int rows, int column, int left) {
  const MarchGeometry& g = p.geometry.march;
  uint32_t fold;
  const uint32_t image = g.fold.divide(static_cast<uint32_t>(plane), fold);
  const T* const source = p.source + (int64_t{p.multiplier.divide(image)} * g.fold.divisor + fold) * g.source.slice;
  for (int i = 0; i < 4 * rows; ++i) {
    const int behind = i / 2 % 2 * 64 + i % 2, to_row = row + i / 4, to = column + behind;
    if (behind >= left) continue;
    float sum = bias;
    for (int t = 0; t < March * p.geometry.width; ++t) {
      const int from_row = to_row + t / p.geometry.width - g.pad_march, from = to + t % p.geometry.width - g.pad_width;
      if (from_row < 0 || from_row >= g.source.rows.outer || from < 0 || from >= g.source.rows.width) continue;
      sum = fmaf(device::to_accumulator(weight[p.flip ? March * p.geometry.width - 1 - t : t]),
                 device::to_accumulator(source[from_row * g.source.rows.outer_pitch + from]), sum);
    }
    p.result[plane * g.result.slice + to_row * g.result.rows.outer_pitch + to] =
        device::from_accumulator<T>(device::apply_activation(p.activation, sum));
  }
}

/// Stores a warp's results of a row: columns 0, 1, 64, 65 from the lane's first on, of which `left` exist. The warp's
/// lanes have neighbouring pairs. Odd: `to`, the lane's first, is not aligned to two elements; then words begin at
/// every second result and the next lane has their other half. Unless Mixed, `left` is even.
template <RowStart Start, class T>
__device__ __forceinline__ void store_row(T* to, const float (&values)[4], int left) {
  const auto store_word = [](T* at, float low, float high) {
    const float pair[] = {low, high};
    *reinterpret_cast<uint32_t*>(at) = device::pack_word<T>(pair);
  };
  // The same in all lanes.
  const bool odd = Start == RowStart::Mixed ? reinterpret_cast<uintptr_t>(to) % 4 != 0 : Start == RowStart::Odd;
  if (!odd) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      T* const at = to + 64 * half;
      const int exist = left - 64 * half;
      if (exist > (Start == RowStart::Mixed ? 1 : 0)) {
        store_word(at, values[2 * half], values[2 * half + 1]);
      } else if (Start == RowStart::Mixed && exist == 1) {
        at[0] = device::from_accumulator<T>(values[2 * half]);
      }
    }
    return;
  }
  const unsigned lane = threadIdx.x % 32;
  float next[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) next[half] = __shfl_sync(0xffffffffu, values[2 * half], (lane + 1) % 32);
  if (lane == 31) next[0] = next[1];
  if (lane == 0 && left > 0) to[0] = device::from_accumulator<T>(values[0]);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    T* const at = to + 64 * half + 1;
    const int exist = left - 64 * half;
    if (exist > 2 && !(half == 1 && lane == 31)) {
      store_word(at, values[2 * half + 1], next[half]);
    } else if (exist > 1) {
      at[0] = device::from_accumulator<T>(values[2 * half + 1]);
    }
  }
}

/// Where a lane's share of an item is.
template <class T>
struct BandLane {
  const unsigned char* source;
  int source_pitch;
  T* result;
  int64_t result_pitch;
  int rows, left;  ///< results that exist: rows, and columns from the lane's first on
};

/// The results of an item; false where one of them is not finite. Unless Mixed, all rows of the source are aligned to
/// two elements, those of the result all or, Odd, none, and the results are an even number.
template <RowStart Start, class T, int March>
__device__ __forceinline__ bool march_bands(BandLane<T> lane, const uint32_t (&bands)[March][2], float bias,
                                            const Activation& activation) {
  float sums[March][4];  // of the result rows in reach, row modulo March
#pragma unroll
  for (int m = 0; m < March; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[m][i] = bias;
  }
  float probe = 0;  // NaN after a result that is not finite
  lane.result -= (March - 1) * lane.result_pitch;
  // The results row0, row0 + 1, ... are finished; all of them exist unless kChecked.
  const auto round = [&]<bool kChecked>(std::bool_constant<kChecked>, int row0) {
#pragma unroll
    for (int u = 0; u < March; ++u) {
      if (!kChecked || row0 + u < lane.rows) {
        uint32_t a[4];
        load_groups<Start != RowStart::Mixed>(lane.source, a);
#pragma unroll
        for (int m = 0; m < March; ++m) device::multiply_halves<T>(sums[(u - m + March) % March], a, bands[m]);
      }
      lane.source += lane.source_pitch;
      float(&done)[4] = sums[(u + 1) % March];
      if (!kChecked || (row0 + u >= 0 && row0 + u < lane.rows)) {
#pragma unroll
        for (int i = 0; i < 4; ++i) probe = fmaf(done[i], 0.0f, probe);
        if (activation.kind != ActivationKind::None) {
#pragma unroll
          for (int i = 0; i < 4; ++i) done[i] = device::call_activation(activation, done[i]);
        }
        store_row<Start>(lane.result, done, lane.left);
      }
      lane.result += lane.result_pitch;
#pragma unroll
      for (int i = 0; i < 4; ++i) done[i] = bias;
    }
  };
  int row0 = 1 - March;
  round(std::true_type{}, row0);
  row0 += March;
  for (; row0 + March <= lane.rows; row0 += March) round(std::false_type{}, row0);
  if (row0 < lane.rows) round(std::true_type{}, row0);
  return probe == 0;
}

/// Zeros the element before each row of the box: windows that begin there multiply it by zero, and where it lies
/// outside the tensor nobody has copied it, so that it might be anything.
template <class T>
__device__ __forceinline__ void clear_before_rows(unsigned char* shared, const RowBox& box, const RowSource& source,
                                                  const BoxPlace<T>& place) {
  const int rows = place.planes * static_cast<int>(box.outer.divisor * box.inner.divisor);
  for (int index = static_cast<int>(threadIdx.x); index < rows; index += static_cast<int>(blockDim.x)) {
    const BoxRow row(box, source, place, index);
    *(reinterpret_cast<T*>(shared + box_shift(place) + row.offset(box)) - 1) = T{};
  }
}

/// Where the rows of `p` begin.
template <class T>
RowStart band_start(const BandParams<T>& p) {
  const MarchGeometry& g = p.geometry.march;
  const bool regular = (g.source_box.outer_pitch | g.source_box.plane_pitch) % 4 == 0 &&
                       g.result.rows.outer_pitch % 2 == 0 && g.result.slice % 2 == 0 && g.result.rows.width % 2 == 0;
  if (!regular) return RowStart::Mixed;
  return reinterpret_cast<uintptr_t>(p.result) % 4 == 0 ? RowStart::Even : RowStart::Odd;
}

template <class T, int March, RowStart Start>
__global__ void __launch_bounds__(kMarchThreads, March > 3 ? 3 : 4)
    depthwise_bands(const __grid_constant__ BandParams<T> p) {
  extern __shared__ __align__(kBoxLine) unsigned char memory[];
  __shared__ uint64_t copied;
  const BoxCopy copy(copied);

  const MarchGeometry& g = p.geometry.march;
  const RowBox& box = g.source_box;
  const MarchTile tile = march_tile(g, blockIdx.x);
  const auto place = source_place<T>(p, g, tile);
  unsigned char* const shared = box_begin(memory, g, place);
  copy.start(shared, box, g.source.rows, place);
  copy.arrive();

  const auto lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int warps = static_cast<int>(blockDim.x / 32);
  const int64_t result_pitch = g.result.rows.outer_pitch;
  const int shift = Start != RowStart::Mixed ? box_shift(place) / 2 % 2 : 0;
  uint32_t bands[March][2];
  const T* weight = p.weight;
  float bias = 0;
  int bands_plane = -1;
  const auto load = [&](int plane) {
    if (plane == bands_plane) return;
    bands_plane = plane;
    const int64_t channel = channel_of(p, g, tile.plane + plane);
    weight = p.weight + channel * (March * p.geometry.width);
    load_bands(weight, p.geometry.width, p.flip, shift, bands);
    bias = p.bias ? device::to_accumulator(p.bias[channel]) : 0.0f;
  };
  load(0);  // while the rows arrive
  copy.wait();
  const bool wrote = finish_box(shared, box, g.source.rows, place);
  if (shift != 0) clear_before_rows(shared, box, g.source.rows, place);
  if (wrote || shift != 0) __syncthreads();

  const FastDivide &groups = p.geometry.groups, &parts = p.geometry.parts;
  const int items = tile.planes * static_cast<int>(groups.divisor * parts.divisor);
  for (int item = warp; item < items; item += warps) {
    uint32_t group, part;
    const auto plane = static_cast<int>(parts.divide(groups.divide(static_cast<uint32_t>(item), group), part));
    const int group_column = static_cast<int>(group) * kBandColumns;
    const int column = group_column + lane / 4 * 8 + lane % 4 * 2, row = static_cast<int>(part) * p.geometry.rows;
    const int left = g.result.rows.width - tile.column - column;
    const int rows = min(p.geometry.rows, g.result.rows.outer - tile.march - row);
    if (rows <= 0 || tile.column + group_column >= g.result.rows.width) continue;
    load(plane);
    const BandLane<T> at{
        shared + box_shift(place) + plane * box.plane_pitch + row * box.outer_pitch +
            (column - shift) * static_cast<int>(sizeof(T)),
        box.outer_pitch,
        p.result + (tile.plane + plane) * g.result.slice + (tile.march + row) * result_pitch + tile.column + column,
        result_pitch,
        rows,
        left};
    const bool finite = march_bands<Start>(at, bands, bias, p.activation);
    __syncwarp();  // a neighbour has stored one of this lane's results
    if (!finite) {
      plain_results<T, March>(p, tile.plane + plane, weight, bias, tile.march + row, rows, tile.column + column, left);
    }
  }
}

template <class T>
void launch_bands(int march, const BandParams<T>& params, cudaStream_t stream) {
  with_march(march, [&]<int March>(std::integral_constant<int, March>) {
    const auto start = [&](auto* kernel) {
      launch("conv depthwise bands", kernel, dim3(static_cast<unsigned>(params.geometry.march.tiles)),
             dim3(static_cast<unsigned>(params.geometry.march.threads)),
             static_cast<std::size_t>(params.geometry.march.source_box.bytes), stream, params);
    };
    switch (band_start(params)) {
      case RowStart::Even: return start(depthwise_bands<T, March, RowStart::Even>);
      case RowStart::Odd: return start(depthwise_bands<T, March, RowStart::Odd>);
      case RowStart::Mixed: return start(depthwise_bands<T, March, RowStart::Mixed>);
    }
  });
}

}  // namespace halo::cuda::conv::depthwise
