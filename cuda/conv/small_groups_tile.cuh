// Shared by the kernels for small groups: the tile of one operand in shared memory, and the tensor-core product.
#pragma once

#include <cstdint>

#include "../device/async_copy.cuh"
#include "../device/number.cuh"
#include "../device/tf32_split.cuh"
#include "small_groups.h"

namespace halo::cuda::conv::small_groups {

/// sums[16 x 8] += a[16 x 8] * b[8 x 8]. Lane l holds, with g = l / 4 and t = l % 4: a (g, t), (g + 8, t), (g, t + 4),
/// (g + 8, t + 4); b (t, g), (t + 4, g); sums (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
/// PTX ISA, "Matrix fragments for mma.m16n8k8".
__device__ __forceinline__ void multiply_add(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// N operand values as the tensor core takes them: high and low parts, or themselves where they are exact in TF32.
template <int N, bool Split>
struct Operand {
  uint32_t high[N];
  uint32_t low[Split ? N : 1];

  __device__ __forceinline__ void set(int i, float value) {
    if constexpr (Split) {
      const device::Tf32Pair pair = device::split_tf32_unguarded(value);
      high[i] = pair.high;
      low[i] = pair.low;
    } else {
      high[i] = __float_as_uint(value);
    }
  }
};

/// sums[j][n] += a[j] * b[n]. The products of one tile depend on each other; those of different tiles, which stand next
/// to each other here, do not.
template <bool Split, int RowTiles, int ColumnTiles>
__device__ __forceinline__ void multiply_tiles(float (&sums)[RowTiles][ColumnTiles][4],
                                               const Operand<4, Split> (&a)[RowTiles],
                                               const Operand<2, Split> (&b)[ColumnTiles]) {
  if constexpr (Split) {
#pragma unroll
    for (int j = 0; j < RowTiles; ++j) {
#pragma unroll
      for (int n = 0; n < ColumnTiles; ++n) multiply_add(sums[j][n], a[j].low, b[n].high);
    }
#pragma unroll
    for (int j = 0; j < RowTiles; ++j) {
#pragma unroll
      for (int n = 0; n < ColumnTiles; ++n) multiply_add(sums[j][n], a[j].high, b[n].low);
    }
  }
#pragma unroll
  for (int j = 0; j < RowTiles; ++j) {
#pragma unroll
    for (int n = 0; n < ColumnTiles; ++n) multiply_add(sums[j][n], a[j].high, b[n].high);
  }
}

/// Adds the sums of a few products, which the tensor core rounds more coarsely, to the float32 sums.
template <int RowTiles, int ColumnTiles>
__device__ __forceinline__ void promote(float (&sums)[RowTiles][ColumnTiles][4],
                                        const float (&part)[RowTiles][ColumnTiles][4]) {
#pragma unroll
  for (int j = 0; j < RowTiles; ++j) {
#pragma unroll
    for (int n = 0; n < ColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[j][n][i] += part[j][n][i];
    }
  }
}

/// Where the tile of `fill_tile` lies in its operand.
template <class T>
struct TileSource {
  const T* data;   ///< channel 0 of the image and group
  int64_t plane;   ///< elements of a channel
  int channels;    ///< that exist
  int extents[3];  ///< of a channel
  int first[3];    ///< position of the tile's corner; may lie outside
  int step;        ///< of the width, see GroupTile
};

/// Whether row (c, depth, height) of the operand exists.
template <class T>
__device__ __forceinline__ bool row_exists(const TileSource<T>& source, int c, int depth, int height) {
  return c < source.channels && static_cast<unsigned>(depth) < static_cast<unsigned>(source.extents[0]) &&
         static_cast<unsigned>(height) < static_cast<unsigned>(source.extents[1]);
}

/// Word of column `u` in its row of the tile.
__device__ __forceinline__ int column_word(const GroupTile& shape, int step, int u) {
  if (step == 1) return u;
  uint32_t remainder;
  const uint32_t quotient = shape.by_step.divide(static_cast<uint32_t>(u), remainder);
  return static_cast<int>(remainder) * shape.remainder_pitch + static_cast<int>(quotient);
}

/// Four runs of 32 floats, `Apart` bytes apart in shared memory; every lane's four sources exist.
template <int Apart>
__device__ __forceinline__ void copy_runs_async(uint32_t shared, const float* from) {
  asm volatile(
      "cp.async.ca.shared.global [%0], [%1], 4;\n\t"
      "cp.async.ca.shared.global [%0+%2], [%1+128], 4;\n\t"
      "cp.async.ca.shared.global [%0+%3], [%1+256], 4;\n\t"
      "cp.async.ca.shared.global [%0+%4], [%1+384], 4;" ::"r"(shared),
      "l"(from), "n"(Apart), "n"(2 * Apart), "n"(3 * Apart)
      : "memory");
}

/// fill_tile for float32: a warp a row, four bytes a lane, asynchronous. Step: source.step if that is 1 or 2, for which
/// columns 32 apart are a constant apart in the tile; else 0.
template <int Step>
__device__ __forceinline__ void fill_rows(float* tile, const GroupTile& shape, const TileSource<float>& source,
                                          int padded_channels) {
  constexpr int kApart = Step == 0 ? 0 : 128 / (Step == 0 ? 1 : Step);  // bytes between columns u and u + 32
  const int warps = static_cast<int>(blockDim.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  // Runs of 32 columns: checked, except those from `inner` to `outer`, which lie inside the operand.
  const int lowest = -source.first[2];  // column 0 of the operand
  const int inner = lowest > 0 ? (lowest + 31) / 32 * 32 : 0;
  const int outer = min(shape.extent[2], source.extents[2] + lowest) / 32 * 32;
  const auto tile_base =
      static_cast<uint32_t>(__cvta_generic_to_shared(tile + (Step == 0 ? 0 : column_word(shape, source.step, lane))));
  const int planes = padded_channels * shape.extent[0];
  const int parts = max(1, warps / planes);  // warps that share the rows of a plane
  for (int unit = static_cast<int>(threadIdx.x / 32); unit < planes * parts; unit += warps) {
    const int part = unit % parts;
    uint32_t d;
    const int c = static_cast<int>(shape.by_depth.divide(static_cast<uint32_t>(unit / parts), d));
    const int depth = source.first[0] + static_cast<int>(d);
    const bool plane_exists =
        c < source.channels && static_cast<unsigned>(depth) < static_cast<unsigned>(source.extents[0]);
    const float* row = source.data + c * source.plane +
                       (int64_t{depth} * source.extents[1] + source.first[1] + part) * source.extents[2] +
                       source.first[2] + lane;
    uint32_t row_to =
        tile_base + static_cast<uint32_t>(c * shape.channel_pitch +
                                          (static_cast<int>(d) * shape.extent[1] + part) * shape.row_pitch) *
                        4;
    for (int h = part; h < shape.extent[1]; h += parts) {
      const bool exists =
          plane_exists && static_cast<unsigned>(source.first[1] + h) < static_cast<unsigned>(source.extents[1]);
      const float* from = row;
      uint32_t to = row_to;
      int u = lane;
      const auto copy_checked = [&](int end) {
#pragma unroll 1
        for (; u < end; u += 32, from += 32, to += kApart) {
          const bool valid = exists && static_cast<unsigned>(u - lowest) < static_cast<unsigned>(source.extents[2]);
          const uint32_t at = Step != 0 ? to : row_to + static_cast<uint32_t>(column_word(shape, source.step, u)) * 4;
          device::copy_async_4(at, from, valid);
        }
      };
      if constexpr (Step != 0) {
        if (exists) {
          copy_checked(min(inner, shape.extent[2]));
#pragma unroll 1
          for (; u + 96 < outer; u += 128, from += 128, to += 4 * kApart) copy_runs_async<kApart>(to, from);
#pragma unroll 1
          for (; u < outer; u += 32, from += 32, to += kApart) device::copy_async_4(to, from, true);
        }
      }
      copy_checked(shape.extent[2]);
      row += int64_t{parts} * source.extents[2];
      row_to += static_cast<uint32_t>(parts * shape.row_pitch) * 4;
    }
  }
}

/// fill_tile for the half types: a warp works on two rows, four runs of 32 columns each, with all loads in flight.
template <class T>
__device__ __forceinline__ void fill_converted(float* tile, const GroupTile& shape, const TileSource<T>& source,
                                               int padded_channels) {
  constexpr int kRows = 2;
  constexpr int kRuns = 4;
  const int warps = static_cast<int>(blockDim.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int rows = padded_channels * shape.extent[0] * shape.extent[1];
  for (int row0 = static_cast<int>(threadIdx.x / 32); row0 < rows; row0 += warps * kRows) {
    const T* from[kRows];
    float* to[kRows];
    bool exists[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = row0 + r * warps;
      uint32_t h, d;
      const auto c = static_cast<int>(shape.by_depth.divide(shape.by_height.divide(static_cast<uint32_t>(row), h), d));
      const int depth = source.first[0] + static_cast<int>(d);
      const int height = source.first[1] + static_cast<int>(h);
      exists[r] = row_exists(source, c, depth, height);
      from[r] = source.data + c * source.plane + (int64_t{depth} * source.extents[1] + height) * source.extents[2] +
                source.first[2];
      to[r] = row < rows ? tile + c * shape.channel_pitch +
                               (static_cast<int>(d) * shape.extent[1] + static_cast<int>(h)) * shape.row_pitch
                         : nullptr;
    }
    for (int u0 = lane; u0 < shape.extent[2]; u0 += 32 * kRuns) {
      float values[kRows][kRuns];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int k = 0; k < kRuns; ++k) {
          const int u = u0 + 32 * k;
          const bool valid = exists[r] && u < shape.extent[2] &&
                             static_cast<unsigned>(source.first[2] + u) < static_cast<unsigned>(source.extents[2]);
          values[r][k] = valid ? device::to_accumulator(from[r][u]) : 0.0f;
        }
      }
#pragma unroll
      for (int k = 0; k < kRuns; ++k) {
        const int u = u0 + 32 * k;
        if (u >= shape.extent[2]) break;
        const int word = column_word(shape, source.step, u);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          if (to[r] != nullptr) to[r][word] = values[r][k];
        }
      }
    }
  }
}

/// Copies a tile into shared memory as float32; zero outside the operand, and for channels from `source.channels` up to
/// `padded_channels`. Asynchronous for float32: the caller waits for the copies, then synchronises the block.
template <class T>
__device__ __forceinline__ void fill_tile(float* tile, const GroupTile& shape, const TileSource<T>& source,
                                          int padded_channels) {
  if constexpr (sizeof(T) == 4) {
    switch (source.step) {
      case 1: fill_rows<1>(tile, shape, source, padded_channels); break;
      case 2: fill_rows<2>(tile, shape, source, padded_channels); break;
      default: fill_rows<0>(tile, shape, source, padded_channels);
    }
  } else {
    fill_converted(tile, shape, source, padded_channels);
  }
  device::copy_async_commit();
}

}  // namespace halo::cuda::conv::small_groups
