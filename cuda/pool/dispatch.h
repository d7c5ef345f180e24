#pragma once

#include <halo/core/dtype.h>

#include <type_traits>

namespace halo::cuda {

/// Calls f with the type of max pooling's offsets.
template <class F>
void dispatch_offsets(DType offsets, F&& f) {
  if (offsets == DType::UInt8) {
    f(std::type_identity<uint8_t>{});
  } else {
    f(std::type_identity<int64_t>{});
  }
}

/// Calls f with the element type and that of the offsets.
template <class F>
void dispatch_pool(const char* op, DType dtype, DType offsets, F&& f) {
  dispatch_floating(op, dtype, [&](auto type) { dispatch_offsets(offsets, [&](auto offset) { f(type, offset); }); });
}

}  // namespace halo::cuda
