// Running sums: a team of threads a row, which it scans in pieces; rows that lie side by side go one a thread.
#include <halo/ops/binary_functors.h>
#include <halo/ops/cumsum_backend.h>

#include <algorithm>

#include "../device/async_copy.cuh"
#include "../device/number.cuh"
#include "../device/packs.cuh"
#include "../device/rows.h"
#include "../device/teams.cuh"
#include "../launch.h"
#include "../runtime/device.h"

namespace halo::cuda {
namespace {

constexpr int kThreads = Teams::kThreads;

using device::from_accumulator;
using device::to_accumulator;

/// Half types accumulate in float32, float32 in float64.
template <class T>
using Total = std::conditional_t<std::is_integral_v<T>, int64_t, std::conditional_t<sizeof(T) == 2, float, double>>;

template <class T>
__device__ Total<T> to_total(T value) {
  return static_cast<Total<T>>(to_accumulator(value));
}
template <class T>
__device__ T from_total(Total<T> total) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(total);
  } else {
    return from_accumulator<T>(static_cast<device::Accumulator<T>>(total));
  }
}

constexpr int kWarp = Teams::kWarp;

/// A piece of a row, which a team scans at once: kPacks neighbouring packs a thread.
template <class T>
struct ScanPiece {
  static constexpr int kSize = kWide<T>, kPacks = std::min(32 / kSize, 8);
  static constexpr int kSlotBytes = kThreads * kPacks * device::kGranule;
  int64_t block_row, row, begin = 0;  ///< begin: where the team's piece does

  __device__ explicit ScanPiece(const Teams& teams)
      : block_row(int64_t{blockIdx.x} * teams.lanes), row(block_row + teams.lane()) {}
  __device__ void advance(const Teams& teams, int64_t length) {
    begin += int64_t{teams.depth} * kPacks * kSize;
    if (begin < length) return;
    const int64_t step = int64_t{gridDim.x} * teams.lanes;
    begin = 0;
    block_row += step;
    row += step;
  }
  /// Where pack g of the piece lies in the team's part of a slot, in bytes: neighbouring packs as well as packs kPacks
  /// apart are in different banks.
  __device__ static int place(int g) { return (g ^ (g >> 3 & (kPacks - 1))) * device::kGranule; }
};

/// The sum of what comes before this thread's `sum` in the team, `all` that of the whole team. All threads of the block
/// call it; `warps` is shared memory for a value a warp.
template <class Value>
__device__ __forceinline__ Value scan_team(int depth, int rank, Value sum, Value* warps, Value& all) {
  const int within = min(depth, kWarp), warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int step = 1; step < within; step *= 2) {
    const Value other = __shfl_up_sync(~0u, sum, step, within);
    if (rank % within >= step) sum += other;
  }
  const Value total = __shfl_sync(~0u, sum, within - 1, within);
  // Not sum - own, which would have the rounding, and the NaN, of a difference.
  sum = __shfl_up_sync(~0u, sum, 1, within);
  if (rank % within == 0) sum = 0;
  all = total;
  if (depth <= kWarp) return sum;
  __syncthreads();  // an earlier scan may still be read
  if (rank % kWarp == 0) warps[warp] = total;
  __syncthreads();
  const int of_team = depth / kWarp, first = warp / of_team * of_team;
  all = 0;
  for (int w = first; w < first + of_team; ++w) {
    if (w == warp) sum += all;
    all += warps[w];
  }
  return sum;
}

/// A block's teams march through the rows; the next pieces are on their way while one is summed. Threads read and write
/// memory side by side, but sum neighbours: packs change hands in shared memory.
template <class T>
__global__ void __launch_bounds__(kThreads)
    scan_rows_kernel(const __grid_constant__ Teams teams, int64_t rows, int64_t length, bool packs, bool reverse,
                     const T* x, T* y) {
  using Piece = ScanPiece<T>;
  constexpr int kSize = Piece::kSize, kPacks = Piece::kPacks;
  using Packed = Pack<T, kSize>;
  extern __shared__ __align__(16) unsigned char slots[];  // two
  __shared__ Total<T> warps[kThreads / kWarp];
  const int rank = teams.rank(), depth = teams.depth;
  unsigned char* const of_team = slots + teams.lane() * depth * kPacks * device::kGranule;
  const auto at = [&](int slot, int g) {
    return reinterpret_cast<Packed*>(of_team + slot * Piece::kSlotBytes + Piece::place(g));
  };
  const auto meet = [&] {
    if (depth <= kWarp) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  };
  /// Elements of pack g, and where the first of them in memory is: a reversed pack is stored from its far end.
  const auto count_of = [&](const Piece& piece, int g) {
    const int64_t left = piece.row < rows ? length - piece.begin - g * kSize : 0;
    return static_cast<int>(max(int64_t{0}, min(int64_t{kSize}, left)));
  };
  const auto place_of = [&](const Piece& piece, int g, int count) {
    const int64_t first = piece.begin + g * kSize;
    return piece.row * length + (reverse ? length - first - count : first);
  };
  const auto fetch = [&](const Piece& piece, int slot) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int g = p * depth + rank, count = count_of(piece, g);
      const T* const from = x + (count > 0 ? place_of(piece, g, count) : 0);
      if (packs) {
        device::copy_async_16(static_cast<uint32_t>(__cvta_generic_to_shared(at(slot, g))), from, count > 0 ? 16 : 0);
      } else {
        Packed pack{};
        for (int k = 0; k < count; ++k) pack.at[k] = from[k];
        *at(slot, g) = pack;
      }
    }
    device::copy_async_commit();
  };
  // Elements beyond a pack's count are 0: at its end, or, where it is reversed, before the others.
  const auto in_order = [&](Packed pack) {
    if (reverse) {
#pragma unroll
      for (int k = 0; k < kSize / 2; ++k) {
        const T other = pack.at[k];
        pack.at[k] = pack.at[kSize - 1 - k];
        pack.at[kSize - 1 - k] = other;
      }
    }
    return pack;
  };
  Piece next(teams);
  Total<T> total = 0;
  fetch(next, 0);
  for (int slot = 0; next.block_row < rows; slot ^= 1) {
    const Piece here = next;
    next.advance(teams, length);
    fetch(next, slot ^ 1);
    device::copy_async_wait<1>();
    meet();
    if (here.begin == 0) total = 0;
    Total<T> sum = 0, all;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const Packed pack = in_order(*at(slot, rank * kPacks + p));
#pragma unroll
      for (int k = 0; k < kSize; ++k) sum += to_total(pack.at[k]);
    }
    sum = total + scan_team(depth, rank, sum, warps, all);
    total += all;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      Packed pack = in_order(*at(slot, rank * kPacks + p));
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        sum += to_total(pack.at[k]);
        pack.at[k] = from_total<T>(sum);
      }
      *at(slot, rank * kPacks + p) = in_order(pack);
    }
    meet();
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int g = p * depth + rank, count = count_of(here, g);
      T* const to = y + (count > 0 ? place_of(here, g, count) : 0);
      const Packed pack = *at(slot, g);
      if (packs) {
        if (count > 0) *reinterpret_cast<Packed*>(to) = pack;
      } else {
        for (int k = 0; k < count; ++k) to[k] = pack.at[k];
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    scan_columns_kernel(const __grid_constant__ Rows rows, bool reverse, const T* __restrict__ x, T* __restrict__ y) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= rows.count) return;
  const int64_t step = reverse ? -rows.step : rows.step;
  int64_t at = rows.begin(row) + (reverse ? (rows.length - 1) * rows.step : 0);
  Total<T> sum = 0;
#pragma unroll 8
  for (int64_t j = 0; j < rows.length; ++j, at += step) {
    sum += to_total(x[at]);
    y[at] = from_total<T>(sum);
  }
}

template <class T>
void scan(const Rows& rows, bool reverse, const Tensor& x, const Tensor& y) {
  const DeviceScope scope(x.device());
  const T* const in = x.data<T>();
  T* const out = y.data<T>();
  if (rows.step > 1) {
    return launch("cumsum", scan_columns_kernel<T>, static_cast<unsigned>((rows.count + kThreads - 1) / kThreads),
                  kThreads, 0, scope.stream(), rows, reverse, in, out);
  }
  const bool packs = rows.length % kWide<T> == 0 && is_aligned<T, kWide<T>>(in) && is_aligned<T, kWide<T>>(out);
  constexpr int64_t kEach = ScanPiece<T>::kPacks * kWide<T>, kLeast = 8;  // threads: fewer read less than whole lines
  const auto wanted = static_cast<uint64_t>(
      std::max((rows.length + kEach - 1) / kEach, std::min((rows.length + kWide<T> - 1) / kWide<T>, kLeast)));
  constexpr unsigned kMostBlocks = 792;  // enough to fill the largest GPUs
  const Teams teams = Teams::with_depth(std::min<uint64_t>(std::bit_ceil(wanted), kThreads));
  launch("cumsum", scan_rows_kernel<T>, std::min(teams.blocks(rows.count), kMostBlocks), kThreads,
         2 * ScanPiece<T>::kSlotBytes, scope.stream(), teams, rows.count, rows.length, packs, reverse, in, out);
}

}  // namespace

void cumsum(const Tensor& x, int dim, bool reverse, const Tensor& y) {
  if (x.numel() == 0) return;
  const Rows rows(x, dim);
  const auto run = [&]<class T>(std::type_identity<T>) { scan<T>(rows, reverse, x, y); };
  if (is_half(x.dtype())) return dispatch_floating("cumsum", x.dtype(), run);
  dispatch_arithmetic_dtype("cumsum", x.dtype(), run);
}

}  // namespace halo::cuda
