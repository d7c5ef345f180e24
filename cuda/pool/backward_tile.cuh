// How blocks cut the inputs of pooling's backward, and which windows lie over them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../device/fast_divide.h"
#include "plane.h"

namespace halo::cuda {

/// Windows over one input of an axis, at most.
HALO_HOST_DEVICE inline int reach_of(const PoolPlaneAxis& a) { return (a.kernel + a.stride - 1) / a.stride; }

/// The inputs of an axis that lie in the same place to the windows' starts are a cell, `stride` of them: window s
/// starts at cell s, and the windows over an input of that cell are s, s - 1, ...
HALO_HOST_DEVICE inline int cell_of(const PoolPlaneAxis& a, int i) { return (i + a.before) / a.stride; }
inline int cells_of(const PoolPlaneAxis& a) { return cell_of(a, a.input - 1) - cell_of(a, 0) + 1; }

/// Threads of a block: half types, with twice as many elements in the same memory, in smaller blocks.
template <class T>
inline constexpr int kBackwardThreads = sizeof(T) == 2 ? 64 : 128;

/// How blocks cut planes: so many cells of rows, of one plane unless it fits whole.
struct BackwardTiling {
  static constexpr int64_t kBytes = 200, kMostBytes = 96 * 1024;  ///< of inputs a thread; of all in shared memory
  int planes = 1, cells;                                          ///< of a tile
  int rows;                                                       ///< of inputs, at most
  int window_rows;                                                ///< over them, at most
  int first_cell, reach;                                          ///< of a plane; of its height
  FastDivide by_tiles, by_columns, by_kernel, by_phase_rows, by_phase_columns;
  int64_t blocks;

  BackwardTiling(const PoolPlanes& p, std::size_t element, int threads) {
    const int64_t most = kBytes * threads / static_cast<int64_t>(element);
    const PoolPlaneAxis& a = p.height;
    first_cell = cell_of(a, 0);
    reach = reach_of(a);
    const int all = cells_of(a);
    cells = static_cast<int>(std::clamp<int64_t>(most / (int64_t{p.width.input} * a.stride), 1, all));
    if (cells == all) planes = static_cast<int>(std::clamp<int64_t>(most / p.inputs(), 1, 64));
    rows = std::min(cells * a.stride, a.input);
    window_rows = planes > 1 ? a.output : std::min(cells + reach_of(a) - 1, a.output);
    by_columns = FastDivide(static_cast<uint32_t>(p.width.input));
    by_kernel = FastDivide(static_cast<uint32_t>(p.width.kernel));
    const auto phase = [](int windows, int apart) {
      return FastDivide(static_cast<uint32_t>((windows + apart - 1) / apart));
    };
    by_phase_rows = phase(window_rows, reach_of(a));
    by_phase_columns = phase(p.width.output, reach_of(p.width));
    const int64_t down = (all + cells - 1) / cells;
    blocks = (p.planes + planes - 1) / planes * down;
    by_tiles = FastDivide(static_cast<uint32_t>(down));
  }
  int64_t inputs(const PoolPlanes& p) const { return int64_t{planes} * rows * p.width.input; }
  int64_t outputs(const PoolPlanes& p) const { return int64_t{planes} * window_rows * p.width.output; }
};

/// Shared memory, taken piece by piece.
class SharedPieces {
 public:
  int take(int64_t bytes, int64_t aligned = 16) {
    const int64_t at = (end_ + aligned - 1) / aligned * aligned;
    end_ = std::min((at + bytes + 15) / 16 * 16, kMost);
    return static_cast<int>(at);
  }
  int end() const { return static_cast<int>(end_); }

 private:
  static constexpr int64_t kMost = 1 << 30;  // more than there is
  int64_t end_ = 0;
};

/// What a block works on: rows top ... top + rows - 1, from cell `cell` on, of `planes` planes.
struct BackwardTile {
  int64_t first_plane;
  int planes, cell, top, rows;
  int first_window, window_rows;  ///< the windows over them
  __device__ BackwardTile(const PoolPlanes& p, const BackwardTiling& t) {
    uint32_t down;
    first_plane = int64_t{t.by_tiles.divide(blockIdx.x, down)} * t.planes;
    cell = static_cast<int>(down) * t.cells + t.first_cell;
    planes = static_cast<int>(min(int64_t{t.planes}, p.planes - first_plane));
    top = max(p.height.start(cell), 0);
    rows = min(p.height.start(cell + t.cells), p.height.input) - top;
    const bool whole = t.planes > 1;
    first_window = whole ? 0 : max(cell - t.reach + 1, 0);
    window_rows = whole ? p.height.output : max(min(cell + t.cells, p.height.output) - first_window, 0);
  }
  /// Its first window, counted over all, how many there are, and how many behind them.
  __device__ int64_t begin(const PoolPlanes& p) const {
    return first_plane * p.outputs() + first_window * p.width.output;
  }
  __device__ int count(const PoolPlanes& p) const { return planes * window_rows * p.width.output; }
  __device__ int64_t behind(const PoolPlanes& p) const { return p.planes * p.outputs() - begin(p) - count(p); }
};

}  // namespace halo::cuda
