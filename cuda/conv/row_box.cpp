#include "row_box.h"

#include <algorithm>

namespace halo::cuda::conv {
namespace {

constexpr int64_t kGranule = 16;
constexpr int64_t kBankCycle = 128;
/// What larger sizes count as: beyond any shared memory, and two boxes of it still fit an int.
constexpr int64_t kTooLarge = int64_t{1} << 29;

/// The least number from `least` up that is `residue` modulo `modulus`.
int64_t congruent(int64_t least, int64_t residue, int64_t modulus) {
  return least + ((residue - least) % modulus + modulus) % modulus;
}

}  // namespace

RowBox row_box(const RowSource& source, int64_t planes, int64_t outer, int64_t inner, int64_t columns, int element_size,
               int bank, int line) {
  const int64_t size = element_size;
  RowBox box;
  box.planes = static_cast<int>(planes);
  box.columns = static_cast<int>(columns);
  box.outer = FastDivide(static_cast<uint32_t>(outer));
  box.inner = FastDivide(static_cast<uint32_t>(inner));
  // The granules of one row must not reach into the next.
  const int64_t row = std::min(columns * size + 2 * (kGranule - 1), kTooLarge);
  const int64_t inner_pitch = congruent(row, source.inner_pitch * size, line);
  const int64_t rows = std::min((inner - 1) * inner_pitch + row, kTooLarge);
  const int64_t outer_pitch = congruent(rows, source.outer_pitch * size, line);
  const int64_t plane = std::min((outer - 1) * outer_pitch + rows, kTooLarge);
  const int64_t distance = source.plane_pitch * size;
  const int64_t plane_pitch =
      bank < 0 ? congruent(plane, distance, line) : congruent(plane, bank + distance % kGranule, kBankCycle);
  box.inner_pitch = static_cast<int>(inner_pitch);
  box.outer_pitch = static_cast<int>(outer_pitch);
  box.plane_pitch = static_cast<int>(plane_pitch);
  box.bytes = static_cast<int>(std::min(congruent((planes - 1) * plane_pitch + plane + line, 0, line), kTooLarge));
  return box;
}

}  // namespace halo::cuda::conv
