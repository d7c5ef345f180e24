// Shared by the kernels for small groups: where tiles lie, and the tensor-core product.
#pragma once

#include <cstdint>

#include "../../device/number.cuh"
#include "../../device/tf32_split.cuh"
#include "../row_box.cuh"
#include "small_groups.h"

namespace halo::cuda::conv::small_groups {

/// sums[16 x 8] += a[16 x 8] * b[8 x 8], or = where First. Lane l holds, with g = l / 4 and t = l % 4: a (g, t),
/// (g + 8, t), (g, t + 4), (g + 8, t + 4); b (t, g), (t + 4, g); sums (g, 2t), (g, 2t + 1), (g + 8, 2t),
/// (g + 8, 2t + 1). PTX ISA, "Matrix fragments for mma.m16n8k8".
template <bool First = false>
__device__ __forceinline__ void multiply_add(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (First) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
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
  /// As set, but rounded to TF32 where there is one part. NaN stays.
  __device__ __forceinline__ void set_rounded(int i, float value) {
    set(i, value);
    if constexpr (!Split) high[i] = device::round_tf32(value);
  }
};

/// sums[j][n] += a[j] * b[n], or = where First. The products of one tile depend on each other; those of different
/// tiles, which stand next to each other here, do not.
template <bool First, bool Split, int RowTiles, int ColumnTiles>
__device__ __forceinline__ void multiply_tiles(float (&sums)[RowTiles][ColumnTiles][4],
                                               const Operand<4, Split> (&a)[RowTiles],
                                               const Operand<2, Split> (&b)[ColumnTiles]) {
  if constexpr (Split) {
#pragma unroll
    for (int j = 0; j < RowTiles; ++j) {
#pragma unroll
      for (int n = 0; n < ColumnTiles; ++n) multiply_add<First>(sums[j][n], a[j].low, b[n].high);
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
    for (int n = 0; n < ColumnTiles; ++n) multiply_add<First && !Split>(sums[j][n], a[j].high, b[n].high);
  }
}

template <int RowTiles, int ColumnTiles>
__device__ __forceinline__ void clear(float (&sums)[RowTiles][ColumnTiles][4]) {
#pragma unroll
  for (int j = 0; j < RowTiles; ++j) {
#pragma unroll
    for (int n = 0; n < ColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[j][n][i] = 0;
    }
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

/// The corner of tile `index` of the batch, and the image it lies in.
struct TilePlace {
  int64_t image;
  int q0[3];
};

__device__ __forceinline__ TilePlace tile_place(const FastDivide (&tiles)[3], const int (&positions)[3],
                                                uint32_t index) {
  TilePlace place;
#pragma unroll
  for (int axis = 2; axis >= 0; --axis) {
    uint32_t at;
    index = tiles[axis].divide(index, at);
    place.q0[axis] = static_cast<int>(at) * positions[axis];
  }
  place.image = index;
  return place;
}

/// The source box of a tile in `channels` planes of its image, from `first` on.
template <class T>
__device__ __forceinline__ BoxPlace<T> tile_source(const GroupProblem& p, const TilePlace& tile, const T* data,
                                                   int64_t first, int channels) {
  BoxPlace<T> place{nullptr,
                    data + p.source_rows.elements,
                    channels,
                    tile.q0[0] * p.step[0] + p.origin[0],
                    tile.q0[1] * p.step[1] + p.origin[1],
                    tile.q0[2] * p.step[2] + p.origin[2]};
  place.corner = data + (tile.image * p.groups * p.source_channels + first) * p.source_rows.plane_pitch +
                 place.outer * p.source_rows.outer_pitch + place.inner * p.source_rows.inner_pitch + place.column;
  return place;
}

/// Zeros for channels that no copy will bring. Then the block must synchronise.
__device__ __forceinline__ void clear_tiles(unsigned char* shared, int bytes) {
  for (int at = static_cast<int>(threadIdx.x) * 16; at < bytes; at += static_cast<int>(blockDim.x) * 16) {
    *reinterpret_cast<int4*>(shared + at) = int4{};
  }
  box_written();
}

/// Elements of T from one plane, depth, height of a box to the next.
template <class T>
struct TilePitch {
  int channel, depth, height;
  __device__ explicit TilePitch(const RowBox& box)
      : channel(box.plane_pitch / static_cast<int>(sizeof(T))),
        depth(box.outer_pitch / static_cast<int>(sizeof(T))),
        height(box.inner_pitch / static_cast<int>(sizeof(T))) {}
};

}  // namespace halo::cuda::conv::small_groups
