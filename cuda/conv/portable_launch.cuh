// From a shape's number to its instance of the portable kernels.
#pragma once

#include <utility>

#include "../launch.h"
#include "portable_tile.cuh"

namespace halo::cuda::conv {

/// Calls f with the tile of `shape` as its template argument.
template <int Products, class F>
void with_portable_tile(int shape, const F& f) {
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    (void)((static_cast<std::size_t>(shape) == I && (f.template operator()<PortableTile<Products, I>>(), true)) || ...);
  }
  (std::make_index_sequence<std::size(kPortableShapes)>());
}

}  // namespace halo::cuda::conv
