// How blocks cut the planes of pooling's forward.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "../device/fast_divide.h"
#include "plane.h"

namespace halo::cuda {

/// How blocks cut planes: so many rows of outputs, of one plane unless it fits whole.
struct ForwardTiling {
  static constexpr int kLeastThreads = 64, kMostThreads = 256;
  static constexpr int64_t kBytes = 12 * 1024, kLongBytes = 48 * 1024, kMostBytes = 96 * 1024;
  int planes = 1, rows, threads;
  int groups, each;         ///< a thread has up to `each` rows of a column, of which there are so many groups
  int first_whole, whole;   ///< columns of outputs whose windows lie inside, where threads march down these
  int each_other;           ///< rows of a thread of another column
  int64_t staged, outputs;  ///< inputs and outputs of a tile, at most
  FastDivide by_whole, by_others, by_groups, by_other_groups, by_row_tiles;
  int64_t blocks;

  ForwardTiling(const PoolPlanes& p, int64_t element, bool march) {
    const PoolPlaneAxis& a = p.height;
    const int64_t row = std::max<int64_t>(p.width.input * element, 1);
    // What a tile shares with the next one is read twice: a third of it at most, and marches of four rows or more,
    // unless rows are very long.
    const int64_t wanted = std::max(3 * (a.kernel - a.stride), march ? 3 * a.stride + a.kernel : 0);
    const int64_t most = std::clamp(wanted * row, kBytes, kLongBytes) / row;
    rows = static_cast<int>(std::clamp<int64_t>((most - a.kernel) / a.stride + 1, 1, a.output));
    staged = std::min<int64_t>(int64_t{rows - 1} * a.stride + a.kernel, a.input) * p.width.input;
    if (rows == a.output) {
      planes = static_cast<int>(std::clamp<int64_t>(kBytes / element / std::max(p.inputs(), 1), 1, 64));
      if (planes > 1) staged = int64_t{planes} * p.inputs();
    }
    outputs = int64_t{planes} * rows * p.width.output;
    // A thread for 128 to 256 bytes of shared memory: 28 warps of a multiprocessor or more. With fewer it waits, with
    // many more marches are short, and finding their begins takes longer than they do.
    const int64_t pieces = std::clamp<int64_t>((staged + outputs) * element / 256, kLeastThreads, kMostThreads);
    threads = static_cast<int>(std::bit_ceil(static_cast<uint64_t>(pieces)));
    // One round of the threads: finding a place costs divisions.
    groups = static_cast<int>(std::clamp<int64_t>(threads / (int64_t{planes} * p.width.output), 1, rows));
    each = (rows + groups - 1) / groups;
    groups = (rows + each - 1) / each;
    const PoolPlaneAxis& b = p.width;
    first_whole = std::min((b.before + b.stride - 1) / b.stride, b.output);
    const int last = b.input + b.before - b.kernel;  // where a whole window may start, counted from the padding
    whole = !march || last < 0 ? 0 : std::max(std::min(last / b.stride + 1, b.output) - first_whole, 0);
    by_whole = FastDivide(static_cast<uint32_t>(std::max(whole, 1)));
    by_others = FastDivide(static_cast<uint32_t>(std::max(b.output - whole, 1)));
    by_groups = FastDivide(static_cast<uint32_t>(groups));
    each_other = whole > 0 ? 1 : each;  // they take long
    by_other_groups = FastDivide(static_cast<uint32_t>(whole > 0 ? rows : groups));
    const int64_t down = (a.output + rows - 1) / rows;
    blocks = (p.planes + planes - 1) / planes * down;
    by_row_tiles = FastDivide(static_cast<uint32_t>(down));
  }
  bool serves(int64_t element) const {
    return (staged + outputs) * element + outputs <= kMostBytes && blocks <= INT32_MAX;
  }
};

}  // namespace halo::cuda
