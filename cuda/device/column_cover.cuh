// Elementwise kernels over [rows, columns] with operands a column, and sums over rows on the side: a thread takes four
// columns and walks down the rows of its block.
#pragma once

#include "map.cuh"
#include "shares.h"

namespace halo::cuda {

/// How a block's threads and the grid cover [rows, columns]: `lanes` groups of four columns, rows in `parts`.
struct ColumnCover {
  int64_t rows, columns;
  int lanes, parts;
  bool packs;
  Shares shares;  ///< of the rows

  ColumnCover(int64_t row_count, int64_t column_count, bool packs_fit, int64_t most_parts = 1024)
      : rows(row_count), columns(column_count) {
    constexpr int64_t kRowsAThread = 16;
    const int64_t groups = (columns + kPackSize - 1) / kPackSize;
    lanes = 1;
    while (lanes < kMapThreads && lanes < groups) lanes *= 2;
    parts = static_cast<int>(std::clamp<int64_t>(rows * lanes / (kMapThreads * kRowsAThread), 1, most_parts));
    packs = packs_fit && columns % kPackSize == 0;
    shares = Shares(rows, parts);
  }
  dim3 grid() const {
    const int64_t width = int64_t{lanes} * kPackSize;
    return {static_cast<unsigned>((columns + width - 1) / width), static_cast<unsigned>(parts)};
  }

  __device__ int lane() const { return static_cast<int>(threadIdx.x) % lanes; }
  __device__ int team() const { return static_cast<int>(threadIdx.x) / lanes; }
  __device__ int64_t column() const { return (int64_t{blockIdx.x} * lanes + lane()) * kPackSize; }
  template <class T>
  __device__ Pack<T> load(const T* row) const {
    Pack<T> pack{};
    if (packs) {
      if (column() < columns) pack = *reinterpret_cast<const Pack<T>*>(row + column());
    } else {
#pragma unroll
      for (int k = 0; k < kPackSize; ++k) {
        if (column() + k < columns) pack.at[k] = row[column() + k];
      }
    }
    return pack;
  }
  template <class T>
  __device__ void store(const Pack<T>& pack, T* row) const {
    if (packs) {
      if (column() < columns) *reinterpret_cast<Pack<T>*>(row + column()) = pack;
    } else {
#pragma unroll
      for (int k = 0; k < kPackSize; ++k) {
        if (column() + k < columns) row[column() + k] = pack.at[k];
      }
    }
  }
  /// f(pack) for those of x in the rows of this thread, kBatch of them in flight.
  template <int kBatch, class T, class F>
  __device__ __forceinline__ void each_pack(const T* x, F&& f) const {
    const int64_t begin = shares.begin(blockIdx.y) + team(), end = shares.begin(blockIdx.y + 1);
    const int64_t step = kMapThreads / lanes;
    for (int64_t row = begin; row < end; row += kBatch * step) {
      Pack<T> batch[kBatch];
      const auto at = [&](int u) { return x + min(row + u * step, end - 1) * columns; };
      if (packs && column() < columns) {
#pragma unroll
        for (int u = 0; u < kBatch; ++u) batch[u] = *reinterpret_cast<const Pack<T>*>(at(u) + column());
      } else {
#pragma unroll
        for (int u = 0; u < kBatch; ++u) batch[u] = load(at(u));
      }
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        if (row + u * step < end) f(batch[u]);  // not a break, behind which the loads would wait
      }
    }
  }
  /// f(offset) for the rows of this thread, kUnroll of them in flight.
  template <int kUnroll = 2, class F>
  __device__ void each_row(F&& f) const {
    const int64_t begin = shares.begin(blockIdx.y), end = shares.begin(blockIdx.y + 1);
#pragma unroll(kUnroll)
    for (int64_t row = begin + team(); row < end; row += kMapThreads / lanes) f(row * columns);
  }
};

/// Adds, in a fixed order, what the threads of a block have summed in their columns, and stores it in the block's row
/// of `partials` [parts, columns]. All threads of the block call it; `shared` holds kMapThreads packs.
template <class T>
__device__ void store_column_sums(const ColumnCover& cover, Pack<T> sum, Pack<T>* shared, T* partials) {
  __syncthreads();  // an earlier sum may still be read
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (cover.team() > 0) return;
  for (int other = cover.lanes; other < kMapThreads; other += cover.lanes) {
#pragma unroll
    for (int k = 0; k < kPackSize; ++k) sum.at[k] += shared[threadIdx.x + other].at[k];
  }
  cover.store(sum, partials + blockIdx.y * cover.columns);
}

}  // namespace halo::cuda
