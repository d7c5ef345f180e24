#include <halo/core/strided.h>

#include "../device/async_copy.cuh"
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

/// A block's tile of kEdge by kEdge elements.
template <class T, int kEdge>
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

constexpr int kElementEdge = 64;  // 16 elements a thread are in flight

/// An element at a time, wherever lines begin.
template <class T>
__global__ void __launch_bounds__(kThreads)
    transpose_elements_kernel(const __grid_constant__ Planes p, const T* source, T* target) {
  constexpr int kEdge = kElementEdge, kRows = kThreads / kWarp;
  __shared__ T shared[kEdge][kEdge + 1];
  const Tile<T, kEdge> tile(p, source, target);
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

/// The lines of a tile of packs in shared memory, one for each of kEdge columns; they are as far apart as lets a warp
/// read across them.
template <class T>
struct Lines {
  static constexpr int kLineBytes = 256, kEdge = kLineBytes / static_cast<int>(sizeof(T)), kSize = kWide<T>;
  static constexpr int kPitch = kLineBytes + device::kGranule;
  static constexpr int kPacks = kLineBytes / device::kGranule;  // of a line
  static constexpr int kBytes = kEdge * kPitch + kEdge / kSize * device::kGranule;

  __device__ static int line(int column) { return column * kPitch + column / kSize * device::kGranule; }
};

/// 16 bytes at a time: lines of both tensors are whole packs.
template <class T>
__global__ void __launch_bounds__(kThreads)
    transpose_packs_kernel(const __grid_constant__ Planes p, const T* source, T* target) {
  using Lines = Lines<T>;
  constexpr int kSize = Lines::kSize, kPacks = Lines::kPacks;
  extern __shared__ __align__(16) unsigned char shared[];
  const Tile<T, Lines::kEdge> tile(p, source, target);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int from = thread % kPacks * kSize;
#pragma unroll 8
  for (int column = thread / kPacks; column < tile.columns; column += kThreads / kPacks) {
    if (from < tile.rows) {
      device::copy_async_16(address + Lines::line(column) + from * static_cast<int>(sizeof(T)),
                            tile.from + column * p.source_column + from, device::kGranule);
    }
  }
  device::copy_async_wait_all();
  __syncthreads();
  constexpr int kAcross = 8, kHalves = kPacks / kAcross;  // a warp: 8 packs of 4 rows
  const int column = (lane % kAcross + warp % kHalves * kAcross) * kSize;
  if (column >= tile.columns) return;
#pragma unroll 2
  for (int row = warp / kHalves * (kWarp / kAcross) + lane / kAcross; row < tile.rows; row += kThreads / kPacks) {
    Pack<T, kSize> pack;
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      pack.at[k] = *reinterpret_cast<const T*>(shared + Lines::line(column) + k * Lines::kPitch +
                                               row * static_cast<int>(sizeof(T)));
    }
    *reinterpret_cast<Pack<T, kSize>*>(tile.to + row * p.target_row + column) = pack;
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
    const auto whole = [](int64_t elements) { return elements % kWide<T> == 0; };
    // Wider elements go faster one by one.
    bool packs = sizeof(T) <= 2 && is_aligned<T, kWide<T>>(from) && is_aligned<T, kWide<T>>(to) &&
                 whole(loop.shape[across]) && whole(loop.shape[last]) && whole(loop.strides[0][across]) &&
                 whole(loop.strides[1][last]);
    for (const Shape& strides : others.strides) {
      for (const int64_t stride : strides) packs = packs && (others.numel() == 1 || whole(stride));
    }
    const int64_t edge = packs ? Lines<T>::kEdge : kElementEdge;
    const int64_t row_tiles = (loop.shape[across] + edge - 1) / edge,
                  column_tiles = (loop.shape[last] + edge - 1) / edge;
    const int64_t blocks = row_tiles * column_tiles * others.numel();
    if (blocks > INT32_MAX) return false;
    const Planes planes{loop.shape[across],    loop.shape[last],          loop.strides[0][across],
                        loop.strides[1][last], Divide(row_tiles, blocks), Divide(column_tiles, blocks),
                        Walk<2>(others)};
    const DeviceScope scope(target.device());
    launch("copy transposed", packs ? transpose_packs_kernel<T> : transpose_elements_kernel<T>,
           static_cast<unsigned>(blocks), kThreads, packs ? Lines<T>::kBytes : 0, scope.stream(), planes, from, to);
    return true;
  });
}

}  // namespace halo::cuda
