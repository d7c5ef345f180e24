// What a warp of weight_kernel multiplies: rows of x and of y from shared memory, as operands of the tensor cores.
#pragma once

#include "../../device/mma.cuh"
#include "../../device/shared_words.cuh"
#include "../../device/tf32_split.cuh"
#include "ring.cuh"
#include "weight.h"

namespace halo::cuda::conv::streams {

using device::load_shared_word;

/// Elements from byte `at` of shared memory on, float32 one, half types two a word, in words that begin with the first.
template <class T, int N>
__device__ __forceinline__ void load_row(uint32_t (&words)[N], uint32_t at) {
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < N; ++i) words[i] = load_shared_word(at + 4 * i);
  } else {
    const uint32_t order = (at & 2) != 0 ? 0x5432u : 0x3210u, from = at & ~2u;
    uint32_t next = load_shared_word(from);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const uint32_t word = next;
      next = load_shared_word(from + 4 * i + 4);
      words[i] = __byte_perm(word, next, order);
    }
  }
}

/// As load_row, where `at` is a multiple of four elements.
template <class T, int N>
__device__ __forceinline__ void load_fours(uint32_t (&words)[N], uint32_t at) {
  constexpr int kOfFour = static_cast<int>(sizeof(T));  // words
  static_assert(N % kOfFour == 0);
#pragma unroll
  for (int i = 0; i < N; i += kOfFour) {
    if constexpr (kOfFour == 4) {
      const float4 all = device::load_shared_vector(at + 4 * i);
      words[i] = __float_as_uint(all.x), words[i + 1] = __float_as_uint(all.y);
      words[i + 2] = __float_as_uint(all.z), words[i + 3] = __float_as_uint(all.w);
    } else {
      const int2 all = device::load_shared_pair(at + 4 * i);
      words[i] = static_cast<uint32_t>(all.x), words[i + 1] = static_cast<uint32_t>(all.y);
    }
  }
}

/// Zeros for those of `Elements`, behind the first `Lead`, that are outside of a row: `column` is that of the first, of
/// `width`. All but `Ends` at either end are inside.
template <class T, int Elements, int Ends, int Lead, int N>
__device__ __forceinline__ void clear_outside(uint32_t (&words)[N], int column, int width) {
#pragma unroll
  for (int i = 0; i < Elements; ++i) {
    if (i >= Ends && i < Elements - Ends) continue;
    if (static_cast<unsigned>(column + i) < static_cast<unsigned>(width)) continue;
    if constexpr (sizeof(T) == 4) {
      words[Lead + i] = 0;
    } else {
      words[(Lead + i) / 2] &= (Lead + i) % 2 == 0 ? 0xffff0000u : 0xffffu;
    }
  }
}

/// What the tensor core cuts from a float32.
__device__ __forceinline__ uint32_t cut_from(uint32_t x) {
  return __float_as_uint(__uint_as_float(x) - __uint_as_float(x & device::kTf32Mask));
}

/// The left operand of products: y at positions 4 t to 4 t + 3 (t = lane % 4), result lane / 4. With `Pair` the rows
/// are 8 results at two depths. Without, those of one depth: for float32 the high parts and then the low, so that two
/// products of parts are one; for half types above zeros, or below, so that two taps share a tile of sums.
template <class T, bool Pair>
struct Left {
  static constexpr int kTiles = sizeof(T) == 4 || !Pair ? 2 : 1;
  uint32_t high[kTiles][4], low[sizeof(T) == 4 && Pair ? 2 : 1][4];

  __device__ __forceinline__ Left(const uint32_t (&first)[sizeof(T)], const uint32_t (&second)[sizeof(T)],
                                  uint32_t zero) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (sizeof(T) == 2) {
          high[i][j] = Pair ? (j % 2 == 0 ? first : second)[j / 2] : j % 2 == i ? first[j / 2] : zero;
        } else {
          const uint32_t word = (j % 2 == 0 || !Pair ? first : second)[2 * i + j / 2];
          const device::Tf32Pair parts = device::split_tf32_unguarded(__uint_as_float(word));
          high[i][j] = Pair || j % 2 == 0 ? parts.high : parts.low;
          if constexpr (Pair) low[i][j] = parts.low;
        }
      }
    }
  }
};

/// What a lane needs of a row of x for sixteen positions: channel lane / 4, all that positions 4 t to 4 t + 3 read.
/// Whole: rows begin at, and are, multiples of four elements, padded by Taps / 2.
template <class T, int Step, int Taps, bool Whole>
struct Window {
  static constexpr int kElements = 3 * Step + Taps, kOfWord = 4 / static_cast<int>(sizeof(T));
  static constexpr int kEnds = Taps / 2;  ///< elements at either end that may be outside of most rows
  static constexpr int kLead = Whole ? (4 - Taps / 2 % 4) % 4 : 0;
  static constexpr int kUnit = Whole ? 4 : kOfWord;
  static constexpr int kWords = (kLead + kElements + kUnit - 1) / kUnit * kUnit / kOfWord;
  uint32_t words[kWords];

  __device__ __forceinline__ void load(uint32_t at) {
    if constexpr (Whole) {
      load_fours<T>(words, at - kLead * uint32_t{sizeof(T)});
    } else {
      load_row<T>(words, at);
    }
  }
  template <int Ends>
  __device__ __forceinline__ void clear(int column, int width) {
    clear_outside<T, kElements, Ends, kLead>(words, column, width);
  }
  /// Sums of tap i, from `from` on, += products with rows lane / 4 and lane / 4 + 8 of `y` and channels 2 t and 2 t +
  /// 1: four of two depths in tile i, or two of one in half of tile i / 2.
  template <bool Pair, int Tiles>
  __device__ __forceinline__ void multiply(float (&sums)[Tiles][4], const Left<T, Pair>& y, int from) const {
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int tap = 0; tap < Taps; ++tap) {
        const int i = from + tap;
        device::multiply_halves<T>(sums[Pair ? i : i / 2], y.high[Pair ? 0 : i % 2],
                                   {halves(tap), halves(tap + 2 * Step)});
      }
    } else {
      uint32_t low[kWords];
#pragma unroll
      for (int i = 0; i < kWords; ++i) low[i] = cut_from(words[i]);
      constexpr int kAtOnce = 4;  // as registers allow
#pragma unroll
      for (int first = 0; first < Taps; first += kAtOnce) {
        float part[kAtOnce][4];
        const auto product = [&]<bool New>(std::bool_constant<New>, const uint32_t(&a)[4], const auto& of_x,
                                           int eight) {
#pragma unroll
          for (int i = 0; i < kAtOnce && first + i < Taps; ++i) {
            const int at = kLead + 2 * eight * Step + first + i;
            device::multiply_tf32<New>(part[i], a, {of_x[at], of_x[at + Step]});
          }
        };
        // Small products first: what is cut from sums is cut from small ones.
        product(std::true_type{}, y.high[0], low, 0);
        product(std::false_type{}, y.high[1], low, 1);
        if constexpr (Pair) {
          product(std::false_type{}, y.low[0], words, 0);
          product(std::false_type{}, y.low[1], words, 1);
        }
        product(std::false_type{}, y.high[0], words, 0);
        product(std::false_type{}, y.high[1], words, 1);
#pragma unroll
        for (int j = 0; j < kAtOnce && first + j < Taps; ++j) {
          const int i = from + first + j;
#pragma unroll
          for (int k = 0; k < (Pair ? 4 : 2); ++k) {
            if constexpr (Pair) {
              sums[i][k] += part[j][k];
            } else {
              sums[i / 2][i % 2 * 2 + k] += part[j][k] + part[j][k + 2];
            }
          }
        }
      }
    }
  }

 private:
  /// Two positions, from element `at` on.
  __device__ __forceinline__ uint32_t halves(int at) const {
    const int first = kLead + at, second = first + Step;
    return __byte_perm(words[first / 2], words[second / 2],
                       (first % 2 == 0 ? 0x10u : 0x32u) | (second % 2 == 0 ? 0x5400u : 0x7600u));
  }
};

/// Where y lies that goes with each tap of the depth, or -1; `newest` is that of the depth of phase 0, then those
/// before.
struct DepthTaps {
  int at[kMostDepthTaps];

  __device__ __forceinline__ DepthTaps(const Plan& p, int phase, const int (&newest)[kMostDepthTaps])
      : at{phase == 0 ? newest[0] : -1,
           p.phases == 1 ? newest[1]
           : phase == 1  ? newest[0]
                         : -1,
           -1} {
    if (p.phases == 1) at[2] = newest[2];
    if (p.phases == 2 && phase == 0) at[2] = newest[1];
    if (phase == 2) at[2] = newest[0];
  }
};

/// The depths of y that a warp multiplies with, in a ring: waited for with their first unit, released behind their
/// last.
class LiveDepths {
 public:
  __device__ explicit LiveDepths(const Ring& ring) : ring_(ring), done_(ring) {}

  __device__ __forceinline__ void start_item() {
    phase_ = newest_ = -1;
    at_[0] = at_[1] = at_[2] = -1;
  }
  /// Goes on to the next unit; `place(depth, slot)` is where y of a depth of the item lies that the ring has brought.
  template <class Place>
  __device__ __forceinline__ DepthTaps next_unit(const WeightPlan& w, const Item& item, int lane, const Place& place) {
    if (++phase_ == w.x.phases || newest_ < 0) {
      phase_ = 0;
      ++newest_;
      if (newest_ >= w.live && newest_ - w.live < item.depths) release(lane);
      at_[2] = w.live > 2 ? at_[1] : -1;
      at_[1] = w.live > 1 ? at_[0] : -1;
      at_[0] = -1;
      if (newest_ < item.depths) {
        at_[0] = place(newest_, ring_.slot());
        ring_.wait_copied();
        ring_.advance();
      }
    }
    return {w.x, phase_, at_};
  }
  /// Fewer are held than there are slots.
  __device__ __forceinline__ void end_item(int lane) {
    while (done_.slot() != ring_.slot()) release(lane);
  }

 private:
  __device__ __forceinline__ void release(int lane) {
    done_.release(lane);
    done_.advance();
  }

  Ring ring_, done_;  // what comes next; what is released next
  int phase_, newest_;
  int at_[kMostDepthTaps];  // of the newest depth and those before, or -1
};

/// A block's sums, those of the splits added up in float64, behind those of other sharers. `place(result, channel, d,
/// h, w, split)` is where one lies in `sums`.
template <class T, class Place>
__device__ __forceinline__ void store_partials(const WeightPlan& w, const WeightArguments<T>& arguments, int group,
                                               int first_result, int sharer, const float* sums, int threads,
                                               const Place& place) {
  const Plan& p = w.x;
  const int taps = p.depth.kernel * p.height.kernel * p.width.kernel, of_result = p.channels * taps;
  double* const to =
      arguments.partials + (int64_t{sharer} * p.groups * p.results + group * p.results + first_result) * of_result;
  for (int e = static_cast<int>(threadIdx.x); e < min(8, p.results - first_result) * of_result; e += threads) {
    const int tap = e % taps, row = tap / p.width.kernel, channel = e / taps % p.channels, result = e / of_result;
    double sum = 0;
    for (int s = 0; s < w.splits; ++s)
      sum += sums[place(result, channel, row / p.height.kernel, row % p.height.kernel, tap % p.width.kernel, s)];
    to[e] = sum;
  }
}

}  // namespace halo::cuda::conv::streams
