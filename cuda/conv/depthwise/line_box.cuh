// Boxes of lines of an activation in shared memory, in the type that sums have: every line from a 16-byte boundary on,
// whatever its width and address in memory, with zeros where there is padding.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../../device/async_copy.cuh"
#include "../../device/fast_divide.h"
#include "../../device/number.cuh"
#include "../counts.h"

namespace halo::cuda::conv::depthwise {

/// planes x extent[0] x extent[1] lines of extent[2] elements.
struct LineBox {
  int planes;
  int source[3], extent[3];
  int pitch;      ///< elements from line to line; an odd number of quads keeps eight lines in different banks
  int lanes_log;  ///< of how many threads copy a line
  int inside[2];  ///< depths and heights of the source that a box has, at most
  FastDivide by_depth, by_height;  ///< of those

  __host__ __device__ int lines() const { return planes * extent[0] * extent[1]; }
};

/// The least count from `at_least` up that is an odd number of quads.
inline int64_t odd_quads(int64_t at_least) { return (divide_up(at_least, 4) | 1) * 4; }

inline LineBox line_box(int64_t planes, const int64_t (&source)[3], const int64_t (&extent)[3], int64_t pitch) {
  LineBox b{};
  b.planes = to_int(planes);
  b.pitch = to_int(pitch);
  for (std::size_t i = 0; i < 3; ++i) {
    b.source[i] = to_int(source[i]);
    b.extent[i] = to_int(extent[i]);
  }
  for (std::size_t i = 0; i < 2; ++i) b.inside[i] = std::min(b.source[i], b.extent[i]);
  b.by_depth = FastDivide(static_cast<uint32_t>(b.inside[0]));
  b.by_height = FastDivide(static_cast<uint32_t>(b.inside[1]));
  while (b.lanes_log < 5 && 1 << b.lanes_log < std::min(b.source[2], b.extent[2])) ++b.lanes_log;
  return b;
}

/// Instructions of the threads that copy so many lines of `columns` elements, about.
inline int64_t copy_instructions(int64_t lines, int64_t columns) {
  int64_t lanes = 1;
  while (lanes < std::min<int64_t>(columns, 32)) lanes *= 2;
  return lines * lanes * (50 + 8 * divide_up(columns, lanes));
}

/// Four neighbours, from a 16-byte boundary on.
template <class E>
struct alignas(16) WindowQuad {
  E at[4];
};

/// Begins the box's copies, zeros and all; it begins at (d, h, w) of the source and has its first `planes` planes, of
/// which slice_of(plane) says where in the tensor. Whole after copy_async_wait_all and a barrier.
template <class T, class SliceOf>
__device__ __forceinline__ void load_lines(const LineBox& b, int d, int h, int w, int planes, const T* tensor,
                                           device::Accumulator<T>* box, const SliceOf& slice_of) {
  using E = device::Accumulator<T>;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int i = thread; i < b.lines() * (b.pitch / 4); i += threads) reinterpret_cast<WindowQuad<E>*>(box)[i] = {};
  __syncthreads();
  const int from_d = max(d, 0), from_h = max(h, 0), from_w = max(w, 0);
  const int to_d = min(d + b.extent[0], b.source[0]), to_h = min(h + b.extent[1], b.source[1]);
  const int across = min(w + b.extent[2], b.source[2]) - from_w;
  const int lines = planes * b.inside[0] * b.inside[1];
  const int lanes = 1 << b.lanes_log, lane = thread & (lanes - 1), step = threads >> b.lanes_log;
  // Where a line begins in the tensor, or null, and in the box.
  const auto line_of = [&](int line, E*& to) -> const T* {
    uint32_t of_d, of_h;
    const uint32_t plane = b.by_depth.divide(b.by_height.divide(static_cast<uint32_t>(line), of_h), of_d);
    const int at_d = from_d + static_cast<int>(of_d), at_h = from_h + static_cast<int>(of_h);
    to = box + ((static_cast<int>(plane) * b.extent[0] + at_d - d) * b.extent[1] + at_h - h) * b.pitch + from_w - w;
    if (line >= lines || at_d >= to_d || at_h >= to_h) return nullptr;
    return tensor + ((slice_of(static_cast<int>(plane)) * b.source[0] + at_d) * b.source[1] + at_h) * b.source[2] +
           from_w;
  };
  if constexpr (sizeof(T) == sizeof(E)) {
    for (int line = thread >> b.lanes_log; line < lines; line += step) {
      E* to;
      const T* const from = line_of(line, to);
      const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(to));
      for (int c = lane; from != nullptr && c < across; c += lanes) {
        device::copy_async<sizeof(T)>(shared + static_cast<uint32_t>(c) * sizeof(T), from + c, sizeof(T));
      }
    }
  } else {  // several loads at once: of short lines of several, of a long line
    constexpr int kLines = 4, kPieces = 8;
    if (across <= lanes) {
      for (int line = thread >> b.lanes_log; line < lines; line += kLines * step) {
        T values[kLines];
        E* to[kLines];
#pragma unroll
        for (int i = 0; i < kLines; ++i) {
          const T* const from = line_of(line + i * step, to[i]);
          if (from == nullptr || lane >= across) to[i] = nullptr;
          if (to[i] != nullptr) values[i] = from[lane];
        }
#pragma unroll
        for (int i = 0; i < kLines; ++i) {
          if (to[i] != nullptr) to[i][lane] = device::to_accumulator(values[i]);
        }
      }
      return;
    }
    for (int line = thread >> b.lanes_log; line < lines; line += step) {
      E* to;
      const T* const from = line_of(line, to);
      for (int c = lane; from != nullptr && c < across; c += kPieces * lanes) {
        T values[kPieces];
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          if (c + i * lanes < across) values[i] = from[c + i * lanes];
        }
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          if (c + i * lanes < across) to[c + i * lanes] = device::to_accumulator(values[i]);
        }
      }
    }
  }
}

}  // namespace halo::cuda::conv::depthwise
