// Walking a dense tensor along one axis: the lines are taken in blocks of neighbours, so that memory is read in order
// whatever the axis.
#pragma once

#include <halo/core/parallel.h>
#include <halo/core/tensor.h>

#include <algorithm>

namespace halo::cpu {

/// Lines that are neighbours in memory: element j of line i is at first + j * stride + i.
struct ColumnBlock {
  int64_t first;   ///< offset of element 0 of line 0
  int64_t stride;  ///< between elements of a line
  int64_t length;  ///< elements of a line
  int64_t width;   ///< lines, at most kWidth
  int64_t line;    ///< number of line 0 in the row-major order of the other axes

  static constexpr int64_t kWidth = 32;
};

/// Calls f(block) for all lines of `t` along axis `dim`, on several threads.
template <class F>
void for_each_column_block(const Tensor& t, int dim, F f) {
  int64_t outer = 1, inner = 1;
  for (int axis = 0; axis < dim; ++axis) outer *= t.shape()[axis];
  for (int axis = dim + 1; axis < t.rank(); ++axis) inner *= t.shape()[axis];
  const int64_t length = t.shape()[dim], blocks = (inner + ColumnBlock::kWidth - 1) / ColumnBlock::kWidth;
  const int64_t elements = std::max<int64_t>(1, length) * std::min(ColumnBlock::kWidth, std::max<int64_t>(1, inner));
  parallel_for(outer * blocks, std::max<int64_t>(1, 4096 / elements), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / blocks, column = task % blocks * ColumnBlock::kWidth;
      f(ColumnBlock{.first = row * length * inner + column,
                    .stride = inner,
                    .length = length,
                    .width = std::min(ColumnBlock::kWidth, inner - column),
                    .line = row * inner + column});
    }
  });
}

}  // namespace halo::cpu
