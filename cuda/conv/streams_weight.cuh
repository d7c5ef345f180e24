// backward_weight of strided convolutions with few channels a group.
//
// Rows of the product are eight channels of x under two taps of height and width, columns result channels, and the
// depth is positions. A warp owns a chunk of channels and some taps of the height, under all taps of depth and width,
// and keeps its sums in registers while the block goes over its items; what it reads of x is split in its parts once
// for all depths of y. Warps that divide the positions are added up in float64 at the end, blocks by ordered_sum.cuh.
#pragma once

#include "../device/mma.cuh"
#include "../device/tf32_split.cuh"
#include "../launch.h"
#include "streams_ring.cuh"
#include "streams_weight.h"

namespace halo::cuda::conv::streams {

/// Neighbouring elements from byte `at` of shared memory on, float32 one, half types two a word. With `Edge`, those
/// outside of a row count as zeros: `column` is that of the first, of `width`.
template <class T, bool Edge, int N>
__device__ __forceinline__ void load_row(uint32_t (&words)[N], const unsigned char* at, int column, int width) {
  const auto outside = [&](int i) { return static_cast<unsigned>(column + i) >= static_cast<unsigned>(width); };
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      words[i] = reinterpret_cast<const uint32_t*>(at)[i];
      if (Edge && outside(i)) words[i] = 0;
    }
  } else {
    const auto shift = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at) & 2);
    const auto* const from = reinterpret_cast<const uint32_t*>(at - shift);
    uint32_t next = from[0];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const uint32_t word = next;
      next = from[i + 1];
      words[i] = __byte_perm(word, next, shift != 0 ? 0x5432u : 0x3210u);
      if (Edge && outside(2 * i)) words[i] &= 0xffff0000u;
      if (Edge && outside(2 * i + 1)) words[i] &= 0xffffu;
    }
  }
}

/// As load_row, where all lie inside and begin at a whole vector.
template <int N>
__device__ __forceinline__ void load_whole(uint32_t (&words)[N], const unsigned char* at) {
  if constexpr (N == 4) {
    const uint4 all = *reinterpret_cast<const uint4*>(at);
    words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
  } else {
    const uint2 all = *reinterpret_cast<const uint2*>(at);
    words[0] = all.x, words[1] = all.y;
  }
}

/// What a lane needs of sixteen positions: of each row of x, channel lane / 4, all that positions 4 t to 4 t + 3 read
/// (t = lane % 4); of y, result lane / 4 at those positions. Row 0 to 7 of tile i are channels under tap 2 i of all
/// rows' taps, the others under the next.
template <class T, int Step, int Taps, int Rows>
struct Run {
  static constexpr int kTiles = (Rows * Taps + 1) / 2;
  static constexpr int kWords = sizeof(T) == 4 ? 3 * Step + Taps : (3 * Step + Taps + 1) / 2;
  static constexpr int kYWords = static_cast<int>(sizeof(T));
  uint32_t x[Rows][kWords];
  uint32_t x_low[sizeof(T) == 4 ? Rows : 1][kWords], operand[sizeof(T) == 2 ? kTiles : 1][4];

  /// After x is loaded. The tensor core cuts the high part of float32 by itself.
  __device__ __forceinline__ void prepare() {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int r = 0; r < Rows; ++r) {
#pragma unroll
        for (int i = 0; i < kWords; ++i)
          x_low[r][i] = __float_as_uint(__uint_as_float(x[r][i]) - __uint_as_float(x[r][i] & device::kTf32Mask));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int tap = tap_of(2 * i + j % 2), first = j / 2 * 2 * Step + tap % Taps, second = first + Step;
          operand[i][j] = __byte_perm(x[tap / Taps][first / 2], x[tap / Taps][second / 2],
                                      (first % 2 == 0 ? 0x10u : 0x32u) | (second % 2 == 0 ? 0x5400u : 0x7600u));
        }
      }
    }
  }
  /// sums += products with y.
  __device__ __forceinline__ void multiply(float (&sums)[kTiles][4], const uint32_t (&y)[kYWords]) const {
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) device::multiply_halves<T>(sums[i], operand[i], y);
    } else {
      device::Tf32Pair b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) b[i] = device::split_tf32_unguarded(__uint_as_float(y[i]));
      float part[kTiles][4];
      const auto product = [&]<bool First>(std::bool_constant<First>, const auto& of_x, uint32_t b0, uint32_t b1,
                                           int eight) {
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          uint32_t a[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const int tap = tap_of(2 * i + j % 2);
            a[j] = of_x[tap / Taps][(2 * eight + j / 2) * Step + tap % Taps];
          }
          device::multiply_tf32<First>(part[i], a, {b0, b1});
        }
      };
      product(std::true_type{}, x_low, b[0].high, b[1].high, 0);
      product(std::false_type{}, x, b[0].low, b[1].low, 0);
      product(std::false_type{}, x, b[0].high, b[1].high, 0);
      product(std::false_type{}, x_low, b[2].high, b[3].high, 1);
      product(std::false_type{}, x, b[2].low, b[3].low, 1);
      product(std::false_type{}, x, b[2].high, b[3].high, 1);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] += part[i][j];
      }
    }
  }

 private:
  /// Of an odd number of taps the last counts twice.
  static __device__ constexpr int tap_of(int i) { return i < Rows * Taps ? i : i - 1; }
};

/// By the warp that fills both rings: y of a depth before the first unit that it is multiplied with.
template <class T>
__device__ __forceinline__ void stream_both(const WeightPlan& w, Ring x_ring, Ring y_ring, uint32_t shared,
                                            const WeightArguments<T>& arguments, int group, int first_result,
                                            int results, int first, int lane) {
  const Plan& p = w.x;
  const int64_t plane = int64_t{p.height.source} * p.width.source;
  const int64_t y_plane = int64_t{p.height.result} * p.width.result;
  const uint32_t to = shared + static_cast<uint32_t>(lane % 4 * p.map.pitch + lane / 4 * p.map.quad_pitch);
  const uint32_t y_to = shared + static_cast<uint32_t>(p.slots * p.slot_bytes + lane * w.y_pitch);
  for (int index = first; index < p.items; index += p.sharers) {
    const Item item(p, index);
    const int64_t channel = (item.image * p.groups + group) * p.channels + min(lane, p.channels - 1);
    const int64_t result = (item.image * p.groups + group) * p.results + first_result + min(lane, results - 1);
    const T* const run = arguments.x + channel * p.depth.source * plane + int64_t{item.row} * p.width.source;
    const T* const y_run = arguments.y + result * p.depth.result * y_plane + int64_t{item.h} * p.width.result;
    const int heights = min(p.heights, p.height.result - item.h);
    const uint32_t bytes =
        lane < p.channels ? static_cast<uint32_t>(item.rows * p.width.source) * uint32_t{sizeof(T)} : 0;
    const uint32_t y_bytes = lane < results ? static_cast<uint32_t>(heights * p.width.result) * uint32_t{sizeof(T)} : 0;
    for (int unit = 0, d = 0; unit < item.units; ++unit) {
      if (unit == d * p.phases && d < item.depths) {
        start_runs(y_ring, y_run + (item.d + d) * y_plane, y_bytes,
                   y_to + static_cast<uint32_t>(y_ring.slot() * w.y_slot_bytes), arguments.y + w.y_elements, lane);
        y_ring.advance();
        ++d;
      }
      if (!item.exists(p, unit)) continue;
      start_runs(x_ring, run + item.at(p, unit) * plane, bytes,
                 to + static_cast<uint32_t>(x_ring.slot() * p.slot_bytes), arguments.x + p.x_elements, lane);
      x_ring.advance();
    }
  }
}

/// Step, Taps: of the width; Taps may be more than there are. Rows: taps of the height of a warp.
template <class T, int Step, int Taps, int Rows, int Warps>
__global__ void __launch_bounds__(Warps * 32, 1)
    weight_kernel(const __grid_constant__ WeightPlan w, const __grid_constant__ WeightArguments<T> arguments) {
  using R = Run<T, Step, Taps, Rows>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Ring::Barriers x_barriers, y_barriers;
  constexpr int kSize = static_cast<int>(sizeof(T)), kSums = kMostDepthTaps * R::kTiles * 4;
  const Plan& p = w.x;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int t = lane % 4, g = lane / 4;
  const int owner = static_cast<int>(blockIdx.x) / p.sharers, sharer = static_cast<int>(blockIdx.x) % p.sharers;
  const int group = owner / p.result_sets, first_result = owner % p.result_sets * 8;
  const int results = min(8, p.results - first_result);
  Ring x_ring(x_barriers, p.slots), y_ring(y_barriers, w.y_slots);
  if (threadIdx.x == 0) {
    x_ring.init(p.users);
    y_ring.init(p.users);
  }
  __syncthreads();
  unsigned char* const rings = shared + kWeightMargin;
  if (warp == p.users) {
    const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(rings));
    return stream_both(w, x_ring, y_ring, to, arguments, group, first_result, results, sharer, lane);
  }

  const int row_groups = p.height.kernel / Rows, own = warp / w.splits, split = warp % w.splits;
  const int own_row = own % row_groups * Rows, own_chunk = own / row_groups;
  const int channel = min(own_chunk * 8 + g, p.channels - 1);
  const int plane = p.height.source * p.width.source, y_plane = p.height.result * p.width.result;
  const unsigned char* const x_lane =
      rings + channel % 4 * p.map.pitch + channel / 4 * p.map.quad_pitch + (p.width.origin + 4 * t * Step) * kSize;
  const unsigned char* const y_lane = rings + p.slots * p.slot_bytes + g * w.y_pitch + 4 * t * kSize;

  const int row_bytes = p.height.apart * p.width.source * kSize;

  float sums[kMostDepthTaps][R::kTiles][4] = {};
  Ring y_done = y_ring;  // what is released next
  for (int index = sharer; index < p.items; index += p.sharers) {
    const Item item(p, index);
    const auto first_run =
        static_cast<uint32_t>(((item.image * p.groups + group) * p.channels + channel) * p.depth.source * plane +
                              int64_t{item.row} * p.width.source);
    const auto first_y = static_cast<uint32_t>(((item.image * p.groups + group) * p.results + first_result + g) *
                                                   p.depth.result * y_plane +
                                               item.d * y_plane + item.h * p.width.result);
    int phase = -1, newest = -1;  // depth of y, of the item
    int newest_slot = y_ring.slot() - 1;
    for (int unit = 0; unit < item.units; ++unit) {
      if (++phase == p.phases || unit == 0) {
        phase = 0;
        ++newest;
        if (++newest_slot == w.y_slots) newest_slot = 0;
        if (newest >= w.live && newest - w.live < item.depths) {
          y_done.release(lane);
          y_done.advance();
        }
        if (newest < item.depths) {
          y_ring.wait_copied();
          y_ring.advance();
        }
      }
      if (!item.exists(p, unit)) continue;
      int y_at[kMostDepthTaps];  // where y lies that goes with a tap of the depth, or -1
#pragma unroll
      for (int tap = 0; tap < kMostDepthTaps; ++tap) {
        const int behind = tap == phase ? 0 : tap == phase + p.phases ? 1 : tap == phase + 2 * p.phases ? 2 : -1;
        const int d = newest - behind, slot = newest_slot - behind;
        const bool used =
            behind >= 0 && tap < p.depth.kernel && static_cast<unsigned>(d) < static_cast<unsigned>(item.depths);
        y_at[tap] = used ? (slot < 0 ? slot + w.y_slots : slot) * w.y_slot_bytes +
                               lead_of(arguments.y, first_y + static_cast<uint32_t>(d * y_plane))
                         : -1;
      }
      x_ring.wait_copied();
      const unsigned char* const x_unit =
          x_lane + x_ring.slot() * p.slot_bytes +
          lead_of(arguments.x, first_run + static_cast<uint32_t>(item.at(p, unit) * plane));
#pragma unroll 1
      for (int run = split; run < w.runs; run += w.splits) {
        uint32_t segment;
        const int j = static_cast<int>(w.by_row.divide(static_cast<uint32_t>(run), segment));
        const int h = item.h + j, column = static_cast<int>(segment) * 16;
        if (h >= p.height.result) break;
        const int x_column = column * Step + p.width.origin;
        const int row = h * p.height.step + p.height.origin + own_row * p.height.apart;
        const bool beyond = column + 16 > p.width.result;
        const bool inside = x_column >= 0 && x_column + 15 * Step + Taps <= p.width.source && row >= 0 &&
                            row + (Rows - 1) * p.height.apart < p.height.source;
        const unsigned char* const from = x_unit + ((row - item.row) * p.width.source + column * Step) * kSize;
        R part;
        if (inside) {
#pragma unroll
          for (int r = 0; r < Rows; ++r) load_row<T, false>(part.x[r], from + r * row_bytes, 0, 0);
        } else {
#pragma unroll
          for (int r = 0; r < Rows; ++r) {
            const bool exists =
                static_cast<unsigned>(row + r * p.height.apart) < static_cast<unsigned>(p.height.source);
            load_row<T, true>(part.x[r], exists ? from + r * row_bytes : x_unit, x_column + 4 * t * Step,
                              exists ? p.width.source : 0);
          }
        }
        part.prepare();
        const unsigned char* const y_run = y_lane + (j * p.width.result + column) * kSize;
#pragma unroll
        for (int tap = 0; tap < kMostDepthTaps; ++tap) {
          if (y_at[tap] < 0) continue;
          uint32_t y[R::kYWords];
          if (beyond) {
            load_row<T, true>(y, y_run + y_at[tap], column + 4 * t, p.width.result);
          } else if (w.y_whole) {
            load_whole(y, y_run + y_at[tap]);
          } else {
            load_row<T, false>(y, y_run + y_at[tap], 0, 0);
          }
          part.multiply(sums[tap], y);
        }
      }
      x_ring.release(lane);
      x_ring.advance();
    }
    while (y_done.slot() != y_ring.slot()) {  // fewer are held than there are slots
      y_done.release(lane);
      y_done.advance();
    }
  }
  device::barrier_sync(1, p.users * 32);

  // [warp][kSums][lane]
  float* const all_sums = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < kSums; ++i)
    all_sums[(warp * kSums + i) * 32 + lane] = sums[i / (R::kTiles * 4)][i / 4 % R::kTiles][i % 4];
  device::barrier_sync(1, p.users * 32);
  const int owners = p.users / w.splits, taps = p.depth.kernel * p.height.kernel * p.width.kernel;
  for (int e = static_cast<int>(threadIdx.x); e < owners * kSums * 32; e += p.users * 32) {
    const int of = e / (kSums * 32), place = e % (kSums * 32), from = place % 32, i = place / 32;
    const int d = i / (R::kTiles * 4), tap = i / 4 % R::kTiles * 2 + i % 4 / 2;
    const int row = of % row_groups * Rows + tap / Taps, column = tap % Taps;
    const int c = of / row_groups * 8 + from / 4, result = from % 4 * 2 + i % 2;
    if (d >= p.depth.kernel || tap >= Rows * Taps || column >= p.width.kernel || c >= p.channels || result >= results)
      continue;
    double sum = 0;
    for (int s = 0; s < w.splits; ++s) sum += all_sums[(of * w.splits + s) * (kSums * 32) + place];
    const int64_t weight = ((int64_t{group} * p.results + first_result + result) * p.channels + c) * taps +
                           (d * p.height.kernel + row) * p.width.kernel + column;
    arguments.partials[weight * p.sharers + sharer] = sum;
  }
}

template <class T>
void launch_weight(const WeightPlan& plan, const WeightArguments<T>& arguments, cudaStream_t stream) {
  const auto start = [&](auto kernel) {
    launch("conv streams backward_weight", kernel, dim3(static_cast<unsigned>(plan.x.blocks)),
           dim3(static_cast<unsigned>(plan.x.users + 1) * 32), plan.x.shared_bytes, stream, plan, arguments);
  };
  constexpr auto kWarps = [](int rows, int taps) { return weight_warps(rows, taps, sizeof(T) == 2); };
  if (plan.x.width.step == 3) return start(weight_kernel<T, 3, 5, 1, kWarps(1, 5)>);
  if (plan.rows == 3) return start(weight_kernel<T, 2, 3, 3, kWarps(3, 3)>);
  if (plan.width_taps == 3) return start(weight_kernel<T, 2, 3, 1, kWarps(1, 3)>);
  start(weight_kernel<T, 2, 7, 1, kWarps(1, 7)>);
}
}  // namespace halo::cuda::conv::streams
