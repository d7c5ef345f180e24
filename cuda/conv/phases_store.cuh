// How a warp of phases_kernel.cuh turns its sums into rows of the result.
#pragma once

#include <type_traits>
#include <utility>

#include "../device/number.cuh"
#include "phases.h"

namespace halo::cuda::conv::phases {

/// Writes where it `exists`; no branch.
template <int Bytes = 0>
__device__ __forceinline__ void store_word(void* to, uint32_t value, bool exists) {
  asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p st.global.u32 [%0 + %3], %1;}" ::"l"(to), "r"(value),
               "r"(static_cast<int>(exists)), "n"(Bytes));
}
__device__ __forceinline__ void store_half(void* to, uint32_t value, bool exists) {
  asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p st.global.u16 [%0], %1;}" ::"l"(to),
               "h"(static_cast<uint16_t>(value)), "r"(static_cast<int>(exists)));
}

/// Where a warp's stage has its rows: channel 2 t + i, so that what lanes write together lies on different banks.
template <class T, int Phases>
struct StageRows {
  static constexpr int kLanes = sizeof(T) == 4 ? 2 : 4;  ///< of four channels each that write together
  static constexpr int kUnit = 4 * static_cast<int>(sizeof(T));
  static constexpr int kPitch = (kPositions * Phases * static_cast<int>(sizeof(T)) + 127) / 128 * 128;
  static constexpr int kBytes = stage_bytes(Phases, static_cast<int>(sizeof(T)));
  /// Bytes.
  static __device__ __forceinline__ constexpr int row(int t, int i) {
    const int shift = Phases % 2 == 1 ? kLanes * t : Phases == 4 ? t : t % 2 + t / 2 * (64 / kUnit);
    return i * (4 * kPitch + 128) + t * kPitch + shift * kUnit;
  }
};

template <class T, int Phases>
__device__ __forceinline__ void write_stage(unsigned char* stage, const float (&sums)[Phases][2][4], int lane) {
  using Rows = StageRows<T, Phases>;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    unsigned char* const to = stage + Rows::row(lane % 4, i) + lane / 4 * (Phases * Rows::kUnit);
#pragma unroll
    for (int k = 0; k < Phases; ++k) {
      float four[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int position = (4 * k + e) / Phases, phase = (4 * k + e) % Phases;
        four[e] = sums[phase][position % 2][position / 2 * 2 + i];
      }
      if constexpr (sizeof(T) == 4) {
        *reinterpret_cast<float4*>(to + k * Rows::kUnit) = float4{four[0], four[1], four[2], four[3]};
      } else {
        *reinterpret_cast<uint2*>(to + k * Rows::kUnit) =
            uint2{device::pack_word<T>(four), device::pack_word<T>(four + 2)};
      }
    }
  }
}

/// The elements begin to end of each row to their places, a word a lane.
template <class T, int Phases>
__device__ __forceinline__ void write_rows(const unsigned char* stage, T* result, int64_t plane, int begin, int end,
                                           int channels, int lane) {
  using Rows = StageRows<T, Phases>;
  constexpr int kWords = (kPositions * Phases + 63) / 64;  // of two elements, of a lane
  const auto write = [&]<bool All>(std::bool_constant<All>) {
    if constexpr (sizeof(T) == 4) {
      unsigned char* own = reinterpret_cast<unsigned char*>(result + lane);
      bool exists[Phases];
#pragma unroll
      for (int k = 0; k < Phases; ++k) exists[k] = lane + 32 * k >= begin && lane + 32 * k < end;
#pragma unroll
      for (int c = 0; c < 8; ++c, own += plane * static_cast<int>(sizeof(T))) {
        if (!All && c >= channels) break;
        const auto* const row = reinterpret_cast<const uint32_t*>(stage + Rows::row(c / 2, c % 2)) + lane;
        [&]<int... K>(std::integer_sequence<int, K...>) { (store_word<K * 128>(own, row[32 * K], exists[K]), ...); }
        (std::make_integer_sequence<int, Phases>{});
      }
    } else {
      // Words of the result: words of the stage, or halves of two where the row begins in the middle of a word. Every
      // other channel begins alike.
#pragma unroll
      for (int first = 0; first < 2; ++first) {
        unsigned char* own = reinterpret_cast<unsigned char*>(result + first * plane);
        const int odd = static_cast<int>(reinterpret_cast<uintptr_t>(own) / 2 % 2);
        const uint32_t order = odd != 0 ? 0x5432 : 0x3210;
        int64_t at[kWords], alone_at[kWords];  // bytes
        bool exists[kWords], alone[kWords];
#pragma unroll
        for (int k = 0; k < kWords; ++k) {
          const int element = 2 * (lane + 32 * k) + odd;
          const bool before = k == 0 && odd != 0 && lane == 0;
          exists[k] = element + 1 < end;
          alone[k] = before || element + 1 == end;
          at[k] = 2 * element;
          alone_at[k] = before ? 0 : 2 * element;
        }
        const int shift = odd == 0 || lane == 0 ? 0 : 16;
#pragma unroll
        for (int c = first; c < 8; c += 2, own += plane * 4) {
          if (!All && c >= channels) break;
          const auto* const row = reinterpret_cast<const uint32_t*>(stage + Rows::row(c / 2, c % 2)) + lane;
#pragma unroll
          for (int k = 0; k < kWords; ++k) {
            const uint32_t word = row[32 * k];
            store_word(own + at[k], __byte_perm(word, row[32 * k + 1], order), exists[k]);
            store_half(own + alone_at[k], word >> (k == 0 ? shift : 16 * odd), alone[k]);
          }
        }
      }
    }
  };
  if (sizeof(T) == 4 || (begin == 0 && end >= 4)) {
    channels == 8 ? write(std::bool_constant<true>{}) : write(std::bool_constant<false>{});
  } else {
#pragma unroll 1
    for (int c = 0; c < channels; ++c, result += plane) {
      const auto* const row = reinterpret_cast<const T*>(stage + Rows::row(c / 2, c % 2));
#pragma unroll 1
      for (int at = begin + lane; at < end; at += 32) result[at] = row[at];
    }
  }
}

}  // namespace halo::cuda::conv::phases
