// Running sums: a team of threads a row, which it scans in pieces; rows that lie side by side go one a thread.
#include <halo/ops/binary_functors.h>
#include <halo/ops/cumsum_backend.h>

#include <algorithm>

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

/// A piece of a row, which a team scans at once: kPacks packs a thread, a team's threads side by side in each.
template <class T>
struct ScanPiece {
  static constexpr int kSize = kWide<T>, kPacks = std::min(32 / kSize, 8);
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
};

/// sums[p] of each thread becomes the sum of what comes before its pack p in the piece, `all` that of the piece. All
/// threads of the block call it; `warps` is shared memory for kPacks values a warp.
template <int kPacks, class Value>
__device__ __forceinline__ void scan_team(int depth, int rank, Value (&sums)[kPacks], Value* warps, Value& all) {
  const int within = min(depth, kWarp), warp = static_cast<int>(threadIdx.x) / kWarp;
  Value totals[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    Value sum = sums[p];
    for (int step = 1; step < within; step *= 2) {
      const Value other = __shfl_up_sync(~0u, sum, step, within);
      if (rank % within >= step) sum += other;
    }
    totals[p] = __shfl_sync(~0u, sum, within - 1, within);
    // Not sum - sums[p], which would have the rounding, and the NaN, of a difference.
    sum = __shfl_up_sync(~0u, sum, 1, within);
    sums[p] = rank % within == 0 ? Value(0) : sum;
  }
  all = 0;
  if (depth <= kWarp) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      sums[p] += all;
      all += totals[p];
    }
    return;
  }
  __syncthreads();  // an earlier scan may still be read
  if (rank % kWarp == 0) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) warps[warp * kPacks + p] = totals[p];
  }
  __syncthreads();
  const int of_team = depth / kWarp, first = warp / of_team * of_team;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    for (int w = first; w < first + of_team; ++w) {
      if (w == warp) sums[p] += all;
      all += warps[w * kPacks + p];
    }
  }
}

/// A block's teams march through the rows; the next pieces are on their way while one is summed.
template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    scan_rows_kernel(const __grid_constant__ Teams teams, int64_t rows, int64_t length, bool packs, bool reverse,
                     const T* x, T* y) {
  using Piece = ScanPiece<T>;
  constexpr int kSize = Piece::kSize, kPacks = Piece::kPacks;
  struct Values {
    Pack<T, kSize> at[kPacks];
  };
  __shared__ Total<T> warps[kThreads / kWarp * kPacks];
  const int rank = teams.rank();
  /// Elements of pack p, and where the first of them in memory is: a reversed pack is stored from its far end.
  const auto count_of = [&](const Piece& at, int p) {
    const int64_t left = at.row < rows ? length - at.begin - (p * teams.depth + rank) * kSize : 0;
    return static_cast<int>(max(int64_t{0}, min(int64_t{kSize}, left)));
  };
  const auto place_of = [&](const Piece& at, int p, int count) {
    const int64_t first = at.begin + (p * teams.depth + rank) * kSize;
    return at.row * length + (reverse ? length - first - count : first);
  };
  const auto load = [&](const Piece& at) {
    Values values{};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int count = count_of(at, p);
      const T* const from = x + place_of(at, p, count);
      if (packs) {
        if (count > 0) values.at[p] = *reinterpret_cast<const Pack<T, kSize>*>(from);
      } else {
#pragma unroll
        for (int k = 0; k < kSize; ++k) {
          if (k < count) values.at[p].at[k] = from[k];
        }
      }
    }
    return values;
  };
  const auto flip = [&](Values& values) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int k = 0; k < kSize / 2; ++k) {
        const T other = values.at[p].at[k];
        values.at[p].at[k] = values.at[p].at[kSize - 1 - k];
        values.at[p].at[kSize - 1 - k] = other;
      }
    }
  };
  Piece next(teams);
  Values incoming = load(next);
  Total<T> total = 0;  // of all earlier pieces
  while (next.block_row < rows) {
    const Piece here = next;
    Values values = incoming;
    next.advance(teams, length);
    incoming = load(next);
    if (here.begin == 0) total = 0;
    Total<T> before[kPacks], all;
    // Elements beyond a pack's count are 0: at its end, or, where it is reversed, before the others.
    if (reverse) flip(values);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      before[p] = 0;
#pragma unroll
      for (int k = 0; k < kSize; ++k) before[p] += to_total(values.at[p].at[k]);
    }
    scan_team(teams.depth, rank, before, warps, all);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      Total<T> sum = total + before[p];
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        sum += to_total(values.at[p].at[k]);
        values.at[p].at[k] = from_total<T>(sum);
      }
    }
    if (reverse) flip(values);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int count = count_of(here, p);
      T* const to = y + place_of(here, p, count);
      if (packs) {
        if (count > 0) *reinterpret_cast<Pack<T, kSize>*>(to) = values.at[p];
      } else {
#pragma unroll
        for (int k = 0; k < kSize; ++k) {
          if (k < count) to[k] = values.at[p].at[k];
        }
      }
    }
    total += all;
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
  constexpr unsigned kMostBlocks = 1056;  // enough to fill the largest GPUs
  const Teams teams = Teams::with_depth(std::min<uint64_t>(std::bit_ceil(wanted), kThreads));
  launch("cumsum", scan_rows_kernel<T>, std::min(teams.blocks(rows.count), kMostBlocks), kThreads, 0, scope.stream(),
         teams, rows.count, rows.length, packs, reverse, in, out);
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
