// What a lane of phases_kernel.cuh loads, and the products of it.
#pragma once

#include <type_traits>
#include <utility>

#include "../device/load_where.cuh"
#include "phases.h"
#include "small_groups_tile.cuh"

namespace halo::cuda::conv::phases {

/// Words of a lane's weights of 8 x 8 channels: high and low parts of two, or two halves.
template <class T>
inline constexpr int kWeightWords = sizeof(T) == 4 ? 4 : 1;

/// Source or weight channel of a lane, first and second, among the eight of a unit.
template <class T>
__device__ __forceinline__ int lane_channel(int t, int which) {
  return sizeof(T) == 4 ? t + 4 * which : 2 * t + which;
}

/// What a lane reads first of an item.
struct Start {
  const unsigned char* from;
  int next;  ///< bytes to the second of its channels
  int depth, height, width;
};

/// A lane's window in its two channels, as it was loaded.
template <class T, int Shifts, bool Aligned>
struct Loaded {
  static constexpr int kPositions = Shifts + 3;
  static constexpr bool kPairs = Aligned && sizeof(T) == 2;  ///< two positions a word
  static constexpr int kFour = kPairs ? 2 : 4;               ///< words of four positions
  uint32_t word[2][2 * kFour];

  __device__ __forceinline__ void load(const Plan& plan, const Unit& unit, const Start& start) {
    const bool row = static_cast<unsigned>(start.depth + unit.depth) < static_cast<unsigned>(plan.source[0]) &&
                     static_cast<unsigned>(start.height + unit.height) < static_cast<unsigned>(plan.source[1]);
    const auto width = static_cast<unsigned>(row ? plan.source[2] : 0);
    const auto column = static_cast<unsigned>(start.width + unit.width);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const unsigned char* from = start.from + unit.offset + (c == 0 ? 0 : start.next);
      if constexpr (Aligned) {
        device::load_four(*reinterpret_cast<uint32_t(*)[kFour]>(word[c]), from, column < width);
        if constexpr (kPositions == 5 && !kPairs) {
          word[c][4] = device::load_one<T>(from + 4 * sizeof(T), column + 4 < width);
        } else {
          device::load_four(*reinterpret_cast<uint32_t(*)[kFour]>(word[c] + kFour), from + 4 * sizeof(T),
                            column + 4 < width);
        }
      } else {
#pragma unroll
        for (int j = 0; j < kPositions; ++j) word[c][j] = device::load_one<T>(from + j * sizeof(T), column + j < width);
      }
    }
  }
};

/// A window as the tensor core takes it, and its products.
template <class T, int Phases, int Shifts, bool Aligned>
struct Window {
  using From = Loaded<T, Shifts, Aligned>;
  uint32_t two[From::kPositions];  ///< both channels of a position

  __device__ __forceinline__ explicit Window(const From& loaded) {
#pragma unroll
    for (int j = 0; j < From::kPositions; ++j) {
      const int word = From::kPairs ? j / 2 : j;
      two[j] = __byte_perm(loaded.word[0][word], loaded.word[1][word], From::kPairs && j % 2 == 1 ? 0x7632 : 0x5410);
    }
  }

  __device__ __forceinline__ void multiply(const uint32_t*& weights, uint32_t taps, float (&sums)[Phases][2][4]) const {
#pragma unroll
    for (int shift = 0; shift < Shifts; ++shift) {
      if (shift > 1 && taps >> (shift * kMostPhases) == 0) break;
#pragma unroll
      for (int phase = 0; phase < Phases; ++phase) {
        if ((taps & 1u << (shift * kMostPhases + phase)) == 0) continue;
        const uint32_t b = *weights;
        weights += 32 * kWeightWords<T>;
#pragma unroll
        for (int m = 0; m < 2; ++m) multiply_eight(sums[Phases - 1 - phase][m], two[shift + m], two[shift + m + 2], b);
      }
    }
  }

  /// sum += a b, 16 x 8 from 16 x 8 and 8 x 8: lane (g, t) holds columns 2 t and 2 t + 1 of rows g and g + 8 of `a`,
  /// and rows 2 t, 2 t + 1 of column g of `b`.
  static __device__ __forceinline__ void multiply_eight(float (&sum)[4], uint32_t a, uint32_t a_below, uint32_t b) {
    if constexpr (std::is_same_v<T, BFloat16>) {
      asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
          : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
          : "r"(a), "r"(a_below), "r"(b));
    } else {
      asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
          : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
          : "r"(a), "r"(a_below), "r"(b));
    }
  }
};

template <int Phases, int Shifts, bool Aligned>
struct Window<float, Phases, Shifts, Aligned> {
  small_groups::Operand<4, true> a[Shifts + 1];  ///< positions k and k + 2 in both channels

  __device__ __forceinline__ explicit Window(const Loaded<float, Shifts, Aligned>& loaded) {
#pragma unroll
    for (int k = 0; k <= Shifts; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t bits = loaded.word[i / 2][k + i % 2 * 2];
        asm volatile("" : "+r"(bits));  // a split of its own for each operand, as registers of one stand together
        a[k].set(i, __uint_as_float(bits));
      }
    }
  }

  __device__ __forceinline__ void multiply(const uint32_t*& weights, uint32_t taps, float (&sums)[Phases][2][4]) const {
    constexpr uint32_t kAll = (1u << Phases) - 1;
    float part[Phases][2][4] = {};
#pragma unroll
    for (int shift = 0; shift < Shifts; ++shift) {
      const uint32_t of_shift = taps >> (shift * kMostPhases);
      if (shift > 1 && of_shift == 0) break;
      if ((of_shift & kAll) == kAll) {
        multiply_phases<0, Phases>(weights, shift, part);
      } else {
        [&]<int... P>(std::integer_sequence<int, P...>) {
          (((of_shift >> P & 1) != 0 ? multiply_phases<P, 1>(weights, shift, part) : void()), ...);
        }
        (std::make_integer_sequence<int, Phases>{});
      }
    }
    small_groups::promote(sums, part);
  }

  /// Neighbouring products do not depend on each other.
  template <int First, int Count>
  __device__ __forceinline__ void multiply_phases(const uint32_t*& weights, int shift,
                                                  float (&part)[Phases][2][4]) const {
    small_groups::Operand<2, true> b[Count];
#pragma unroll
    for (int p = 0; p < Count; ++p, weights += 32 * kWeightWords<float>) {
      const uint4 four = *reinterpret_cast<const uint4*>(weights);
      b[p].high[0] = four.x, b[p].high[1] = four.y, b[p].low[0] = four.z, b[p].low[1] = four.w;
    }
#pragma unroll
    for (int product = 0; product < 3; ++product) {
#pragma unroll
      for (int p = 0; p < Count; ++p) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          small_groups::multiply_add(part[Phases - 1 - First - p][m],
                                     product == 0 ? a[shift + m].low : a[shift + m].high,
                                     product == 1 ? b[p].low : b[p].high);
        }
      }
    }
  }
};

}  // namespace halo::cuda::conv::phases
