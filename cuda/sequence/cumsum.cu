// Running sums: a team of threads a row, which it scans in pieces; rows that lie side by side go one a thread.
#include <halo/ops/binary_functors.h>
#include <halo/ops/cumsum_backend.h>

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

/// The sum of `value` over the threads of the team before this one, and over the whole team. All threads of the block
/// call it; `warps` is shared memory for a value a warp.
template <class Value>
__device__ void scan_team(int depth, int rank, Value value, Value* warps, Value& before, Value& all) {
  constexpr int kWarp = Teams::kWarp;
  const int within = min(depth, kWarp), thread = static_cast<int>(threadIdx.x);
  Value sum = value;
  for (int step = 1; step < within; step *= 2) {
    const Value other = __shfl_up_sync(~0u, sum, step, within);
    if (rank % within >= step) sum += other;
  }
  before = sum - value;
  if constexpr (std::is_floating_point_v<Value>) {  // without the rounding, and the NaN, of a difference
    before = __shfl_up_sync(~0u, sum, 1, within);
    if (rank % within == 0) before = 0;
  }
  all = __shfl_sync(~0u, sum, within - 1, within);
  if (depth <= kWarp) return;
  __syncthreads();  // an earlier scan may still be read
  if (thread % kWarp == 0) warps[thread / kWarp] = all;
  __syncthreads();
  const int first = thread / depth * (depth / kWarp);
  Value earlier = 0;
  all = 0;
  for (int w = first; w < first + depth / kWarp; ++w) {
    if (w == thread / kWarp) earlier = all;
    all += warps[w];
  }
  before += earlier;
}

/// 16 bytes of a row for each thread of a team: its next step of the scan.
template <class T>
struct ScanPiece {
  static constexpr int kSize = kWide<T>;
  int64_t block_row, row, piece = 0;  ///< piece: where the team's begins

  __device__ explicit ScanPiece(const Teams& teams)
      : block_row(int64_t{blockIdx.x} * teams.lanes), row(block_row + teams.lane()) {}
  __device__ void advance(const Teams& teams, int64_t length) {
    piece += int64_t{teams.depth} * kSize;
    if (piece < length) return;
    const int64_t step = int64_t{gridDim.x} * teams.lanes;
    piece = 0;
    block_row += step;
    row += step;
  }
};

/// A block's teams march through the rows; the next pieces are on their way while one is summed.
template <class T>
__global__ void __launch_bounds__(kThreads)
    scan_rows_kernel(const __grid_constant__ Teams teams, int64_t rows, int64_t length, bool packs, bool reverse,
                     const T* x, T* y) {
  constexpr int kSize = kWide<T>;
  using Values = Pack<T, kSize>;
  __shared__ Total<T> warps[kThreads / Teams::kWarp];
  const int rank = teams.rank();
  /// Elements that the thread has of a piece, and where the first of them in memory is: a reversed pack is stored from
  /// its far end.
  const auto count_of = [&](const ScanPiece<T>& at) {
    const int64_t left = at.row < rows ? length - at.piece - int64_t{rank} * kSize : 0;
    return static_cast<int>(max(int64_t{0}, min(int64_t{kSize}, left)));
  };
  const auto place_of = [&](const ScanPiece<T>& at, int count) {
    const int64_t first = at.piece + int64_t{rank} * kSize;
    return at.row * length + (reverse ? length - first - count : first);
  };
  const auto load = [&](const ScanPiece<T>& at) {
    const int count = count_of(at);
    const T* const from = x + place_of(at, count);
    Values pack{};
    if (packs && count > 0) return *reinterpret_cast<const Values*>(from);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      if (k < count) pack.at[k] = from[k];
    }
    return pack;
  };
  ScanPiece<T> next(teams);
  Values incoming = load(next);
  Total<T> total = 0;  // of all earlier pieces
  while (next.block_row < rows) {
    const ScanPiece<T> here = next;
    Values pack = incoming;
    next.advance(teams, length);
    incoming = load(next);
    if (here.piece == 0) total = 0;
    const int count = count_of(here);
    Total<T> sums[kSize], sum = 0;  // in the order of memory
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      const int e = reverse ? kSize - 1 - k : k;
      if (reverse) {
        if (e < count) sum += to_total(pack.at[kSize - 1 - k]);
      } else {
        if (e < count) sum += to_total(pack.at[k]);
      }
      sums[k] = sum;
    }
    Total<T> before, all;
    scan_team(teams.depth, rank, sum, warps, before, all);
    before += total;
    total += all;
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      if (reverse) {
        pack.at[kSize - 1 - k] = from_total<T>(before + sums[k]);
      } else {
        pack.at[k] = from_total<T>(before + sums[k]);
      }
    }
    T* const to = y + place_of(here, count);
    if (packs && count > 0) {
      *reinterpret_cast<Values*>(to) = pack;
    } else {
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        if (k < count) to[k] = pack.at[k];
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
  const auto wanted = static_cast<uint64_t>((rows.length + kWide<T> - 1) / kWide<T>);
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
