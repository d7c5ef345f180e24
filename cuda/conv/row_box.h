// Boxes of rows of an activation in shared memory, the half that the host knows. row_box.cuh copies them.
#pragma once

#include <cstdint>

#include "../device/fast_divide.h"

namespace halo::cuda::conv {

inline constexpr int kBoxLine = 128;

/// An activation as rows: planes of outer x inner rows. Pitches in elements.
struct RowSource {
  int outer = 1, inner = 1, width = 1;
  int64_t plane_pitch = 0, outer_pitch = 0, inner_pitch = 0;
  int64_t elements = 0;  ///< of the whole tensor: nothing behind them is read
};

/// planes x outer x inner rows of `columns` elements in shared memory. The pitches (bytes) are congruent to those of
/// the source modulo 16, so that with one shift of the whole box every row is as far from a 16-byte boundary as it is
/// in memory: rows of any width and alignment arrive by whole granules.
struct RowBox {
  int planes = 0, columns = 0;
  FastDivide outer, inner;
  int plane_pitch = 0, outer_pitch = 0, inner_pitch = 0;
  int bytes = 0;  ///< a multiple of 16, the shift included; 2^29 where it would be more

  int rows() const { return planes * static_cast<int>(outer.divisor * inner.divisor); }
};

/// `line`: modulo how many bytes pitches are congruent; a multiple of 16. The copy engine is a tenth faster where
/// shared and global addresses are congruent modulo kBoxLine. `bank`: bytes modulo 128 by which one plane lies behind
/// the last (up to 15 more), or -1 where that does not matter.
RowBox row_box(const RowSource& source, int64_t planes, int64_t outer, int64_t inner, int64_t columns, int element_size,
               int bank = -1, int line = 16);

}  // namespace halo::cuda::conv
