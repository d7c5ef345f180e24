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

constexpr int kEdge = 64;  ///< 16 elements a thread are in flight

/// A block's tile of kEdge by kEdge elements.
template <class T>
struct Tile {
  const T* from;
  T* to;
  int rows, columns;
  __device__ Tile(const Planes& p, const T* source, T* target) {
    int64_t plane = blockIdx.x;
    const int64_t first_column = p.column_tiles.split(plane) * kEdge, first_row = p.row_tiles.split(plane) * kEdge;
    int64_t at[2];
    p.others.locate(plane, at);
    from = source + at[1] + first_row + first_column * p.source_column;
    to = target + at[0] + first_row * p.target_row + first_column;
    rows = static_cast<int>(min(p.rows - first_row, int64_t{kEdge}));
    columns = static_cast<int>(min(p.columns - first_column, int64_t{kEdge}));
  }
};

/// An element at a time, wherever lines begin.
template <class T>
__global__ void __launch_bounds__(kThreads)
    transpose_elements_kernel(const __grid_constant__ Planes p, const T* source, T* target) {
  constexpr int kRows = kThreads / kWarp;
  __shared__ T shared[kEdge][kEdge + 1];
  const Tile<T> tile(p, source, target);
  const int x = static_cast<int>(threadIdx.x) % kWarp, y = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int j = 0; j < kEdge; j += kRows) {
#pragma unroll
    for (int i = 0; i < kEdge; i += kWarp) {
      if (x + i < tile.rows && y + j < tile.columns) {
        shared[y + j][x + i] = tile.from[x + i + (y + j) * p.source_column];
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kEdge; j += kRows) {
#pragma unroll
    for (int i = 0; i < kEdge; i += kWarp) {
      if (y + j < tile.rows && x + i < tile.columns) tile.to[(y + j) * p.target_row + x + i] = shared[x + i][y + j];
    }
  }
}

/// Two columns of 2-byte elements at a time, which are neighbours in the target and whose lines begin anywhere.
template <class T>
__global__ void __launch_bounds__(kThreads)
    transpose_pairs_kernel(const __grid_constant__ Planes p, const T* source, T* target) {
  constexpr int kPairs = kEdge / 2, kWarps = kThreads / kWarp;
  __shared__ uint32_t shared[kPairs][kEdge + 1];
  const Tile<T> tile(p, source, target);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  constexpr int kEach = kPairs / kWarps, kHalves = kEdge / kWarp;
  const T* from = tile.from + lane + 2 * warp * p.source_column;
  T first[kEach][kHalves], second[kEach][kHalves];  // all are on their way together
#pragma unroll
  for (int j = 0; j < kEach; ++j, from += 2 * kWarps * p.source_column) {
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
      const bool there = lane + i * kWarp < tile.rows && 2 * (j * kWarps + warp) < tile.columns;
      first[j][i] = there ? from[i * kWarp] : T{};
      second[j][i] = there ? from[i * kWarp + p.source_column] : T{};
    }
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
      shared[j * kWarps + warp][lane + i * kWarp] = first[j][i] | static_cast<uint32_t>(second[j][i]) << 16;
    }
  }
  __syncthreads();
  if (2 * lane >= tile.columns) return;
  uint32_t* to = reinterpret_cast<uint32_t*>(tile.to + warp * p.target_row) + lane;
#pragma unroll
  for (int row = 0; row < kEdge; row += kWarps, to += kWarps / 2 * p.target_row) {
    if (row + warp < tile.rows) *to = shared[lane][row + warp];
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
    const int64_t row_tiles = (loop.shape[across] + kEdge - 1) / kEdge,
                  column_tiles = (loop.shape[last] + kEdge - 1) / kEdge;
    const int64_t blocks = row_tiles * column_tiles * others.numel();
    if (blocks > INT32_MAX) return false;
    const Planes planes{loop.shape[across],    loop.shape[last],          loop.strides[0][across],
                        loop.strides[1][last], Divide(row_tiles, blocks), Divide(column_tiles, blocks),
                        Walk<2>(others)};
    const DeviceScope scope(target.device());
    auto kernel = transpose_elements_kernel<T>;
    if constexpr (sizeof(T) == 2) {
      bool pairs = is_aligned<T, 2>(to) && loop.shape[last] % 2 == 0 && loop.strides[0][across] % 2 == 0;
      for (const int64_t stride : others.strides[0]) pairs = pairs && (others.numel() == 1 || stride % 2 == 0);
      if (pairs) kernel = transpose_pairs_kernel<T>;
    }
    launch("copy transposed", kernel, static_cast<unsigned>(blocks), kThreads, 0, scope.stream(), planes, from, to);
    return true;
  });
}

}  // namespace halo::cuda
