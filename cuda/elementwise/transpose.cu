#include <halo/core/strided.h>

#include "../device/map.cuh"
#include "transpose.h"

namespace halo::cuda {
namespace {

constexpr int kThreads = 256, kWarp = 32;

/// One plane of each tensor: `columns` with steps of 1 in the target, `rows` with steps of 1 in the source.
struct Planes {
  int64_t rows, columns;
  int64_t target_row, source_column;  ///< steps
  Divide row_tiles, column_tiles;
  Walk<2> others;  ///< where the planes begin
};

constexpr int kTile = 64 * 64;  ///< elements: 16 a thread are in flight

/// A block's tile.
template <class T, int kColumns>
struct Tile {
  static constexpr int kRows = kTile / kColumns;
  const T* from;
  T* to;
  int rows, columns;
  __device__ Tile(const Planes& p, const T* source, T* target) {
    int64_t plane = blockIdx.x;
    const int64_t first_column = p.column_tiles.split(plane) * kColumns, first_row = p.row_tiles.split(plane) * kRows;
    int64_t at[2];
    p.others.locate(plane, at);
    from = source + at[1] + first_row + first_column * p.source_column;
    to = target + at[0] + first_row * p.target_row + first_column;
    rows = static_cast<int>(min(p.rows - first_row, int64_t{kRows}));
    columns = static_cast<int>(min(p.columns - first_column, int64_t{kColumns}));
  }
};

/// An element at a time, wherever lines begin.
template <class T>
__global__ void __launch_bounds__(kThreads)
    transpose_elements_kernel(const __grid_constant__ Planes p, const T* source, T* target) {
  constexpr int kColumns = 64, kRows = Tile<T, kColumns>::kRows, kWarps = kThreads / kWarp;
  __shared__ T shared[kColumns][kRows + 1];
  const Tile<T, kColumns> tile(p, source, target);
  const int x = static_cast<int>(threadIdx.x) % kWarp, y = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int j = 0; j < kColumns; j += kWarps) {
#pragma unroll
    for (int i = 0; i < kRows; i += kWarp) {
      if (x + i < tile.rows && y + j < tile.columns) {
        shared[y + j][x + i] = tile.from[x + i + (y + j) * p.source_column];
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kRows; j += kWarps) {
#pragma unroll
    for (int i = 0; i < kColumns; i += kWarp) {
      if (y + j < tile.rows && x + i < tile.columns) tile.to[(y + j) * p.target_row + x + i] = shared[x + i][y + j];
    }
  }
}

/// Two columns of 2-byte elements at a time, which are neighbours in the target and whose lines begin anywhere.
template <class T, int kColumns>
__global__ void __launch_bounds__(kThreads)
    transpose_pairs_kernel(const __grid_constant__ Planes p, const T* source, T* target) {
  constexpr int kRows = Tile<T, kColumns>::kRows, kPairs = kColumns / 2, kWarps = kThreads / kWarp;
  constexpr int kLines = kWarp / kPairs;  // of the target, that a warp writes at once
  __shared__ uint32_t shared[kPairs][kRows + kLines];
  const Tile<T, kColumns> tile(p, source, target);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  constexpr int kEach = kPairs / kWarps, kParts = kRows / kWarp;
  const T* from = tile.from + lane + 2 * warp * p.source_column;
  T first[kEach][kParts], second[kEach][kParts];  // all are on their way together
#pragma unroll
  for (int j = 0; j < kEach; ++j, from += 2 * kWarps * p.source_column) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const bool there = lane + i * kWarp < tile.rows && 2 * (j * kWarps + warp) < tile.columns;
      first[j][i] = there ? from[i * kWarp] : T{};
      second[j][i] = there ? from[i * kWarp + p.source_column] : T{};
    }
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      shared[j * kWarps + warp][lane + i * kWarp] = first[j][i] | static_cast<uint32_t>(second[j][i]) << 16;
    }
  }
  __syncthreads();
  const int pair = lane % kPairs, line = warp * kLines + lane / kPairs;
  if (2 * pair >= tile.columns) return;
  uint32_t* to = reinterpret_cast<uint32_t*>(tile.to + line * p.target_row) + pair;
#pragma unroll
  for (int row = 0; row < kRows; row += kWarps * kLines, to += kWarps * kLines / 2 * p.target_row) {
    if (row + line < tile.rows) *to = shared[pair][row + line];
  }
}

}  // namespace

bool copy_transposed(const Tensor& source, const Tensor& target) {
  const StridedLoop<2> loop(target.shape(), {target.strides(), source.strides()});
  const int last = loop.shape.rank() - 1;
  int across = -1;  // the axis along which the source is contiguous
  for (int axis = 0; axis < last; ++axis) {
    if (loop.strides[1][axis] == 1) across = axis;
  }
  constexpr int64_t kWorthwhile = 8;  // shorter axes leave the tiles mostly empty
  if (across < 0 || loop.strides[0][last] != 1 || loop.strides[1][last] == 1 || loop.shape[last] < kWorthwhile ||
      loop.shape[across] < kWorthwhile) {
    return false;
  }
  StridedLoop<2> others = loop;
  for (Shape* list : {&others.shape, &others.strides[0], &others.strides[1]}) {
    list->erase(last);
    list->erase(across);
  }
  if (others.shape.empty()) others = StridedLoop<2>({}, {Shape{}, Shape{}});
  return dispatch_size(source.dtype(), [&]<class T>(std::type_identity<T>) {
    const auto* const from = static_cast<const T*>(source.data());
    T* const to = static_cast<T*>(target.data());
    const int64_t rows = loop.shape[across], columns = loop.shape[last];
    const auto tiles = [](int64_t extent, int64_t edge) { return (extent + edge - 1) / edge; };
    auto kernel = transpose_elements_kernel<T>;
    int64_t edge = 64;
    if constexpr (sizeof(T) == 2) {
      bool pairs = is_aligned<T, 2>(to) && columns % 2 == 0 && loop.strides[0][across] % 2 == 0;
      for (const int64_t stride : others.strides[0]) pairs = pairs && (others.numel() == 1 || stride % 2 == 0);
      if (pairs && tiles(columns, 32) * 32 < tiles(columns, 64) * 64) edge = 32;  // fewer columns that are empty
      if (pairs) kernel = edge == 32 ? transpose_pairs_kernel<T, 32> : transpose_pairs_kernel<T, 64>;
    }
    const int64_t row_tiles = tiles(rows, kTile / edge), column_tiles = tiles(columns, edge);
    const int64_t blocks = row_tiles * column_tiles * others.numel();
    if (blocks > INT32_MAX) return false;
    const Planes planes{rows,
                        columns,
                        loop.strides[0][across],
                        loop.strides[1][last],
                        Divide(row_tiles, blocks),
                        Divide(column_tiles, blocks),
                        Walk<2>(others)};
    const DeviceScope scope(target.device());
    launch("copy transposed", kernel, static_cast<unsigned>(blocks), kThreads, 0, scope.stream(), planes, from, to);
    return true;
  });
}

}  // namespace halo::cuda
