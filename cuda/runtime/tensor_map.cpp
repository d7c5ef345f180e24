#include "tensor_map.h"

#include <halo/core/error.h>

#include <array>

#include "../launch.h"

namespace halo::cuda {
namespace {

/// The driver's encoder, looked up at run time so that a program starts on machines without a driver.
decltype(&cuTensorMapEncodeTiled) encoder() {
  static const auto function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
          "cuTensorMapEncodeTiled");
    if (entry == nullptr)
      fail<DeviceError>("tensor_map: the driver expected to offer cuTensorMapEncodeTiled, got none");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
  }();
  return function;
}

}  // namespace

CUtensorMap tensor_map(const void* data, std::initializer_list<cuuint64_t> extents,
                       std::initializer_list<cuuint64_t> pitches, std::initializer_list<cuuint32_t> box, bool swizzle,
                       int element) {
  constexpr std::array<cuuint32_t, 5> kSteps{1, 1, 1, 1, 1};
  std::array<cuuint64_t, 5> bytes{};
  for (std::size_t i = 0; i < pitches.size(); ++i) bytes[i] = pitches.begin()[i] * static_cast<unsigned>(element);
  CUtensorMap map{};
  const CUresult status = encoder()(
      &map, element == 4 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_UINT16,
      static_cast<cuuint32_t>(extents.size()), const_cast<void*>(data), extents.begin(), bytes.data(), box.begin(),
      kSteps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) fail<InternalError>("tensor_map: the driver gave ", static_cast<int>(status));
  return map;
}

}  // namespace halo::cuda
