// The storage types of kernels for few channels.
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include <type_traits>

namespace halo::cuda::conv {

/// Calls f(std::type_identity<T>) with the storage type: float, BFloat16 or Float16.
template <class F>
void dispatch_storage(DType dtype, const F& f) {
  switch (dtype) {
    case DType::Float32: return f(std::type_identity<float>{});
    case DType::BFloat16: return f(std::type_identity<BFloat16>{});
    default: return f(std::type_identity<Float16>{});
  }
}

/// Calls f(std::type_identity<T>, std::bool_constant<Split>). Split: float32 as sums of two TF32 numbers, not one.
template <class F>
void dispatch_products(const ConvConfig& config, const F& f) {
  dispatch_storage(config.dtype, [&]<class T>(std::type_identity<T> type) {
    if constexpr (sizeof(T) == 4) {
      if (config.precision == Precision::Float32) return f(type, std::true_type{});
    }
    f(type, std::false_type{});
  });
}

}  // namespace halo::cuda::conv
