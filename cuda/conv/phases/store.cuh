// How a warp of kernel.cuh turns its sums into rows of the result.
#pragma once

#include <numeric>
#include <type_traits>
#include <utility>

#include "../../device/number.cuh"
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
template <class T, int Lane, int Phases>
struct StageRows {
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kLaneBytes = Lane * Phases * kSize;
  static constexpr int kUnit = std::gcd(kLaneBytes, 16);  ///< bytes that a lane writes at once
  static constexpr int kUnits = kLaneBytes / kUnit;       ///< of a lane
  static constexpr int kElements = 8 * Lane * Phases;     ///< of a row
  static constexpr int kPitch = (kElements * kSize + 127) / 128 * 128;
  static constexpr int kBytes = stage_bytes(Lane, Phases, kSize);
  /// Bytes.
  static __device__ __forceinline__ constexpr int row(int t, int i) {
    const int shift = kUnits % 2 == 1 ? 2 * t : kUnits % 4 == 0 ? t : t % 2 + t / 2 * 4;
    return i * (4 * kPitch + 128) + t * kPitch + shift * 16;
  }
};

template <class T, int Lane, int Phases>
__device__ __forceinline__ void write_stage(unsigned char* stage, const float (&sums)[Phases][Lane / 2][4], int lane) {
  using Rows = StageRows<T, Lane, Phases>;
  constexpr int kElements = Rows::kUnit / Rows::kSize, kWords = Rows::kUnit / 4, kOfWord = 4 / Rows::kSize;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    unsigned char* const to = stage + Rows::row(lane % 4, i) + lane / 4 * Rows::kLaneBytes;
#pragma unroll
    for (int k = 0; k < Rows::kUnits; ++k) {
      float of[kElements];
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const int position = (kElements * k + e) / Phases, phase = (kElements * k + e) % Phases;
        of[e] = sums[phase][position % (Lane / 2)][position / (Lane / 2) * 2 + i];
      }
      uint32_t words[kWords];
#pragma unroll
      for (int w = 0; w < kWords; ++w) words[w] = device::pack_word<T>(of + w * kOfWord);
      unsigned char* const unit = to + k * Rows::kUnit;
      if constexpr (kWords == 4) {
        *reinterpret_cast<uint4*>(unit) = uint4{words[0], words[1], words[2], words[3]};
      } else if constexpr (kWords == 2) {
        *reinterpret_cast<uint2*>(unit) = uint2{words[0], words[1]};
      } else {
        *reinterpret_cast<uint32_t*>(unit) = words[0];
      }
    }
  }
}

/// The elements begin to end of each row to their places, a word a lane.
template <class T, int Lane, int Phases>
__device__ __forceinline__ void write_rows(const unsigned char* stage, T* result, int64_t plane, int begin, int end,
                                           int channels, int lane) {
  using Rows = StageRows<T, Lane, Phases>;
  constexpr int kRowWords = (Rows::kElements + 31) / 32;  // of an element, of a lane
  constexpr int kWords = (Rows::kElements + 63) / 64;     // of two elements, of a lane
  const auto write = [&]<bool All>(std::bool_constant<All>) {
    if constexpr (sizeof(T) == 4) {
      unsigned char* own = reinterpret_cast<unsigned char*>(result + lane);
      bool exists[kRowWords];
#pragma unroll
      for (int k = 0; k < kRowWords; ++k) exists[k] = lane + 32 * k >= begin && lane + 32 * k < end;
#pragma unroll
      for (int c = 0; c < 8; ++c, own += plane * static_cast<int>(sizeof(T))) {
        if (!All && c >= channels) break;
        const auto* const row = reinterpret_cast<const uint32_t*>(stage + Rows::row(c / 2, c % 2)) + lane;
        [&]<int... K>(std::integer_sequence<int, K...>) { (store_word<K * 128>(own, row[32 * K], exists[K]), ...); }
        (std::make_integer_sequence<int, kRowWords>{});
      }
    } else {
      // Words of the result: words of the stage, or halves of two. Every other channel begins alike.
#pragma unroll
      for (int first = 0; first < 2; ++first) {
        unsigned char* own = reinterpret_cast<unsigned char*>(result + first * plane);
        const int odd = static_cast<int>((reinterpret_cast<uintptr_t>(own) / 2 + static_cast<unsigned>(begin)) % 2);
        const int skip = begin + odd;  // the first element that begins a word
        const uint32_t order = skip % 2 != 0 ? 0x5432 : 0x3210;
        bool exists[kWords];
#pragma unroll
        for (int k = 0; k < kWords; ++k) exists[k] = skip + 2 * (lane + 32 * k) + 1 < end;
        // The first element, and the last one, may have no word of their own.
        const int alone = 2 * (lane == 0 ? begin : end - 1);
        const bool is_alone = lane == 0 ? odd != 0 : lane == 1 && (end - skip) % 2 != 0;
        const int from = 2 * skip + 4 * lane;
#pragma unroll
        for (int c = first; c < 8; c += 2, own += plane * 4) {
          if (!All && c >= channels) break;
          const unsigned char* const row = stage + Rows::row(c / 2, c % 2);
          const auto* const words = reinterpret_cast<const uint32_t*>(row) + skip / 2 + lane;
          [&]<int... K>(std::integer_sequence<int, K...>) {
            (store_word<K * 128>(own + from, __byte_perm(words[32 * K], words[32 * K + 1], order), exists[K]), ...);
          }
          (std::make_integer_sequence<int, kWords>{});
          store_half(own + alone, *reinterpret_cast<const uint16_t*>(row + alone), is_alone);
        }
      }
    }
  };
  channels == 8 ? write(std::bool_constant<true>{}) : write(std::bool_constant<false>{});
}

}  // namespace halo::cuda::conv::phases
