// The storage types of kernels for few channels.
#pragma once

#include <halo/core/dtype.h>

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

}  // namespace halo::cuda::conv
