// What a warp of kernel.cuh multiplies: where its item lies, operands from global memory, and the products.
#pragma once

#include "../../device/async_copy.cuh"
#include "../../device/load_where.cuh"
#include "../../device/mma.cuh"
#include "../small_groups/tile.cuh"
#include "straight.h"

namespace halo::cuda::conv::straight {

template <class T>
using Arguments = small_groups::GatherArguments<T>;

/// One tap of one chunk of source channels.
struct alignas(16) Unit {
  int64_t offset;  ///< bytes
  int depth, height;
  int width;     ///< source position beside that of the first tap
  int channels;  ///< from the chunk's first to the last there is
};

/// Words of the weights of one unit and 8 result channels. Split: float32 as two TF32 numbers.
template <class T, bool Split>
inline constexpr int kWeightWords = Split            ? 256
                                    : sizeof(T) == 4 ? 128
                                                     : 64;

/// What a kernel is compiled for. Positions of a warp lie on the rows of kHalves half tiles.
template <class T, int ColumnTiles, bool Packs>
struct Shape {
  static constexpr int kHalves = Packs && sizeof(T) == 2 ? 8 : 4, kTiles = kHalves / 2;
  static constexpr int kColumns = ColumnTiles * 8;
  static constexpr int kThreads = most_warps(ColumnTiles, Packs, sizeof(T)) * 32;
  /// Position of half tile h of a lane.
  static __device__ __forceinline__ int position(int g, int h) { return Packs ? kHalves * g + h : 8 * h + g; }
};

/// Where a warp's item lies.
struct Place {
  int64_t image;
  int q[3];
  int column_group;
};

__device__ __forceinline__ Place place_of(const Plan& plan, int64_t item) {
  Place place;
  uint32_t group, at;
  uint32_t rest = plan.groups.divide(static_cast<uint32_t>(item), group);
#pragma unroll
  for (int axis = 2; axis >= 0; --axis) {
    rest = plan.tiles[axis].divide(rest, at);
    place.q[axis] = static_cast<int>(at) * (axis == 2 ? plan.own : 1);
  }
  place.image = rest;
  place.column_group = static_cast<int>(group);
  return place;
}

/// What a lane reads first of an item.
struct Start {
  const unsigned char* from;
  int depth, height, width;
};

template <class S, class T>
__device__ __forceinline__ Start start_of(const Plan& plan, const Place& place, const T* source, int lane) {
  const small_groups::GroupProblem& p = plan.problem;
  Start start;
  start.depth = place.q[0] * p.step[0] + p.origin[0];
  start.height = place.q[1] * p.step[1] + p.origin[1];
  start.width = (place.q[2] + S::position(lane / 4, 0)) * p.step[2] + p.origin[2];
  start.from = reinterpret_cast<const unsigned char*>(
      source + (place.image * p.source_channels + lane % 4) * p.source_rows.plane_pitch +
      start.depth * p.source_rows.outer_pitch + start.height * p.source_rows.inner_pitch + start.width);
  return start;
}

/// Operands of a unit as they lie in memory: channel 4 j + t, half tile h, two of them a word with packs of half types.
struct Loaded {
  uint32_t word[4][4];
};

/// The units of a warp's items, one after the other, on their way to the lane that multiplies them: the next one in
/// registers, or with packs a ring of them in shared memory, where a lane reads what it has copied itself.
template <class S, class T, bool Packs>
struct Feed {
  static constexpr int kSlotBytes = kRingBytes / kRing;

  const Plan& plan;
  const Unit* units;
  const T* source;
  int64_t item, step;
  int total, lane;  ///< units of an item
  uint32_t ring;    ///< with packs: where the lane's part begins
  int unit = 0, slot = 0;
  Start start{};
  Loaded loaded{};

  __device__ __forceinline__ void begin() {
    if (total == 0) item = plan.items;
    if (item < plan.items) start = start_of<S>(plan, place_of(plan, item), source, lane);
    if constexpr (Packs) {
      for (int i = 0; i + 1 < kRing; ++i) order(i);
    } else {
      order(0);
    }
  }
  /// The next unit. Then order_next() brings another.
  __device__ __forceinline__ const Loaded& take() {
    if constexpr (Packs) {
      device::copy_async_wait<kRing - 2>();
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(loaded.word[j][0]), "=r"(loaded.word[j][1]), "=r"(loaded.word[j][2]),
                       "=r"(loaded.word[j][3])
                     : "r"(ring + static_cast<uint32_t>(slot * kSlotBytes + j * 512)));
      }
    }
    return loaded;
  }
  __device__ __forceinline__ void order_next() {
    if constexpr (Packs) {
      order(slot == 0 ? kRing - 1 : slot - 1);  // whose operands have been used
      slot = slot + 1 == kRing ? 0 : slot + 1;
    } else {
      order(0);
    }
  }

 private:
  __device__ __forceinline__ void order(int to) {
    if (item < plan.items) {
      load(units[unit], to);
      if (++unit == total) {
        unit = 0;
        item += step;
        if (item < plan.items) start = start_of<S>(plan, place_of(plan, item), source, lane);
      }
    }
    if constexpr (Packs) device::copy_async_commit();
  }

  __device__ __forceinline__ void load(const Unit& own, int to) {
    const small_groups::GroupProblem& p = plan.problem;
    const int64_t four = 4 * p.source_rows.plane_pitch * int64_t{sizeof(T)};
    const int t = lane % 4;
    const bool row = static_cast<unsigned>(start.depth + own.depth) < static_cast<unsigned>(p.source[0]) &&
                     static_cast<unsigned>(start.height + own.height) < static_cast<unsigned>(p.source[1]);
    const int width = row ? p.source[2] : 0, column = start.width + own.width;
    const unsigned char* from = start.from + own.offset;
    if constexpr (Packs) {
      const bool exists = static_cast<unsigned>(column) < static_cast<unsigned>(width);
      const uint32_t at = ring + static_cast<uint32_t>(to * kSlotBytes);
#pragma unroll
      for (int j = 0; j < 4; ++j, from += four)
        device::copy_async<16>(at + j * 512, from, exists && 4 * j + t < own.channels ? 16 : 0);
    } else {
      const int apart = 8 * p.step[2];
      bool exists[4];
#pragma unroll
      for (int h = 0; h < 4; ++h) exists[h] = static_cast<unsigned>(column + h * apart) < static_cast<unsigned>(width);
#pragma unroll
      for (int j = 0; j < 4; ++j, from += four) {
        const bool there = 4 * j + t < own.channels;
#pragma unroll
        for (int h = 0; h < 4; ++h)
          loaded.word[j][h] = device::load_one<T>(from + h * apart * static_cast<int>(sizeof(T)), there && exists[h]);
      }
    }
  }
};

/// Loaded operands as the tensor core takes them.
template <class T, bool Packs, bool Split>
struct Rows {
  static constexpr int kTiles = Packs ? 4 : 2;
  uint32_t a[kTiles][4];

  __device__ __forceinline__ explicit Rows(const Loaded& loaded) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto& first = loaded.word[i / 2 * 2];
        const auto& second = loaded.word[i / 2 * 2 + 1];
        if constexpr (Packs) {
          a[m][i] = __byte_perm(first[m], second[m], i % 2 == 0 ? 0x5410 : 0x7632);
        } else {
          a[m][i] = __byte_perm(first[2 * m + i % 2], second[2 * m + i % 2], 0x5410);
        }
      }
    }
  }

  template <int ColumnTiles>
  __device__ __forceinline__ void multiply(float (&sums)[kTiles][ColumnTiles][4], const uint32_t* weights,
                                           int lane) const {
#pragma unroll
    for (int n = 0; n < ColumnTiles; ++n) {
      const uint2 two = *reinterpret_cast<const uint2*>(weights + n * kWeightWords<T, Split> + lane * 2);
      const uint32_t b[2] = {two.x, two.y};
#pragma unroll
      for (int m = 0; m < kTiles; ++m) device::multiply_halves<T>(sums[m][n], a[m], b);
    }
  }
};

template <bool Packs, bool Split>
struct Rows<float, Packs, Split> {
  small_groups::Operand<4, Split> a[2][2];

  __device__ __forceinline__ explicit Rows(const Loaded& loaded) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[step][m].set(i, __uint_as_float(loaded.word[2 * step + i / 2][2 * m + i % 2]));
      }
    }
  }

  template <int ColumnTiles>
  __device__ __forceinline__ void multiply(float (&sums)[2][ColumnTiles][4], const uint32_t* weights, int lane) const {
#pragma unroll
    for (int n = 0; n < ColumnTiles; n += 2) {
      float part[2][2][4];
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        small_groups::Operand<2, Split> b[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t* const tile = weights + (n + i) * kWeightWords<float, Split>;
          if constexpr (Split) {
            const uint4 four = *reinterpret_cast<const uint4*>(tile + (step * 32 + lane) * 4);
            b[i].high[0] = four.x, b[i].high[1] = four.y, b[i].low[0] = four.z, b[i].low[1] = four.w;
          } else {
            const uint2 two = *reinterpret_cast<const uint2*>(tile + (step * 32 + lane) * 2);
            b[i].high[0] = two.x, b[i].high[1] = two.y;
          }
        }
        if (step == 0) {
          small_groups::multiply_tiles<true, Split>(part, a[step], b);
        } else {
          small_groups::multiply_tiles<false, Split>(part, a[step], b);
        }
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int k = 0; k < 4; ++k) sums[m][n + i][k] += part[m][i][k];
        }
      }
    }
  }
};

}  // namespace halo::cuda::conv::straight
