// backward_weight at strides of 2 under many taps of height and width: a row of x at a time, on warpgroups.
//
// Rows of the product are eight channels of x under eight taps of the width, two of a warp, which are neighbours in
// memory; columns are results at the heights whose taps meet the row, and the depth is positions. So x is read, and
// split, once for all taps of the height and depths of y. Of one more warpgroup a warp fills the ring of x, the others
// bring y into shared memory as the tensor cores read it (float32 in two parts), with zeros above and below.
#include "../../device/grid_order.cuh"
#include "../../device/wgmma.cuh"
#include "../../device/wgmma_half.cuh"
#include "../../launch.h"
#include "ring.cuh"
#include "weight_operands.cuh"

namespace halo::cuda::conv::streams {
namespace {

constexpr int kStagers = 96;  ///< threads that bring y

/// The four elements from `from` on, of which `left` exist. Whole: as one vector.
template <class T>
__device__ __forceinline__ void load_four(T (&to)[4], const T* from, bool whole, int left) {
  if (whole) {
    using Vector = std::conditional_t<sizeof(T) == 4, uint4, uint2>;
    const Vector all = left > 0 ? __ldg(reinterpret_cast<const Vector*>(from)) : Vector{};
    memcpy(to, &all, sizeof all);
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) to[j] = j < left ? from[j] : T{};
  }
}

/// The e-th four neighbours of y of a depth.
struct FourOfY {
  int result, row, column;

  __device__ __forceinline__ FourOfY(const WeightPlan& w, int e) : result(e % 8) {
    uint32_t four;
    row = static_cast<int>(w.by_row.divide(static_cast<uint32_t>(e / 8), four));
    column = static_cast<int>(four) * 4;
  }
  /// Bytes from the first in shared memory.
  __device__ __forceinline__ int at(const WeightPlan& w, int size) const {
    const int of_row = size == 4 ? column / 8 * 512 + column / 4 % 2 * 128
                                 : column / 16 * 256 + column / 8 % 2 * 128 + column / 4 % 2 * 8;
    return row * w.y_pitch + result * 16 + of_row;
  }
};

/// By the warps that fill the ring of y: [height][step][high, low][half][result][16 bytes], from the third height on;
/// half types have no low part. `thread` is of kStagers.
template <class T>
__device__ __forceinline__ void stage_y(const WeightPlan& w, Ring ring, unsigned char* slots,
                                        const WeightArguments<T>& arguments, int group, int first_result, int first,
                                        int thread) {
  constexpr int kSize = static_cast<int>(sizeof(T)), kTogether = 4 / kSize;  // as registers allow
  const Plan& p = w.x;
  const bool copied = kSize == 2 && w.y_whole;  // as it lies in memory
  const int width = p.width.result, y_plane = p.height.result * width;
  const int fours = p.heights * static_cast<int>(w.by_row.divisor) * 8;
  for (int index = first; index < p.items; index += p.sharers) {
    const Item item(p, index);
    const int heights = min(p.heights, p.height.result - item.h);
    const T* y = arguments.y + ((item.image * p.groups + group) * p.results + first_result) * p.depth.result * y_plane +
                 int64_t{item.d} * y_plane + int64_t{item.h} * width;
    for (int d = 0; d < item.depths; ++d, y += y_plane) {
      ring.wait_released();
      unsigned char* const slot = slots + ring.slot() * w.y_slot_bytes + kRowMargin * w.y_pitch;
      const auto from = [&](const FourOfY& four) {
        return y + int64_t{four.result} * p.depth.result * y_plane + four.row * width + four.column;
      };
      const auto left = [&](const FourOfY& four) {
        return first_result + four.result < p.results && four.row < heights ? width - four.column : 0;
      };
#pragma unroll 1
      for (int e = thread; copied && e < fours; e += kStagers) {
        const FourOfY four(w, e);
        device::copy_async<8>(device::shared_address(slot + four.at(w, kSize)), from(four), left(four) > 0 ? 8 : 0);
      }
#pragma unroll 1
      for (int e = thread; !copied && e < fours; e += kTogether * kStagers) {
        T values[kTogether][4];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          const FourOfY four(w, e + i * kStagers);
          load_four(values[i], from(four), kSize == 4 && w.y_whole, left(four));
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          if (e + i * kStagers >= fours) continue;
          unsigned char* const to = slot + FourOfY(w, e + i * kStagers).at(w, kSize);
          if constexpr (kSize == 4) {
            device::Tf32Pair parts[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) parts[j] = device::split_tf32_unguarded(values[i][j]);
            auto* const words = reinterpret_cast<uint4*>(to);
            words[0] = {parts[0].high, parts[1].high, parts[2].high, parts[3].high};
            words[16] = {parts[0].low, parts[1].low, parts[2].low, parts[3].low};
          } else {
            memcpy(__builtin_assume_aligned(to, 8), values[i], sizeof values[i]);
          }
        }
      }
      device::copy_async_wait_all();
      device::fence_async_proxy();
      ring.fill(thread % 32);
      ring.advance();
    }
  }
}

/// A piece of a row of x: channel lane / 4 under two neighbouring taps, at the positions of the left operand of each
/// step that are lane % 4's. Shifted: pairs begin at odd columns, so that the first and the last may reach out.
template <class T, bool Shifted>
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
      const bool inside =
          !Ends || static_cast<unsigned>(column + 2 * position + Shifted) < static_cast<unsigned>(width + Shifted);
      return inside ? at + 2 * position * kSize : nothing;
    };
    const auto before = [&](int position) { return Ends && Shifted && column + 2 * position == -1; };
    const auto behind = [&](int position) { return Ends && Shifted && column + 2 * position == width - 1; };
#pragma unroll
    for (int i = First; i < Last; ++i) {
      uint32_t* const to = operand[i / 2] + i % 2 * 2;
      if constexpr (kSize == 4) {
        const auto words = *reinterpret_cast<const uint2*>(from(4 * i));
        to[0] = before(4 * i) ? 0 : words.x, to[1] = behind(4 * i) ? 0 : words.y;
      } else {
        uint32_t first = *reinterpret_cast<const uint32_t*>(from(8 * i)),
                 second = *reinterpret_cast<const uint32_t*>(from(8 * i + 1));
        if (before(8 * i)) first &= 0xffff0000u;
        if (before(8 * i + 1)) second &= 0xffff0000u;
        if (behind(8 * i)) first &= 0xffffu;
        if (behind(8 * i + 1)) second &= 0xffffu;
        to[0] = __byte_perm(first, second, 0x5410), to[1] = __byte_perm(first, second, 0x7632);
      }
    }
  }
};

/// sums[i] += products of rows of x with y at N / 4 neighbouring heights, `y[i]` half of its descriptor for the first
/// row, `apart` from one to the next, and `shape` the other.
template <class T, bool Shifted, int Rows, int Count, int N>
__device__ __forceinline__ void multiply(float (*const (&sums)[Count])[N], const RowPiece<T, Shifted> (&x)[Rows],
                                         const uint32_t (&y)[Count], uint32_t apart, uint32_t shape) {
  constexpr int kSteps = kRowSteps;
  constexpr bool kFloat = sizeof(T) == 4;
  uint32_t high[Rows][kSteps][4], low[kFloat ? Rows : 1][kSteps][4];
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t word = x[r].operand[i][j];
        high[r][i][j] = kFloat ? word & device::kTf32Mask : word;
        if constexpr (kFloat) low[r][i][j] = cut_from(word);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      device::wgmma_pin(high[r][i]);
      if constexpr (kFloat) device::wgmma_pin(low[r][i]);
    }
  }
  float part[kFloat ? Count : 1][N];
  device::wgmma_fence();
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
#pragma unroll
    for (int k = 0; k < Count; ++k) {
      const auto at = [&](int step, int of) {
        constexpr int kStepBytes = RowPiece<T, Shifted>::kStepBytes;
        return uint64_t{shape} << 32 | (y[k] + r * apart + static_cast<uint32_t>((kStepBytes * step + 256 * of) / 16));
      };
      if constexpr (kFloat) {
        static_assert(Rows == 1);
#pragma unroll
        for (int i = 0; i < kSteps; ++i) device::wgmma_tf32(part[k], low[r][i], at(i, 0), i > 0);
#pragma unroll
        for (int i = 0; i < kSteps; ++i) device::wgmma_tf32(part[k], high[r][i], at(i, 1), 1);
#pragma unroll
        for (int i = 0; i < kSteps; ++i) device::wgmma_tf32(part[k], high[r][i], at(i, 0), 1);
      } else {
#pragma unroll
        for (int i = 0; i < kSteps; ++i) device::wgmma_half<T>(*sums[k], high[r][i], at(i, 0));
      }
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

/// Warpgroups take rows in turn, each the taps of a chunk of channels; one more fills the rings. Shifted: x begins an
/// element behind whole pairs.
template <class T, bool Shifted>
__global__ void __launch_bounds__((kRowWarpgroups + 1) * 128, 1)
    weight_rows_kernel(const __grid_constant__ WeightPlan w, const __grid_constant__ WeightArguments<T> arguments) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Ring::Barriers x_barriers, y_barriers;
  constexpr int kSize = static_cast<int>(sizeof(T)), kSums = kMostDepthTaps * kMostRowTaps * 4;
  const Plan& p = w.x;
  const int lane = static_cast<int>(threadIdx.x % 32),
            warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
  const int t = lane % 4, g = lane / 4, threads = p.users * 32;
  const int owner = static_cast<int>(blockIdx.x) / p.sharers, sharer = static_cast<int>(blockIdx.x) % p.sharers;
  const int group = owner / p.result_sets, first_result = owner % p.result_sets * 8;
  Ring ring(x_barriers, p.slots), y_ring(y_barriers, w.y_slots);
  ring.keep();
  y_ring.keep();
  if (threadIdx.x == 0) {
    ring.init(p.users);
    y_ring.init(p.users, kStagers / 32);
  }
  // What y is not written to, and the columns that do not exist.
  unsigned char* const staged = shared + kWeightMargin;
  const int staged_bytes = w.y_slots * w.y_slot_bytes;
  for (int i = static_cast<int>(threadIdx.x) * 16; i < kWeightMargin + staged_bytes;
       i += static_cast<int>(blockDim.x) * 16)
    *reinterpret_cast<uint4*>(shared + i) = {};
  device::fence_async_proxy();
  __syncthreads();
  device::release_next_grid();
  unsigned char* const slots = staged + staged_bytes;
  if (warp >= p.users) {  // leave the others registers: of 128 a thread at the start, no more can be had
    device::registers_decrease<32>();
    if (warp == p.users) {
      stream_units(p, ring, device::shared_address(slots), arguments.x, group, sharer, lane);
    } else {
      stage_y(w, y_ring, staged, arguments, group, first_result, sharer, static_cast<int>(threadIdx.x) - threads - 32);
    }
    return;
  }
  device::registers_increase<160>();

  const int own_chunk = warp / 4 / w.splits, split = warp / 4 % w.splits;
  const int channel = min(own_chunk * 8 + g, p.channels - 1);
  const int plane = p.height.source * p.width.source;
  // Taps begin at the first of a pair of columns, one of them before the first where the padding is not so.
  using Piece = RowPiece<T, Shifted>;
  const int lead = (p.width.origin + Shifted) & 1, lane_column = warp % 4 * 2 + (kSize == 4 ? 2 : 4) * t;
  const unsigned char* const x_lane = slots + channel % 4 * p.map.pitch + channel / 4 * p.map.quad_pitch +
                                      (p.width.origin - lead + lane_column) * kSize;
  // Halves of a descriptor: between heights, between halves of a step.
  const auto y_shape = static_cast<uint32_t>(w.y_pitch / 16);
  constexpr uint32_t kHalves = uint32_t{128 / 16} << 16;
  const int columns = p.width.origin - lead + static_cast<int>(w.by_row.divisor) * 8;

  // From lane 0, so that the compiler keeps it.
  const uint32_t y_base = __shfl_sync(0xffffffffu, device::shared_address(staged), 0);
  float even[kMostDepthTaps][12] = {}, odd[kMostDepthTaps][8] = {};  // under taps 4, 2, 0 and 3, 1 of the height
  LiveDepths live(y_ring);
  int row = split;  // the next of the warpgroup, whatever the unit
  for (int index = sharer; index < p.items; index += p.sharers) {
    const Item item(p, index);
    const auto first_run =
        static_cast<uint32_t>(((item.image * p.groups + group) * p.channels + channel) * p.depth.source * plane +
                              int64_t{item.row} * p.width.source);
    live.start_item();
    for (int unit = 0; unit < item.units; ++unit) {
      const DepthTaps y_at = live.next_unit(w, item, lane, [&](int, int slot) { return slot * w.y_slot_bytes; });
      if (!item.exists(p, unit)) continue;
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
        const auto take = [&]<int Rows>(std::integral_constant<int, Rows>) {
          for (; row + (Rows - 1) * w.splits < end; row += Rows * w.splits) {
            const unsigned char* at = x_unit + (first + 2 * (row - before)) * p.width.source * kSize;
            uint32_t from = y_first + static_cast<uint32_t>((row - before) * (w.y_pitch / 16));
            for (int column = p.width.origin - lead; column < columns; column += 2 * Piece::kPositions) {
              Piece x[Rows];
#pragma unroll
              for (int r = 0; r < Rows; ++r)
                x[r].load(at + r * 2 * w.splits * p.width.source * kSize, column, lane_column, p.width.source, shared);
              multiply<T, Shifted, Rows>({&sums...}, x, {from + static_cast<uint32_t>(y_at.at[Taps] / 16)...},
                                         static_cast<uint32_t>(w.splits * (w.y_pitch / 16)), y_shape);
              at += 2 * Piece::kPositions * kSize;
              from += kRowSteps * Piece::kStepBytes / 16;
            }
          }
        };
        if constexpr (kSize == 2) take(std::integral_constant<int, 2>{});  // as registers allow
        take(std::integral_constant<int, 1>{});
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
    }
    live.end_item(lane);
  }
  device::barrier_sync(1, threads);

  // [warp][depth][tap 4, 2, 0, 3, 1 of the height][four sums][kSumPitch]
  float* const all_sums = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const int d = i / 20, j = i % 20;
    all_sums[(warp * kSums + i) * kSumPitch + lane] = j < 12 ? even[d][j] : odd[d][j - 12];
  }
  device::barrier_sync(1, threads);
  store_partials(w, arguments, group, first_result, sharer, all_sums, threads,
                 [&](int result, int c, int d, int h, int column, int s) {
                   const int tap = column + lead, of = (c / 8 * w.splits + s) * 4 + tap / 2;
                   const int i = d * 20 + (h % 2 == 0 ? 8 - h * 2 : 18 - h * 2) + tap % 2 * 2 + result % 2;
                   return (of * kSums + i) * kSumPitch + c % 8 * 4 + result / 2;
                 });
}

}  // namespace

template <class T>
void launch_weight_rows(const WeightPlan& plan, const WeightArguments<T>& arguments, cudaStream_t stream) {
  const bool shifted = reinterpret_cast<uintptr_t>(arguments.x) / sizeof(T) % 2 != 0;
  launch("conv streams backward_weight", shifted ? weight_rows_kernel<T, true> : weight_rows_kernel<T, false>,
         dim3(static_cast<unsigned>(plan.x.blocks)), dim3(static_cast<unsigned>(plan.x.users + 1) * 32 + kStagers),
         plan.x.shared_bytes, stream, plan, arguments);
}

template void launch_weight_rows<float>(const WeightPlan&, const WeightArguments<float>&, cudaStream_t);
template void launch_weight_rows<BFloat16>(const WeightPlan&, const WeightArguments<BFloat16>&, cudaStream_t);
template void launch_weight_rows<Float16>(const WeightPlan&, const WeightArguments<Float16>&, cudaStream_t);

}  // namespace halo::cuda::conv::streams
