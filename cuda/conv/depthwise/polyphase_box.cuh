// Boxes of a tensor in shared memory, by phases of a stride.
#pragma once

#include <climits>
#include <cstdint>
#include <type_traits>

#include "../../device/async_copy.cuh"
#include "../../device/fast_divide.h"
#include "../../device/number.cuh"

namespace halo::cuda::conv::depthwise {

inline constexpr int kPolyColumns = 4;  ///< of a row, that a thread copies at once

/// A box of a tensor and its layout in shared memory: [phase, depth, height, width].
struct PolyBox {
  int depth, height, width;  ///< of the tensor
  int planes;                ///< the box has the same positions of so many planes, one after the other as phases are
  int rows, length;          ///< rows of all planes
  int column, pitch, slice, slab;  ///< elements from column, row, depth and phase to the next
  FastDivide box_depth, box_height;
  FastDivide depth_phases, height_phases, width_phases;
};

/// An element in shared memory: half types as float32.
template <class T>
using PolyElement = device::Accumulator<T>;

inline constexpr int kOutside = INT_MIN;

/// Where a row or a column of a box is.
struct PolyPlace {
  int tensor;  ///< kOutside where the tensor has none
  int shared;
};

/// Keeps the compiler from working out a value again where it is used.
template <class Value>
__device__ __forceinline__ Value kept(Value value) {
  asm("" : "+r"(value));
  return value;
}

/// Calls copy(row, first column, columns' places in shared memory, bits of the columns that the box has, and of those
/// that the tensor has) for the rows of a box and kPolyColumns columns of a lane, Lanes apart. A lane works out the
/// place of one row for the whole warp, and of its columns for all rows.
template <int Lanes, class RowAt, class ColumnAt, class Copy>
__device__ __forceinline__ void for_each_piece(int rows, int length, const RowAt& row_at, const ColumnAt& column_at,
                                               const Copy& copy) {
  constexpr int kTogether = 32 / Lanes;  // rows of a warp at once
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int in_warp = static_cast<int>(threadIdx.x) % 32, lane = in_warp % Lanes, sub = in_warp / Lanes;
  for (int first = static_cast<int>(threadIdx.x) / 32; first * kTogether < rows; first += warps * Lanes) {
    const PolyPlace own = row_at((first + in_warp / kTogether * warps) * kTogether + in_warp % kTogether);
    for (int c = lane; c - lane < length; c += kPolyColumns * Lanes) {
      int places[kPolyColumns];
      uint32_t exist = 0, inside = 0;
#pragma unroll
      for (int i = 0; i < kPolyColumns; ++i) {
        const PolyPlace column = column_at(c + i * Lanes);
        places[i] = kept(column.shared);
        if (c + i * Lanes < length) exist |= 1u << i;
        if (column.tensor != kOutside) inside |= 1u << i;
      }
      exist = kept(exist);
      inside = kept(inside);
      int source = sub;
      for (int row = first * kTogether; row < rows; row += warps * kTogether) {
        const PolyPlace at{__shfl_sync(0xffffffffu, own.tensor, source), __shfl_sync(0xffffffffu, own.shared, source)};
        if (kTogether == 1 || row + sub < rows) copy(at, c, places, exist, inside);
        source += kTogether;
        if (source >= 32) break;
      }
    }
  }
}

/// Calls f with the threads that copy a row of so many elements, as a constant.
template <class F>
__device__ __forceinline__ void with_lanes(int length, const F& f) {
  if (length > 96) return f(std::integral_constant<int, 32>{});
  if (length > 24) return f(std::integral_constant<int, 16>{});
  f(std::integral_constant<int, 8>{});
}

/// Copies a box that begins at the given position to shared memory, what lies outside the tensor as zeros. Complete
/// after copy_async_wait_all and a barrier.
template <class T>
__device__ __forceinline__ void load_box(const PolyBox& b, int first_d, int first_h, int first_w, const T* source,
                                         PolyElement<T>* box) {
  const auto row_at = [&](int row) {
    uint32_t h, d, phase_h, phase_d;
    const uint32_t plane = b.box_depth.divide(b.box_height.divide(static_cast<uint32_t>(row), h), d);
    const int from_h = first_h + static_cast<int>(h), from_d = first_d + static_cast<int>(d);
    const auto at_h = static_cast<int>(b.height_phases.divide(h, phase_h));
    const auto at_d = static_cast<int>(b.depth_phases.divide(d, phase_d));
    const uint32_t phase = (phase_d * b.height_phases.divisor + phase_h) * b.width_phases.divisor + plane;
    const bool exists = static_cast<unsigned>(from_h) < static_cast<unsigned>(b.height) &&
                        static_cast<unsigned>(from_d) < static_cast<unsigned>(b.depth);
    const int from = ((static_cast<int>(plane) * b.depth + from_d) * b.height + from_h) * b.width + first_w;
    return PolyPlace{exists ? from : kOutside, static_cast<int>(phase) * b.slab + at_d * b.slice + at_h * b.pitch};
  };
  const auto column_at = [&](int column) {
    uint32_t phase;
    const auto at = static_cast<int>(b.width_phases.divide(static_cast<uint32_t>(column), phase));
    const bool exists = static_cast<unsigned>(first_w + column) < static_cast<unsigned>(b.width);
    return PolyPlace{exists ? column : kOutside, static_cast<int>(phase) * b.slab + at * b.column};
  };
  with_lanes(b.length, [&](auto lanes) {
    constexpr int kLanes = decltype(lanes)::value;
    for_each_piece<kLanes>(
        b.rows, b.length, row_at, column_at,
        [&](const PolyPlace& row, int c, const int(&places)[kPolyColumns], uint32_t exist, uint32_t inside) {
          const T* const from = source + (row.tensor == kOutside ? 0 : row.tensor + c);
          PolyElement<T>* const to = box + row.shared;
          if (row.tensor == kOutside) inside = 0;
          if constexpr (sizeof(T) == sizeof(PolyElement<T>)) {
            const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(to));
#pragma unroll
            for (int i = 0; i < kPolyColumns; ++i) {
              if ((exist >> i & 1) == 0) continue;
              device::copy_async<sizeof(T)>(shared + static_cast<uint32_t>(places[i]) * sizeof(T), from + i * kLanes,
                                            (inside >> i & 1) != 0 ? static_cast<int>(sizeof(T)) : 0);
            }
          } else {
            T values[kPolyColumns];
#pragma unroll
            for (int i = 0; i < kPolyColumns; ++i) values[i] = (inside >> i & 1) != 0 ? from[i * kLanes] : T{};
#pragma unroll
            for (int i = 0; i < kPolyColumns; ++i) {
              if ((exist >> i & 1) != 0) to[places[i]] = device::to_accumulator(values[i]);
            }
          }
        });
  });
}

}  // namespace halo::cuda::conv::depthwise
