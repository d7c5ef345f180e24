// Boxes of rows in shared memory (row_box.h): what the host decides.
#include <halo/cuda/conv/row_box.h>

#include <gtest/gtest.h>

namespace halo::cuda::conv {
namespace {

/// Whether the granules of every row of `box` lie apart and inside, whatever the shift, and rows are as aligned as
/// those of `source`.
bool rows_lie_apart(const RowBox& box, const RowSource& source, int size) {
  const int outer = static_cast<int>(box.outer.divisor), inner = static_cast<int>(box.inner.divisor);
  const auto congruent = [&](int pitch, int64_t elements) { return (pitch - elements * size) % 16 == 0; };
  if (!congruent(box.inner_pitch, source.inner_pitch) || !congruent(box.outer_pitch, source.outer_pitch) ||
      !congruent(box.plane_pitch, source.plane_pitch)) {
    return false;
  }
  for (int shift = 0; shift < 16; shift += size) {
    int end = 0;
    for (int row = 0; row < box.rows(); ++row) {
      const int start = shift + row / inner / outer * box.plane_pitch + row / inner % outer * box.outer_pitch +
                        row % inner * box.inner_pitch;
      if (start / 16 * 16 < end) return false;
      end = (start + box.columns * size + 15) / 16 * 16;
    }
    if (end > box.bytes) return false;
  }
  return true;
}

TEST(RowBox, RowsLieApartAndKeepTheirAlignment) {
  for (const int width : {1, 2, 3, 7, 64, 255, 510, 513}) {
    for (const int height : {1, 3, 127}) {
      const RowSource source{5, height, width, int64_t{5} * height * width + 1, int64_t{height} * width, width};
      for (const int columns : {1, 2, 5, 66}) {
        for (const int size : {2, 4, 8}) {
          for (const int bank : {-1, 16, 32}) {
            RowBox box = row_box(source, 3, 2, 4, columns, size, bank);
            EXPECT_TRUE(rows_lie_apart(box, source, size)) << width << ' ' << height << ' ' << columns << ' ' << size;
            box.inner_pitch -= 48;  // more than the room between rows
            EXPECT_FALSE(rows_lie_apart(box, source, size));
          }
        }
      }
    }
  }
}

TEST(RowBox, TooLargeABoxDoesNotLookSmall) {
  // 64 channels of float32 whose taps reach over 2^24 columns: 2^32 bytes and a little.
  const RowSource line{1, 1, 1 << 25, int64_t{1} << 25, int64_t{1} << 25, int64_t{1} << 25};
  EXPECT_GT(row_box(line, 64, 1, 1, (int64_t{1} << 24) + 33, 4, 32).bytes, 1 << 28);
  // Sizes whose product 64 bits do not hold.
  const int64_t far = int64_t{1} << 28;
  const RowBox largest = row_box(RowSource{}, 64, far, far, far, 4);
  EXPECT_GT(largest.bytes, 1 << 28);
  EXPECT_GT(largest.bytes + largest.bytes, 0);
}

}  // namespace
}  // namespace halo::cuda::conv
