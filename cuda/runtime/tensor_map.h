// Descriptions of tensors for the copy engine.
#pragma once

#include <initializer_list>

#include <cuda.h>

namespace halo::cuda {

/// The map of data at `data` (a multiple of 16 bytes) of `element` bytes each, 4 or 2: `extents` innermost first,
/// `pitches` in elements between neighbours of every axis but the innermost (multiples of 16 bytes), and the `box`
/// fetched at once. `swizzle`: boxes of 128 byte lines have the 16-byte pieces of line i exchanged by i modulo 8.
CUtensorMap tensor_map(const void* data, std::initializer_list<cuuint64_t> extents,
                       std::initializer_list<cuuint64_t> pitches, std::initializer_list<cuuint32_t> box, bool swizzle,
                       int element = 4);

}  // namespace halo::cuda
