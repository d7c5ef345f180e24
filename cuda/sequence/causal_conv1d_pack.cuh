// What a thread of causal_conv1d_packs.cu loads: eight neighbours of half types and what is before them.
#pragma once

#include "../device/packs.cuh"
#include "../device/widen.cuh"
#include "causal_conv1d_tile.cuh"

namespace halo::cuda::causal {

inline constexpr int kSize = 8;    ///< elements of a pack
inline constexpr int kBefore = 4;  ///< elements before a pack that come in one load: taps reach no further

template <class T>
struct PackParams {
  const T *x, *weight, *bias, *state;  ///< bias and state may be null
  const T *g, *g_state;                ///< backward: upstream gradients, the last may be null
  T* y;                                ///< forward
  T *dx, *dstate;                      ///< backward, may be null
  double* partials;                    ///< backward, as of TileParams; may be null
  int x_shift, g_shift;                ///< bytes from a granule to where they begin
  bool granules;                       ///< the result begins at one
  bool silu;
  int length;
  int64_t elements;
  uint32_t threads;        ///< forward
  int splits;              ///< backward: blocks a channel
  FastDivide by_packs;     ///< of a row, at most
  FastDivide by_segments;  ///< backward: blocks a row
  FastDivide by_channel;
};

/// N words of two elements. `kShifted`: with those of the granule behind them, and to be shifted. `kRows`: rows are
/// whole packs, and so is the tensor.
template <class T, int N, bool kShifted, bool kRows>
struct Words {
  uint32_t at[kShifted ? N + 4 : N];

  /// Granule `pack` of `tensor` ends the words. What is before the first one, or behind the last, is anything.
  __device__ void load(const T* tensor, int shift, uint32_t pack, int64_t elements) {
    constexpr int kFirst = N - 4;
    const T* const from = tensor - shift / 2 + int64_t{pack} * kSize;
    if constexpr (kFirst > 0) {
      const auto before = *reinterpret_cast<const Pack<uint32_t, kFirst>*>(from - (pack > 0 ? 2 * kFirst : 0));
#pragma unroll
      for (int i = 0; i < kFirst; ++i) at[i] = before.at[i];
    }
    // The last granules need not be whole: no load waits for that test.
    const int64_t begin = int64_t{pack} * kSize;
    const int left = static_cast<int>(min(2 * int64_t{kSize}, elements + shift / 2 - begin));
    const bool whole = kRows || left >= kSize, both = left >= 2 * kSize;
    take(kFirst, whole ? from : tensor - shift / 2);
    if constexpr (kShifted) take(kFirst + 4, both ? from + kSize : tensor - shift / 2);
    if (!whole) gather(kFirst, from, left);
    if constexpr (kShifted) {
      if (!both) gather(kFirst + 4, from + kSize, left - kSize);
    }
  }
  /// The elements `shift` bytes on.
  __device__ __forceinline__ void unpack(int shift, float (&values)[2 * N]) const {
    uint32_t words[N + 1];
    if constexpr (!kShifted) {
#pragma unroll
      for (int i = 0; i < N; ++i) words[i] = at[i];
    } else {
      uint32_t near[N + 2];
#pragma unroll
      for (int i = 0; i < N + 2; ++i) near[i] = (shift & 8) != 0 ? at[i + 2] : at[i];
#pragma unroll
      for (int i = 0; i < N + 1; ++i) words[i] = (shift & 4) != 0 ? near[i + 1] : near[i];
#pragma unroll
      for (int i = 0; i < N; ++i) words[i] = __byte_perm(words[i], words[i + 1], (shift & 2) != 0 ? 0x5432 : 0x3210);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) device::unpack_word<T>(words[i], values + 2 * i);
  }

 private:
  __device__ void take(int first, const T* granule) {
    const auto pack = *reinterpret_cast<const Pack<uint32_t, 4>*>(granule);
#pragma unroll
    for (int i = 0; i < 4; ++i) at[first + i] = pack.at[i];
  }
  /// The first `count` elements of a granule.
  __device__ void gather(int first, const T* granule, int count) {
#pragma unroll
    for (int e = 0; e < kSize; ++e) {
      const uint32_t bits = e < count ? granule[e].bits : 0;
      at[first + e / 2] = e % 2 == 0 ? bits : at[first + e / 2] | bits << 16;
    }
  }
};

/// Where the packs of a row are.
template <bool kRows>
struct PackPlaces {
  uint32_t first, last;  ///< pack of all; of the row
  int lead;              ///< elements of the first one that are before the row
  template <class T>
  __device__ PackPlaces(const PackParams<T>& p, uint32_t row) {
    const int64_t begin = int64_t{row} * p.length;
    first = kRows ? row * p.by_packs.divisor : static_cast<uint32_t>(begin / kSize);
    lead = kRows ? 0 : static_cast<int>(begin % kSize);
    last = kRows ? p.by_packs.divisor - 1 : static_cast<uint32_t>(p.length + lead - 1) / kSize;
  }
  __device__ int position(uint32_t column) const { return static_cast<int>(column) * kSize - lead; }
};

/// A row and its channel's filter.
template <class T, int K, bool kShifted, bool kRows>
struct PackRow {
  static constexpr int kReach = K - 1;
  static_assert(kReach <= kBefore && kBefore <= kSize && kSize == kWide<T>);
  using Window = Words<T, (kBefore + kSize) / 2, kShifted, kRows>;
  using Gradients = Words<T, kSize / 2, kShifted, kRows>;
  uint32_t sample, channel;
  int64_t state;  ///< where the row begins in states
  float taps[K], bias;

  __device__ PackRow(const PackParams<T>& p, uint32_t row)
      : sample(p.by_channel.divide(row, channel)), state(int64_t{row} * kReach) {
#pragma unroll
    for (int k = 0; k < K; ++k) taps[k] = to_accumulator(p.weight[channel * K + k]);
    bias = p.bias != nullptr ? to_accumulator(p.bias[channel]) : 0.0f;
  }
  /// Whether all of a pack is in the row.
  __device__ static bool is_inside(const PackParams<T>& p, int position) {
    return kRows || (position >= 0 && position + kSize <= p.length);
  }
  /// values[j]: x at position + j - kBefore; the state before the row, 0 behind it.
  __device__ __forceinline__ void unpack(const PackParams<T>& p, const Window& loaded, int position,
                                         float (&values)[kBefore + kSize]) const {
    loaded.unpack(p.x_shift, values);
    if (position >= kBefore && is_inside(p, position)) return;
#pragma unroll
    for (int j = 0; j < (kRows ? kBefore : kBefore + kSize); ++j) {
      const int at = position + j - kBefore;
      if (at < 0) {
        values[j] = at >= -kReach && p.state != nullptr ? to_accumulator(p.state[state + kReach + at]) : 0.0f;
      } else if (at >= p.length) {
        values[j] = 0;
      }
    }
  }
  /// The upstream gradients of a pack, 0 outside the row.
  __device__ __forceinline__ void unpack(const PackParams<T>& p, const Gradients& loaded, int position,
                                         float (&values)[kSize]) const {
    loaded.unpack(p.g_shift, values);
    if (is_inside(p, position)) return;
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      if (position + j < 0 || position + j >= p.length) values[j] = 0;
    }
  }
  /// The sum at position j of a pack.
  __device__ __forceinline__ float sum(const float (&values)[kBefore + kSize], int j) const {
    float sum = bias;
#pragma unroll
    for (int k = 0; k < K; ++k) sum = fmaf(taps[k], values[kBefore - kReach + j + k], sum);
    return sum;
  }
  __device__ static void store(const PackParams<T>& p, T* to, uint32_t pack, int position,
                               const Pack<float, kSize>& values) {
    const auto rounded = device::narrow<T>(values);
    T* const at = to + int64_t{pack} * kSize;
    if ((kRows && !kShifted) || (p.granules && is_inside(p, position))) {
      *reinterpret_cast<Pack<T, kSize>*>(at) = rounded;
    } else {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        if (position + j >= 0 && position + j < p.length) at[j] = rounded.at[j];
      }
    }
  }
};

}  // namespace halo::cuda::causal
