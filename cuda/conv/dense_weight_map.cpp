#include <halo/core/error.h>

#include "../launch.h"
#include "dense_weight_launch.h"

namespace halo::cuda::conv {
namespace {

/// The driver's encoder, looked up at run time so that a program starts on machines without a driver.
decltype(&cuTensorMapEncodeTiled) encoder() {
  static const auto function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
          "cuTensorMapEncodeTiled");
    if (entry == nullptr)
      fail<DeviceError>("dense_weight: the driver expected to offer cuTensorMapEncodeTiled, got none");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
  }();
  return function;
}

}  // namespace

TensorMap plane_matrix_map(const PlaneMatrix& matrix, const float* data) {
  TensorMap result{};
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  result.shift = static_cast<int>(address % 16 / sizeof(float));
  const auto row = static_cast<cuuint64_t>(matrix.row_channels() * matrix.plane + result.shift);
  // One row alone needs no pitch, but the encoder wants a valid one.
  const auto pitch = static_cast<cuuint64_t>(matrix.period * matrix.plane) * sizeof(float);
  const cuuint64_t extents[] = {row, static_cast<cuuint64_t>(matrix.matrix_rows())};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(matrix.box_words), static_cast<cuuint32_t>(matrix.box_channels)};
  const cuuint32_t steps[] = {1, 1};
  const CUresult status =
      encoder()(&result.map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, reinterpret_cast<void*>(address / 16 * 16), extents,
                &pitch, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    fail<InternalError>("dense_weight: cuTensorMapEncodeTiled gave ", static_cast<int>(status));
  return result;
}

}  // namespace halo::cuda::conv
