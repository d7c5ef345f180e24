// backward_weight at strides of 2 under many taps of height and width: a row of x at a time, on warpgroups.
//
// Rows of the product are eight channels of x under eight taps of the width, two of a warp, which are neighbours in
// memory; columns are results at the heights whose taps meet the row, and the depth is positions. So x is read, and
// split, once for all taps of the height and depths of y. All warps bring y into shared memory as the tensor cores read
// it (float32 in two parts), with zeros above and below, a depth ahead.
#include "../device/wgmma.cuh"
#include "../device/wgmma_half.cuh"
#include "../launch.h"
#include "streams_ring.cuh"
#include "streams_weight_operands.cuh"

namespace halo::cuda::conv::streams {
namespace {

/// The y that a thread brings into shared memory, four neighbours at a time.
template <class T>
struct StagedY {
  T values[kMostStaged][4];

  /// Of a depth: `y` is that of the first height of an item, with `heights`; `channel` elements lie between results.
  __device__ __forceinline__ void load(const WeightPlan& w, const T* y, int64_t channel, int results, int heights,
                                       int threads) {
    const int width = w.x.width.result;
#pragma unroll
    for (int i = 0; i < kMostStaged; ++i) {
      const int e = static_cast<int>(threadIdx.x) + i * threads;
      uint32_t four;
      const int row = static_cast<int>(w.by_row.divide(static_cast<uint32_t>(e / 8), four));
      const int column = static_cast<int>(four) * 4;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const bool exists = e % 8 < results && row < heights && column + j < width;
        values[i][j] = exists ? y[e % 8 * channel + int64_t{row} * width + column + j] : T{};
      }
    }
  }
  /// [height][step][high, low][half][result][16 bytes], from the third height on; half types have no low part.
  __device__ __forceinline__ void store(const WeightPlan& w, unsigned char* slot, int threads) const {
#pragma unroll
    for (int i = 0; i < kMostStaged; ++i) {
      const int e = static_cast<int>(threadIdx.x) + i * threads;
      uint32_t four;
      const int row = static_cast<int>(w.by_row.divide(static_cast<uint32_t>(e / 8), four));
      if (row >= w.x.heights) continue;
      unsigned char* const to = slot + (row + kRowMargin) * w.y_pitch + e % 8 * 16;
      if constexpr (sizeof(T) == 4) {
        device::Tf32Pair parts[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) parts[j] = device::split_tf32_unguarded(values[i][j]);
        auto* const words = reinterpret_cast<uint4*>(to + four / 2 * 512 + four % 2 * 128);
        words[0] = {parts[0].high, parts[1].high, parts[2].high, parts[3].high};
        words[16] = {parts[0].low, parts[1].low, parts[2].low, parts[3].low};
      } else {
        uint2 words;
        memcpy(&words, values[i], sizeof words);
        *reinterpret_cast<uint2*>(to + four / 4 * 256 + four / 2 % 2 * 128 + four % 2 * 8) = words;
      }
    }
  }
};

/// A piece of a row of x: channel lane / 4 under two neighbouring taps, at the positions of the left operand of each
/// step that are lane % 4's.
template <class T>
struct RowPiece {
  static constexpr int kSize = static_cast<int>(sizeof(T)), kPositions = row_positions(kSize);
  static constexpr int kStepBytes = kSize == 4 ? 512 : 256;  ///< of y
  uint32_t operand[kRowSteps][4];

  /// The piece begins at `column`, this lane's part `offset` further on, at `at`. Columns outside of `width` are zeros,
  /// which lie at `nothing`.
  __device__ __forceinline__ void load(const unsigned char* at, int column, int offset, int width,
                                       const unsigned char* nothing) {
    constexpr int kHalves = 2 * kRowSteps, kColumns = 2 * kPositions / kHalves;
    // Of most pieces only the first and the last half of a step may be outside.
    if (column + kColumns >= 0 && column + (kHalves - 1) * kColumns + 6 <= width) {
      load_halves<1, kHalves - 1, false>(at, column + offset, width, nothing);
    } else {
      load_halves<1, kHalves - 1, true>(at, column + offset, width, nothing);
    }
    load_halves<0, 1, true>(at, column + offset, width, nothing);
    load_halves<kHalves - 1, kHalves, true>(at, column + offset, width, nothing);
  }

 private:
  template <int First, int Last, bool Ends>
  __device__ __forceinline__ void load_halves(const unsigned char* at, int column, int width,
                                              const unsigned char* nothing) {
    const auto from = [&](int position) {
      const bool inside = !Ends || static_cast<unsigned>(column + 2 * position) < static_cast<unsigned>(width);
      return inside ? at + 2 * position * kSize : nothing;
    };
#pragma unroll
    for (int i = First; i < Last; ++i) {
      uint32_t* const to = operand[i / 2] + i % 2 * 2;
      if constexpr (kSize == 4) {
        const auto words = *reinterpret_cast<const uint2*>(from(4 * i));
        to[0] = words.x, to[1] = words.y;
      } else {
        const uint32_t first = *reinterpret_cast<const uint32_t*>(from(8 * i)),
                       second = *reinterpret_cast<const uint32_t*>(from(8 * i + 1));
        to[0] = __byte_perm(first, second, 0x5410), to[1] = __byte_perm(first, second, 0x7632);
      }
    }
  }
};

/// sums[i] += products of x with y at N / 4 neighbouring heights, `y[i]` half of its descriptor and `shape` the other.
template <class T, int Count, int N>
__device__ __forceinline__ void multiply(float (*const (&sums)[Count])[N], const RowPiece<T>& x,
                                         const uint32_t (&y)[Count], uint32_t shape) {
  constexpr int kSteps = kRowSteps;
  constexpr bool kFloat = sizeof(T) == 4;
  uint32_t high[kSteps][4], low[kFloat ? kSteps : 1][4];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      high[i][j] = kFloat ? x.operand[i][j] & device::kTf32Mask : x.operand[i][j];
      if constexpr (kFloat) low[i][j] = cut_from(x.operand[i][j]);
    }
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    device::wgmma_pin(high[i]);
    if constexpr (kFloat) device::wgmma_pin(low[i]);
  }
  float part[kFloat ? Count : 1][N];
  device::wgmma_fence();
#pragma unroll
  for (int k = 0; k < Count; ++k) {
    const auto at = [&](int step, int of) {
      constexpr int kStepBytes = RowPiece<T>::kStepBytes;
      return uint64_t{shape} << 32 | (y[k] + static_cast<uint32_t>((kStepBytes * step + 256 * of) / 16));
    };
    if constexpr (kFloat) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) device::wgmma_tf32(part[k], low[i], at(i, 0), i > 0);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) device::wgmma_tf32(part[k], high[i], at(i, 1), 1);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) device::wgmma_tf32(part[k], high[i], at(i, 0), 1);
    } else {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) device::wgmma_half<T>(*sums[k], high[i], at(i, 0));
    }
  }
  device::wgmma_commit();
  device::wgmma_wait<0>();
#pragma unroll
  for (int k = 0; k < Count; ++k) {
    if constexpr (kFloat) {
      device::wgmma_pin(part[k]);
#pragma unroll
      for (int i = 0; i < N; ++i) (*sums[k])[i] += part[k][i];
    } else {
      device::wgmma_pin(*sums[k]);
    }
  }
}

/// Warpgroups take rows in turn, each the taps of a chunk of channels; a warp of one more fills the ring of x.
template <class T>
__global__ void __launch_bounds__(kRowThreads, 1)
    weight_rows_kernel(const __grid_constant__ WeightPlan w, const __grid_constant__ WeightArguments<T> arguments) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Ring::Barriers barriers;
  __shared__ uint64_t staged_barrier;
  constexpr int kSize = static_cast<int>(sizeof(T)), kSums = kMostDepthTaps * kMostRowTaps * 4;
  const Plan& p = w.x;
  const int lane = static_cast<int>(threadIdx.x % 32),
            warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
  const int t = lane % 4, g = lane / 4, threads = p.users * 32;
  const int owner = static_cast<int>(blockIdx.x) / p.sharers, sharer = static_cast<int>(blockIdx.x) % p.sharers;
  const int group = owner / p.result_sets, first_result = owner % p.result_sets * 8;
  const int results = min(8, p.results - first_result);
  Ring ring(barriers, p.slots);
  const uint32_t y_staged = device::shared_address(&staged_barrier);
  if (threadIdx.x == 0) {
    device::barrier_init(y_staged, p.users);
    ring.init(p.users);
  }
  // What y is not written to, and the columns that do not exist.
  unsigned char* const staged = shared + kWeightMargin;
  const int staged_bytes = w.y_slots * w.y_slot_bytes;
  for (int i = static_cast<int>(threadIdx.x) * 16; i < kWeightMargin + staged_bytes;
       i += static_cast<int>(blockDim.x) * 16)
    *reinterpret_cast<uint4*>(shared + i) = {};
  device::fence_async_proxy();
  __syncthreads();
  unsigned char* const slots = staged + staged_bytes;
  if (warp >= p.users) {  // leave the others registers: of 128 a thread at the start, no more can be had
    device::registers_decrease<24>();
    if (warp == p.users) stream_units(p, ring, device::shared_address(slots), arguments.x, group, sharer, lane);
    return;
  }
  device::registers_increase<160>();

  const int own_chunk = warp / 4 / w.splits, split = warp / 4 % w.splits;
  const int channel = min(own_chunk * 8 + g, p.channels - 1);
  const int plane = p.height.source * p.width.source;
  // Taps begin at an even column, one of them before the first where the padding is odd.
  const int lead = p.width.origin & 1, lane_column = warp % 4 * 2 + (kSize == 4 ? 2 : 4) * t;
  const unsigned char* const x_lane = slots + channel % 4 * p.map.pitch + channel / 4 * p.map.quad_pitch +
                                      (p.width.origin - lead + lane_column) * kSize;
  const int64_t y_plane = int64_t{p.height.result} * p.width.result, y_channel = p.depth.result * y_plane;
  // Halves of a descriptor: between heights, between halves of a step.
  const auto y_shape = static_cast<uint32_t>(w.y_pitch / 16);
  constexpr uint32_t kHalves = uint32_t{128 / 16} << 16;
  const int columns = p.width.origin - lead + static_cast<int>(w.by_row.divisor) * 8;

  // From lane 0, so that the compiler keeps it.
  const uint32_t y_base = __shfl_sync(0xffffffffu, device::shared_address(staged), 0);
  float even[kMostDepthTaps][12] = {}, odd[kMostDepthTaps][8] = {};  // under taps 4, 2, 0 and 3, 1 of the height
  int row = split, slot = -1, written = -1;  // row: the next of the warpgroup, whatever the unit
  uint32_t y_parity = 0;
  for (int index = sharer; index < p.items; index += p.sharers) {
    const Item item(p, index);
    const int heights = min(p.heights, p.height.result - item.h);
    const auto first_run =
        static_cast<uint32_t>(((item.image * p.groups + group) * p.channels + channel) * p.depth.source * plane +
                              int64_t{item.row} * p.width.source);
    const T* const y = arguments.y + ((item.image * p.groups + group) * p.results + first_result) * y_channel +
                       item.d * y_plane + int64_t{item.h} * p.width.result;
    const auto multiply_unit = [&](int unit, int phase, const int(&at_newest)[kMostDepthTaps]) {
      const DepthTaps y_at(p, phase, at_newest);
      ring.wait_copied();
      const unsigned char* const x_unit =
          x_lane + ring.slot() * p.slot_bytes +
          lead_of(arguments.x, first_run + static_cast<uint32_t>(item.at(p, unit) * plane));
      // Rows that meet taps 0, 2, 4 of the height are `odd` to 0 rows from the first, those that meet 1, 3 the others.
      const int reach = item.row - p.height.origin, odd_rows = (item.rows + reach % 2) / 2;
      const auto go_over = [&]<int Odd, int... Taps>(std::integer_sequence<int, Odd, Taps...>, auto&... sums) {
        const int first = (Odd + reach) % 2, before = Odd == 0 ? 0 : item.rows - odd_rows;
        const int end = Odd == 0 ? item.rows - odd_rows : item.rows;
        const int last = (reach + first) / 2 - item.h;  // height under tap Odd; two taps on, the one before
        const uint32_t y_first =
            kHalves | ((y_base + static_cast<uint32_t>((last + kRowMargin - 2 + Odd) * w.y_pitch)) >> 4);
        for (; row < end; row += w.splits) {
          const unsigned char* at = x_unit + (first + 2 * (row - before)) * p.width.source * kSize;
          uint32_t from = y_first + static_cast<uint32_t>((row - before) * (w.y_pitch / 16));
          for (int column = p.width.origin - lead; column < columns; column += 2 * RowPiece<T>::kPositions) {
            RowPiece<T> x;
            x.load(at, column, lane_column, p.width.source, shared);
            multiply<T>({&sums...}, x, {from + static_cast<uint32_t>(y_at.at[Taps] / 16)...}, y_shape);
            at += 2 * RowPiece<T>::kPositions * kSize;
            from += kRowSteps * RowPiece<T>::kStepBytes / 16;
          }
        }
      };
      const auto go_over_all = [&]<int... Taps>(std::integer_sequence<int, Taps...>) {
        go_over(std::integer_sequence<int, 0, Taps...>{}, even[Taps]...);
        go_over(std::integer_sequence<int, 1, Taps...>{}, odd[Taps]...);
      };
      if (y_at.at[1] >= 0) {
        go_over_all(std::integer_sequence<int, 1>{});
      } else if (y_at.at[0] < 0) {
        go_over_all(std::integer_sequence<int, 2>{});
      } else if (y_at.at[2] < 0) {
        go_over_all(std::integer_sequence<int, 0>{});
      } else {
        go_over_all(std::integer_sequence<int, 0, 2>{});
      }
      row -= item.rows;
      ring.release(lane);
      ring.advance();
    };
    const auto stage = [&](int depth) {
      if (++written == w.y_slots) written = 0;
      StagedY<T> next;
      next.load(w, y + depth * y_plane, y_channel, results, heights, threads);
      next.store(w, staged + written * w.y_slot_bytes, threads);
      device::fence_async_proxy();
      __syncwarp();
      if (lane == 0) device::barrier_arrive(y_staged);
    };
    stage(0);
    int phase = -1, newest = -1;     // depth of y, of the item
    int at_newest[] = {-1, -1, -1};  // where y of this depth and those before lies, or -1
    for (int unit = 0; unit < item.units; ++unit) {
      if (++phase == p.phases || unit == 0) {
        phase = 0;
        ++newest;
        at_newest[2] = w.live > 2 ? at_newest[1] : -1;
        at_newest[1] = w.live > 1 ? at_newest[0] : -1;
        at_newest[0] = -1;
        if (newest < item.depths) {
          if (++slot == w.y_slots) slot = 0;
          at_newest[0] = slot * w.y_slot_bytes;
          device::barrier_wait(y_staged, y_parity);
          y_parity ^= 1;
        }
      }
      if (item.exists(p, unit)) multiply_unit(unit, phase, at_newest);
      // Into the slot of two depths before, with which all have done: they have staged this one.
      if (phase == 0 && newest + 1 < item.depths) stage(newest + 1);
    }
  }
  device::barrier_sync(1, threads);

  // [warp][kSums][lane]
  float* const all_sums = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const int d = i / 20, j = i % 20;
    all_sums[(warp * kSums + i) * 32 + lane] = j < 12 ? even[d][j] : odd[d][j - 12];
  }
  device::barrier_sync(1, threads);
  const int taps = p.depth.kernel * p.height.kernel * p.width.kernel;
  for (int e = static_cast<int>(threadIdx.x); e < p.users / w.splits * kSums * 32; e += threads) {
    const int of = e / (kSums * 32), place = e % (kSums * 32), from = place % 32, i = place / 32;
    const int d = i / 20, j = i % 20, row = j < 12 ? 4 - j / 4 * 2 : 3 - (j - 12) / 4 * 2,
              column = of % 4 * 2 + i % 4 / 2 - lead;
    const int c = of / 4 * 8 + from / 4, result = from % 4 * 2 + i % 2;
    if (d >= p.depth.kernel || row >= p.height.kernel || column < 0 || column >= p.width.kernel || c >= p.channels ||
        result >= results)
      continue;
    double sum = 0;
    for (int s = 0; s < w.splits; ++s) sum += all_sums[((of / 4 * w.splits + s) * 4 + of % 4) * (kSums * 32) + place];
    const int64_t weight = ((int64_t{group} * p.results + first_result + result) * p.channels + c) * taps +
                           (d * p.height.kernel + row) * p.width.kernel + column;
    arguments.partials[weight * p.sharers + sharer] = sum;
  }
}

}  // namespace

template <class T>
void launch_weight_rows(const WeightPlan& plan, const WeightArguments<T>& arguments, cudaStream_t stream) {
  launch("conv streams backward_weight", weight_rows_kernel<T>, dim3(static_cast<unsigned>(plan.x.blocks)),
         dim3(static_cast<unsigned>(plan.x.users + 4) * 32), plan.x.shared_bytes, stream, plan, arguments);
}

template void launch_weight_rows<float>(const WeightPlan&, const WeightArguments<float>&, cudaStream_t);
template void launch_weight_rows<BFloat16>(const WeightPlan&, const WeightArguments<BFloat16>&, cudaStream_t);
template void launch_weight_rows<Float16>(const WeightPlan&, const WeightArguments<Float16>&, cudaStream_t);

}  // namespace halo::cuda::conv::streams
