// Operands of kernels that may be absent.
#pragma once

#include <halo/core/tensor.h>

namespace halo::cuda {

/// The elements of `t`; null where it is undefined.
template <class T>
T* data_or_null(const Tensor& t) {
  return t.defined() ? t.data<T>() : nullptr;
}
inline void* data_or_null(const Tensor& t) { return t.defined() ? t.data() : nullptr; }

}  // namespace halo::cuda
