#include "../../runtime/tensor_map.h"
#include "launch.h"

namespace halo::cuda::conv {

TensorMap plane_matrix_map(const PlaneMatrix& matrix, const void* data, bool swizzle) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  TensorMap result{};
  result.shift = static_cast<int>(address % 16 * static_cast<unsigned>(matrix.granule) / 16);
  const auto row = static_cast<cuuint64_t>(matrix.row_channels() * matrix.plane + result.shift);
  // One row alone needs no pitch, but the encoder wants a valid one.
  const auto pitch = static_cast<cuuint64_t>(matrix.period * matrix.plane);
  result.map =
      tensor_map(reinterpret_cast<const void*>(address / 16 * 16), {row, static_cast<cuuint64_t>(matrix.matrix_rows())},
                 {pitch}, {static_cast<cuuint32_t>(matrix.box_words), static_cast<cuuint32_t>(matrix.box_channels)},
                 swizzle, 16 / matrix.granule);
  return result;
}

}  // namespace halo::cuda::conv
