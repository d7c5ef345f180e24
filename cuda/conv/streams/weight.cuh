// backward_weight of strided convolutions with few channels a group.
//
// Rows of the product are eight results at two depths of y, columns eight channels of x under a tap, and the depth is
// positions. A warp owns a chunk of channels and some taps of the height, under all taps of depth and width, and keeps
// its sums in registers while the block goes over its items; what it reads of x is split in its parts once for all
// depths of y. Warps that divide the positions are added up in float64 at the end, blocks by ordered_sum.cuh.
#pragma once

#include "../../device/grid_order.cuh"
#include "../../launch.h"
#include "weight_operands.cuh"

namespace halo::cuda::conv::streams {

/// By a warp that fills one ring or both: y of a depth before the first unit that it is multiplied with.
template <class T>
__device__ __forceinline__ void fill_rings(const WeightPlan& w, Ring x_ring, Ring y_ring, bool fill_x, bool fill_y,
                                           uint32_t shared, const WeightArguments<T>& arguments, int group,
                                           int first_result, int first, int lane) {
  const Plan& p = w.x;
  const int results = min(8, p.results - first_result);
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
      if (fill_y && unit == d * p.phases && d < item.depths) {
        start_runs(y_ring, y_run + (item.d + d) * y_plane, y_bytes,
                   y_to + static_cast<uint32_t>(y_ring.slot() * w.y_slot_bytes), arguments.y + w.y_elements, lane);
        y_ring.advance();
        ++d;
      }
      if (!fill_x || !item.exists(p, unit)) continue;
      start_runs(x_ring, run + item.at(p, unit) * plane, bytes,
                 to + static_cast<uint32_t>(x_ring.slot() * p.slot_bytes), arguments.x + p.x_elements, lane);
      x_ring.advance();
    }
  }
}

/// Step, Taps: of the width; Taps may be more than there are. Rows: taps of the height of a warp. Whole: of Window.
template <class T, int Step, int Taps, int Rows, int Warps, bool Whole>
__global__ void __launch_bounds__(Warps * 32, 1)
    weight_kernel(const __grid_constant__ WeightPlan w, const __grid_constant__ WeightArguments<T> arguments) {
  using X = Window<T, Step, Taps, Whole>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Ring::Barriers x_barriers, y_barriers;
  constexpr int kSize = static_cast<int>(sizeof(T)), kTaps = Rows * Taps, kOfTap = 6, kSums = kTaps * kOfTap;
  const Plan& p = w.x;
  // By shuffles, so that the compiler keeps them.
  const int lane = __shfl_sync(~0u, static_cast<int>(threadIdx.x % 32), static_cast<int>(threadIdx.x % 32));
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  const uint32_t zeros = __shfl_sync(~0u, static_cast<uint32_t>(__cvta_generic_to_shared(shared)), 0);
  const int t = lane % 4, g = lane / 4;
  const int owner = static_cast<int>(blockIdx.x) / p.sharers, sharer = static_cast<int>(blockIdx.x) % p.sharers;
  const int group = owner / p.result_sets, first_result = owner % p.result_sets * 8;
  Ring x_ring(x_barriers, p.slots), y_ring(y_barriers, w.y_slots);
  x_ring.keep();
  y_ring.keep();
  if (threadIdx.x == 0) {
    x_ring.init(p.users);
    y_ring.init(p.users);
  }
  if (warp == 0) reinterpret_cast<uint32_t*>(shared)[lane] = 0;  // y of depths that do not exist
  __syncthreads();
  device::release_next_grid();
  const uint32_t rings = zeros + kWeightMargin;
  if (warp >= p.users) {
    const bool last = warp + 1 == p.users + w.fillers;
    return fill_rings(w, x_ring, y_ring, warp == p.users, last, rings, arguments, group, first_result, sharer, lane);
  }

  const int row_groups = p.height.kernel / Rows, own = warp / w.splits, split = warp % w.splits;
  const int own_row = own % row_groups * Rows, own_chunk = own / row_groups;
  const int channel = min(own_chunk * 8 + g, p.channels - 1);
  const int plane = p.height.source * p.width.source, y_plane = p.height.result * p.width.result;
  const uint32_t x_lane =
      rings + channel % 4 * p.map.pitch + channel / 4 * p.map.quad_pitch + (p.width.origin + 4 * t * Step) * kSize;
  const uint32_t y_lane = rings + p.slots * p.slot_bytes + g * w.y_pitch + 4 * t * kSize;
  const int row_bytes = p.height.apart * p.width.source * kSize;
  const int segments = static_cast<int>(w.by_row.divisor);
  const uint32_t zero = load_shared_word(zeros);

  float pairs[kTaps][4] = {}, singles[(kTaps + 1) / 2][4] = {};  // of taps 0 and 2, and 1, of the depth
  LiveDepths live(y_ring);
  int run = split;  // the next of the warp, whatever the unit: so all have as many
  for (int index = sharer; index < p.items; index += p.sharers) {
    const Item item(p, index);
    const int runs = min(p.heights, p.height.result - item.h) * segments;
    const auto first_run =
        static_cast<uint32_t>(((item.image * p.groups + group) * p.channels + channel) * p.depth.source * plane +
                              int64_t{item.row} * p.width.source);
    const auto first_y = static_cast<uint32_t>(((item.image * p.groups + group) * p.results + first_result + g) *
                                                   p.depth.result * y_plane +
                                               item.d * y_plane + item.h * p.width.result);
    live.start_item();
    for (int unit = 0; unit < item.units; ++unit) {
      const DepthTaps y_at = live.next_unit(w, item, lane, [&](int depth, int slot) {
        return slot * w.y_slot_bytes + lead_of(arguments.y, first_y + static_cast<uint32_t>(depth * y_plane));
      });
      if (!item.exists(p, unit)) continue;
      x_ring.wait_copied();
      const uint32_t x_unit = x_lane + x_ring.slot() * p.slot_bytes +
                              lead_of(arguments.x, first_run + static_cast<uint32_t>(item.at(p, unit) * plane));
      uint32_t y_from[kMostDepthTaps], y_bytes[kMostDepthTaps];  // of an element
#pragma unroll
      for (int tap = 0; tap < kMostDepthTaps; ++tap) {
        const bool exists = y_at.at[tap] >= 0;
        y_from[tap] = exists ? y_lane + y_at.at[tap] : zeros;
        y_bytes[tap] = exists ? kSize : 0;
      }
      const auto go_over = [&]<bool Pair, bool Single>(std::bool_constant<Pair>, std::bool_constant<Single>) {
#pragma unroll 1
        for (; run < runs; run += w.splits) {
          uint32_t segment;
          const int j = static_cast<int>(w.by_row.divide(static_cast<uint32_t>(run), segment));
          const int column = static_cast<int>(segment) * 16, x_column = column * Step + p.width.origin;
          const int row = (item.h + j) * p.height.step + p.height.origin + own_row * p.height.apart;
          const auto exists = [&](int r) {
            return static_cast<unsigned>(row + r * p.height.apart) < static_cast<unsigned>(p.height.source);
          };
          if (Rows == 1 && !exists(0)) continue;
          const uint32_t from = x_unit + ((row - item.row) * p.width.source + column * Step) * kSize;
          X x[Rows];
          bool all = true;
#pragma unroll
          for (int r = 0; r < Rows; ++r) {
            all &= exists(r);
            x[r].load(exists(r) ? from + r * row_bytes : x_unit);
          }
          uint32_t y[kMostDepthTaps][kSize];
          const uint32_t y_run = j * p.width.result + column;
          const bool inside = column + 4 * t < p.width.result;
          if (w.y_whole) {
#pragma unroll
            for (int tap = 0; tap < kMostDepthTaps; ++tap)
              if (tap == 1 ? Single : Pair) load_fours<T>(y[tap], inside ? y_from[tap] + y_run * y_bytes[tap] : zeros);
          } else {
#pragma unroll
            for (int tap = 0; tap < kMostDepthTaps; ++tap) {
              if (!(tap == 1 ? Single : Pair)) continue;
              load_row<T>(y[tap], y_from[tap] + y_run * y_bytes[tap]);
              clear_outside<T, 4, 4, 0>(y[tap], column + 4 * t, p.width.result);
            }
          }
          const Left<T, true> pair(y[0], y[2], zero);
          const Left<T, false> single(y[1], y[1], zero);
          // Of most rows only the first and last runs reach out, and those by no more than kEnds.
          const int behind = x_column + 15 * Step + Taps - p.width.source;
          if (!all || x_column < -X::kEnds || behind > X::kEnds) {
#pragma unroll
            for (int r = 0; r < Rows; ++r)
              x[r].template clear<X::kElements>(x_column + 4 * t * Step, exists(r) ? p.width.source : 0);
          } else if (x_column < 0 || behind > 0) {
#pragma unroll
            for (int r = 0; r < Rows; ++r) x[r].template clear<X::kEnds>(x_column + 4 * t * Step, p.width.source);
          }
#pragma unroll
          for (int r = 0; r < Rows; ++r) {
            if constexpr (Pair) x[r].template multiply<true>(pairs, pair, r * Taps);
            if constexpr (Single) x[r].template multiply<false>(singles, single, r * Taps);
          }
        }
      };
      if (y_at.at[1] < 0) {
        go_over(std::true_type{}, std::false_type{});
      } else if ((y_at.at[0] & y_at.at[2]) < 0) {
        go_over(std::false_type{}, std::true_type{});
      } else {
        go_over(std::true_type{}, std::true_type{});
      }
      run -= runs;
      x_ring.release(lane);
      x_ring.advance();
    }
    live.end_item(lane);
  }
  device::barrier_sync(1, p.users * 32);

  // [warp][kSums][kSumPitch]
  float* const all_sums = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const int tap = i / kOfTap, j = i % kOfTap;
    all_sums[(warp * kSums + i) * kSumPitch + lane] = j < 4 ? pairs[tap][j] : singles[tap / 2][tap % 2 * 2 + j - 4];
  }
  device::barrier_sync(1, p.users * 32);
  store_partials(w, arguments, group, first_result, sharer, all_sums, p.users * 32,
                 [&](int result, int c, int d, int h, int column, int s) {
                   const int of = c / 8 * row_groups + h / Rows, tap = h % Rows * Taps + column;
                   const int i = tap * kOfTap + (d == 1 ? 4 : d) + c % 2;
                   return ((of * w.splits + s) * kSums + i) * kSumPitch + result * 4 + c % 8 / 2;
                 });
}

template <class T>
void launch_weight(const WeightPlan& plan, const WeightArguments<T>& arguments, cudaStream_t stream) {
  const auto start = [&]<int Step, int Taps, int Rows, bool Whole>() {
    launch("conv streams backward_weight",
           weight_kernel<T, Step, Taps, Rows, weight_warps(Rows, Taps, sizeof(T) == 2), Whole>,
           dim3(static_cast<unsigned>(plan.x.blocks)), dim3(static_cast<unsigned>(plan.x.users + plan.fillers) * 32),
           plan.x.shared_bytes, stream, plan, arguments);
  };
  if (plan.by_rows) return launch_weight_rows(plan, arguments, stream);
  if (plan.x.width.step == 3) return start.template operator()<3, 5, 1, false>();
  const auto start_as = [&]<int Taps, int Rows>() {
    plan.x_whole ? start.template operator()<2, Taps, Rows, true>() : start.template operator()<2, Taps, Rows, false>();
  };
  if (plan.rows == 3) return start_as.template operator()<3, 3>();
  if (plan.width_taps == 3) return start_as.template operator()<3, 1>();
  start_as.template operator()<7, 1>();
}
}  // namespace halo::cuda::conv::streams
