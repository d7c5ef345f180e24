#include <halo/core/strided.h>

#include "../device/map.cuh"
#include "transpose.h"

namespace halo::cuda {
namespace {

constexpr int kLanes = 32, kRows = 8;  // a block's threads
constexpr int kTile = 64;              // edge of what it moves: 16 elements a thread are in flight

/// One plane of each tensor: `columns` with steps of 1 in the target, `rows` with steps of 1 in the source.
struct Planes {
  int64_t rows, columns;
  int64_t target_row, source_column;  ///< steps
  Divide row_tiles, column_tiles;
  Walk<2> others;  ///< where the planes begin
};

template <class T>
__global__ void __launch_bounds__(kLanes* kRows)
    transpose_kernel(const __grid_constant__ Planes p, const T* source, T* target) {
  __shared__ T tile[kTile][kTile + 1];
  int64_t plane = blockIdx.x;
  const int64_t first_column = p.column_tiles.split(plane) * kTile, first_row = p.row_tiles.split(plane) * kTile;
  int64_t at[2];
  p.others.locate(plane, at);
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const T* const from = source + at[1] + first_row + first_column * p.source_column;
  T* const to = target + at[0] + first_row * p.target_row + first_column;
  const int rows = static_cast<int>(min(p.rows - first_row, int64_t{kTile}));
  const int columns = static_cast<int>(min(p.columns - first_column, int64_t{kTile}));
#pragma unroll
  for (int j = 0; j < kTile; j += kRows) {
#pragma unroll
    for (int i = 0; i < kTile; i += kLanes) {
      if (x + i < rows && y + j < columns) tile[y + j][x + i] = from[x + i + (y + j) * p.source_column];
    }
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kTile; j += kRows) {
#pragma unroll
    for (int i = 0; i < kTile; i += kLanes) {
      if (y + j < rows && x + i < columns) to[(y + j) * p.target_row + x + i] = tile[x + i][y + j];
    }
  }
}

int64_t tiles(int64_t extent) { return (extent + kTile - 1) / kTile; }

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
  const int64_t row_tiles = tiles(loop.shape[across]), column_tiles = tiles(loop.shape[last]);
  const int64_t blocks = row_tiles * column_tiles * others.numel();
  if (blocks > INT32_MAX) return false;
  const Planes planes{loop.shape[across],    loop.shape[last],          loop.strides[0][across],
                      loop.strides[1][last], Divide(row_tiles, blocks), Divide(column_tiles, blocks),
                      Walk<2>(others)};
  dispatch_size(source.dtype(), [&]<class T>(std::type_identity<T>) {
    const DeviceScope scope(target.device());
    launch("copy transposed", transpose_kernel<T>, static_cast<unsigned>(blocks), dim3(kLanes, kRows), 0,
           scope.stream(), planes, static_cast<const T*>(source.data()), static_cast<T*>(target.data()));
  });
  return true;
}

}  // namespace halo::cuda
