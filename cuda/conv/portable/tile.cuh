// The inner product of the portable engine: mma.sync on fragments in registers, float32-accurate or TF32.
#pragma once

#include "../../device/async_copy.cuh"
#include "../../device/mma.cuh"
#include "../../device/tf32_split.cuh"
#include "portable.h"

namespace halo::cuda::conv {

template <int Products, std::size_t Shape>
struct PortableTile {
  static constexpr PortableShape kShape = kPortableShapes[Shape];
  static constexpr bool kAccurate = Products == 3;
  static constexpr int kWarpsN = kShape.warps_n;
  static constexpr int kEights = kShape.eights;
  static constexpr int kSixteens = 4;  // m16 tiles of a warp
  static constexpr int kRows = kShape.rows(), kColumns = kShape.columns();
  static_assert(kShape.warps_m * kShape.warps_n * 32 == kPortableThreads);
};

/// Fragments of one k8 step of a warp, as PTX numbers them: thread 4g + t has rows g and g + 8 (columns g) and depths t
/// and t + 4.
template <class Tile>
struct PortableFragments {
  float a[Tile::kSixteens][4];
  float b[Tile::kEights][2];
};

/// A warp's results: element [m][n][r] is row 16m + g + 8(r / 2), column 8n + 2t + r % 2.
template <class Tile>
struct PortableSums {
  float at[Tile::kSixteens][Tile::kEights][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (auto& m : at)
#pragma unroll
      for (auto& n : m)
#pragma unroll
        for (float& value : n) value = 0;
  }

  /// The tensor core cuts its sums where float32 rounds; so it sums one step only, and float32 additions do the rest.
  __device__ __forceinline__ void add(const PortableFragments<Tile>& f) {
    constexpr int kM = Tile::kSixteens;
    uint32_t high[kM][4], low[Tile::kAccurate ? kM : 1][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (Tile::kAccurate) {
          const device::Tf32Pair pair = device::split_tf32_unguarded(f.a[m][i]);
          high[m][i] = pair.high;
          low[m][i] = pair.low;
        } else {
          high[m][i] = device::round_tf32_by_cut(f.a[m][i]);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < Tile::kEights; ++n) {
      if constexpr (Tile::kAccurate) {
        const device::Tf32Pair first = device::split_tf32_unguarded(f.b[n][0]);
        const device::Tf32Pair second = device::split_tf32_unguarded(f.b[n][1]);
        const uint32_t b_high[2]{first.high, second.high}, b_low[2]{first.low, second.low};
        float part[kM][4] = {};
#pragma unroll
        for (int m = 0; m < kM; ++m) device::multiply_tf32<false>(part[m], low[m], b_high);
#pragma unroll
        for (int m = 0; m < kM; ++m) device::multiply_tf32<false>(part[m], high[m], b_low);
#pragma unroll
        for (int m = 0; m < kM; ++m) device::multiply_tf32<false>(part[m], high[m], b_high);
#pragma unroll
        for (int m = 0; m < kM; ++m)
#pragma unroll
          for (int r = 0; r < 4; ++r) at[m][n][r] += part[m][r];
      } else {
        const uint32_t b[2]{device::round_tf32_by_cut(f.b[n][0]), device::round_tf32_by_cut(f.b[n][1])};
#pragma unroll
        for (int m = 0; m < kM; ++m) device::multiply_tf32<false>(at[m][n], high[m], b);
      }
    }
  }
};

/// A warp's room for turning its results, a float for each of 64 rows and 8 columns; the pitch meets all banks.
inline constexpr int kPortableTurnPitch = 68, kPortableTurnWords = 8 * kPortableTurnPitch;

/// Calls f(half, column, value) for the results of a warp in rows lane + 32 * half: neighbouring lanes have
/// neighbouring rows. A small loop, as 64 copies of what f does would not fit the instruction cache.
template <class Tile, class F>
__device__ __forceinline__ void for_each_portable_result(const PortableSums<Tile>& sums, float* turn, const F& f) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  float* to = turn + lane % 4 * 2 * kPortableTurnPitch + lane / 4;
#pragma unroll
  for (int n = 0; n < Tile::kEights; ++n) {
    __syncwarp();
#pragma unroll
    for (int m = 0; m < Tile::kSixteens; ++m)
#pragma unroll
      for (int r = 0; r < 4; ++r) to[r % 2 * kPortableTurnPitch + m * 16 + r / 2 * 8] = sums.at[m][n][r];
    __syncwarp();
#pragma unroll 1
    for (int c = 0; c < 8; ++c) {
      f(n * 8 + c, {turn[c * kPortableTurnPitch + lane], turn[c * kPortableTurnPitch + lane + 32]});
    }
  }
}

/// What one tap, or one row of the weight gradient, adds to a position.
struct alignas(16) PortableTap {
  int64_t offset;  ///< bytes
  int at[3];       ///< the same by axes
  int channels;    ///< backward_weight: how many of four follow one another; 0: none
};
inline constexpr int kPortableOutside = 1 << 30;  ///< a coordinate that no tap brings back

/// Where a row begins in the source: an address and coordinates, both of which padding may put before the image.
struct PortablePlace {
  const char* address = nullptr;
  int at[3] = {kPortableOutside, 0, 0};

  __device__ __forceinline__ bool inside(const PortableTap& tap, const int (&extent)[3]) const {
    return static_cast<uint32_t>(at[0] + tap.at[0]) < static_cast<uint32_t>(extent[0]) &&
           static_cast<uint32_t>(at[1] + tap.at[1]) < static_cast<uint32_t>(extent[1]) &&
           static_cast<uint32_t>(at[2] + tap.at[2]) < static_cast<uint32_t>(extent[2]);
  }
};

/// Four neighbouring channels of one position, `step` bytes from the first to the others; zeros unless `inside`, and
/// for channels past the first `count`. Written by hand, as the compiler makes branches of it.
__device__ __forceinline__ float4 load_channels(const char* from, const int64_t (&step)[3], int count, bool inside) {
  float4 v;
  asm("{\n"
      ".reg .pred in, more;\n"
      "setp.ne.s32 in, %8, 0;\n"
      "mov.b32 %0, 0;\n"
      "mov.b32 %1, 0;\n"
      "mov.b32 %2, 0;\n"
      "mov.b32 %3, 0;\n"
      "setp.gt.and.s32 more, %9, 0, in;\n"
      "@more ld.global.nc.b32 %0, [%4];\n"
      "setp.gt.and.s32 more, %9, 1, in;\n"
      "@more ld.global.nc.b32 %1, [%5];\n"
      "setp.gt.and.s32 more, %9, 2, in;\n"
      "@more ld.global.nc.b32 %2, [%6];\n"
      "setp.gt.and.s32 more, %9, 3, in;\n"
      "@more ld.global.nc.b32 %3, [%7];\n"
      "}"
      : "=&f"(v.x), "=&f"(v.y), "=&f"(v.z), "=&f"(v.w)
      : "l"(from), "l"(from + step[0]), "l"(from + step[1]), "l"(from + step[2]), "r"(static_cast<int>(inside)),
        "r"(count));
  return v;
}

/// Place of `quad`, a group of four words, in a row of 16: rows that one instruction reads or writes meet all banks.
__host__ __device__ __forceinline__ int portable_quad_place(int row, int quad) {
  return quad ^ (row / 2 % 2 * 2 + row / 4 % 2);
}

}  // namespace halo::cuda::conv
