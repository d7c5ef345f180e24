// What a lane of kernel.cuh loads, and the products of it.
#pragma once

#include <type_traits>
#include <utility>

#include "../../device/async_copy.cuh"
#include "../../device/load_where.cuh"
#include "../small_groups/tile.cuh"
#include "phases.h"

namespace halo::cuda::conv::phases {

/// Words of a lane's weights of 8 x 8 channels: high and low parts of two, or
/// two halves.
template <class T>
inline constexpr int kWeightWords = sizeof(T) == 4 ? 4 : 1;

/// Source or weight channel of a lane, first and second, among the eight of a
/// unit.
template <class T>
__device__ __forceinline__ int lane_channel(int t, int which) {
  return sizeof(T) == 4 ? t + 4 * which : 2 * t + which;
}

/// A lane's weights in the order of the sum, in shared memory: those of half
/// types read one fragment ahead, those of float32 when they are needed, as
/// more registers to copy would cost more.
template <class T>
struct WeightStream {
  uint32_t at, word;

  __device__ __forceinline__ WeightStream(const void* shared, int lane)
      : at(static_cast<uint32_t>(__cvta_generic_to_shared(shared)) + static_cast<uint32_t>(lane) * 4) {
    take();
  }
  __device__ __forceinline__ uint32_t take() {
    const uint32_t now = word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(at));
    at += 32 * 4;
    return now;
  }
};
template <>
struct WeightStream<float> {
  uint32_t at;

  __device__ __forceinline__ WeightStream(const void* shared, int lane)
      : at(static_cast<uint32_t>(__cvta_generic_to_shared(shared)) + static_cast<uint32_t>(lane) * 16) {}
  __device__ __forceinline__ small_groups::Operand<2, true> take() {
    small_groups::Operand<2, true> now;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(now.high[0]), "=r"(now.high[1]), "=r"(now.low[0]), "=r"(now.low[1])
                 : "r"(at));
    at += 32 * 16;
    return now;
  }
};

/// What a lane reads first of an item: itself, or to bring it into its warp's
/// shared memory.
struct Start {
  const unsigned char* from;
  int next;  ///< bytes to the second of its channels
  int depth, height, width;
};

/// `start` in two channels of its group. Channels that do not exist have no
/// weight: any other stands for them.
__device__ __forceinline__ Start channels_of(const Plan& plan, Start start, int first, int second) {
  first = min(first, plan.source_channels - 1);
  second = min(second, plan.source_channels - 1);
  start.next = (second - first) * plan.channel_bytes;
  start.from += int64_t{first} * plan.channel_bytes;
  return start;
}

/// Elements of a source row, none where there is no such row.
__device__ __forceinline__ unsigned existing_width(const Plan& plan, int depth, int height, const Start& start) {
  const bool exists = static_cast<unsigned>(start.depth + depth) < static_cast<unsigned>(plan.source[0]) &&
                      static_cast<unsigned>(start.height + height) < static_cast<unsigned>(plan.source[1]);
  return static_cast<unsigned>(exists ? plan.source[2] : 0);
}

/// Windows in registers, loaded one unit ahead from global memory.
template <class T, int Lane, int Shifts, bool Aligned>
struct Feed {
  static constexpr bool kShared = false;  ///< a warp has its source rows in shared memory
  static constexpr bool kPairs = false;   ///< two positions a word
  static constexpr int kWords = Shifts + Lane - 1;
  uint32_t word[2][kWords];

  __device__ __forceinline__ Feed(const Plan&, const void*, int) {}

  static __device__ __forceinline__ Start start(const Plan& plan, Start place, int lane) {
    place.width += lane / 4 * Lane;
    return channels_of(plan, place, lane_channel<T>(lane % 4, 0), lane_channel<T>(lane % 4, 1));
  }

  __device__ __forceinline__ void load(const Plan& plan, const Unit& unit, const Start& start) {
    const unsigned width = existing_width(plan, unit.depth, unit.height, start);
    const auto column = static_cast<unsigned>(start.width + unit.width);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const unsigned char* from = start.from + unit.offset + (c == 0 ? 0 : start.next);
#pragma unroll
      for (int j = 0; j < kWords; ++j) word[c][j] = device::load_one<T>(from + j * sizeof(T), column + j < width);
    }
  }
};

/// The same by accesses of four positions.
template <class T, int Shifts>
struct Feed<T, kNarrow, Shifts, true> : Feed<T, kNarrow, Shifts, false> {
  static constexpr bool kPairs = sizeof(T) == 2;
  static constexpr int kFour = kPairs ? 2 : 4;  ///< words of four positions
  uint32_t word[2][2 * kFour];

  using Feed<T, kNarrow, Shifts, false>::Feed;

  __device__ __forceinline__ void load(const Plan& plan, const Unit& unit, const Start& start) {
    const unsigned width = existing_width(plan, unit.depth, unit.height, start);
    const auto column = static_cast<unsigned>(start.width + unit.width);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const unsigned char* from = start.from + unit.offset + (c == 0 ? 0 : start.next);
      device::load_four(*reinterpret_cast<uint32_t(*)[kFour]>(word[c]), from, column < width);
      if constexpr (Shifts == 2 && !kPairs) {
        word[c][4] = device::load_one<T>(from + 4 * sizeof(T), column + 4 < width);
      } else {
        device::load_four(*reinterpret_cast<uint32_t(*)[kFour]>(word[c] + kFour), from + 4 * sizeof(T),
                          column + 4 < width);
      }
    }
  }
};

/// Source rows in a warp's shared memory, brought there an item ahead. Lanes of eight positions load them by four,
/// lanes of six, whose windows begin anywhere, by one.
template <class T, int Lane, int Shifts>
struct Feed<T, Lane, Shifts, true> {
  static constexpr bool kShared = true;
  static constexpr bool kVectors = Lane == kWide;
  static constexpr bool kPairs = kVectors && sizeof(T) == 2;
  static constexpr int kFour = 4 * static_cast<int>(sizeof(T));  ///< bytes of four positions
  static constexpr int kWords = !kVectors ? Shifts + Lane - 1 : (kPairs ? 2 : 4) * 3;
  uint32_t word[2][kWords];
  uint32_t own, second, to, to_second;

  __device__ __forceinline__ Feed(const Plan& plan, const void* shared, int lane) {
    const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    const auto row = [&](int t, int i) {
      return base + static_cast<uint32_t>(t * plan.pitch + t / 2 * plan.pair_pitch + i * plan.second);
    };
    second = static_cast<uint32_t>(plan.second);
    own = row(lane % 4, 0) + static_cast<uint32_t>(lane / 4 * Lane) * uint32_t{sizeof(T)};
    const int channel = lane / 8;  // and the one four further
    to = (sizeof(T) == 4 ? row(channel, 0) : row(channel / 2, channel % 2)) + static_cast<uint32_t>(lane % 8 * kFour);
    to_second = to + static_cast<uint32_t>(sizeof(T) == 4 ? plan.second : 2 * plan.pitch + plan.pair_pitch);
  }

  static __device__ __forceinline__ Start start(const Plan& plan, Start place, int lane) {
    place.width += plan.first_width + lane % 8 * 4;
    return channels_of(plan, place, lane / 8, lane / 8 + 4);
  }

  __device__ __forceinline__ void fetch(const Plan& plan, const Source& source, const Start& start, int lane) const {
    const unsigned width = existing_width(plan, source.depth, source.height, start);
    const auto column = static_cast<unsigned>(start.width);
    const unsigned char* const from = start.from + source.offset;
#pragma unroll
    for (int k = 0; k < kSourceFours / 8; ++k) {
      if (k >= (kVectors ? 2 : 1) && lane % 8 + 8 * k >= plan.fours) break;  // vectors: at least 16
      const int bytes = column + 32 * k < width ? kFour : 0;
      device::copy_async<kFour>(to + static_cast<uint32_t>(source.shared) + k * 8 * kFour, from + k * 8 * kFour, bytes);
      device::copy_async<kFour>(to_second + static_cast<uint32_t>(source.shared) + k * 8 * kFour,
                                from + start.next + k * 8 * kFour, bytes);
    }
  }

  __device__ __forceinline__ void load(const Plan& plan, const Unit& unit, const Start&) {
    if (plan.ahead >= 2) {
      device::copy_async_wait<2>();
    } else {
      device::copy_async_wait<0>();
    }
    __syncwarp();
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int j = 0; !kVectors && j < kWords; ++j) {
        const uint32_t from = own + static_cast<uint32_t>(unit.shared) + c * second + j * sizeof(T);
        if constexpr (sizeof(T) == 2) {
          uint16_t half;
          asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(from));
          word[c][j] = half;
        } else {
          asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word[c][j]) : "r"(from));
        }
      }
#pragma unroll
      for (int four = 0; kVectors && four < 3; ++four) {
        const uint32_t from = own + static_cast<uint32_t>(unit.shared) + four * kFour;
        uint32_t* const w = word[c] + four * (kWords / 3);
        if constexpr (sizeof(T) == 2) {
          asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "r"(from + c * second));
        } else {
          asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                       : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                       : "r"(from + c * second));
        }
      }
    }
  }
};

/// A window as the tensor core takes it, and its products.
template <class T, int Lane, int Phases, int Shifts, bool Aligned>
struct Window {
  using From = Feed<T, Lane, Shifts, Aligned>;
  static constexpr int kWindow = Shifts + Lane - 1;
  uint32_t two[kWindow];  ///< both channels of a position

  __device__ __forceinline__ explicit Window(const From& feed) {
#pragma unroll
    for (int j = 0; j < kWindow; ++j) {
      const int word = From::kPairs ? j / 2 : j;
      two[j] = __byte_perm(feed.word[0][word], feed.word[1][word], From::kPairs && j % 2 == 1 ? 0x7632 : 0x5410);
    }
  }

  __device__ __forceinline__ void multiply(WeightStream<T>& weights, uint32_t taps,
                                           float (&sums)[Phases][Lane / 2][4]) const {
#pragma unroll
    for (int shift = 0; shift < Shifts; ++shift) {
      if (shift > 1 && taps >> (shift * kMostPhases) == 0) break;
#pragma unroll
      for (int phase = 0; phase < Phases; ++phase) {
        if ((taps & 1u << (shift * kMostPhases + phase)) == 0) continue;
        const uint32_t b = weights.take();
#pragma unroll
        for (int m = 0; m < Lane / 2; ++m)
          multiply_eight(sums[Phases - 1 - phase][m], two[shift + m], two[shift + m + Lane / 2], b);
      }
    }
  }

  /// sum += a b, 16 x 8 from 16 x 8 and 8 x 8: lane (g, t) holds columns 2 t
  /// and 2 t + 1 of rows g and g + 8 of `a`, and rows 2 t, 2 t + 1 of column g
  /// of `b`.
  static __device__ __forceinline__ void multiply_eight(float (&sum)[4], uint32_t a, uint32_t a_below, uint32_t b) {
    if constexpr (std::is_same_v<T, BFloat16>) {
      asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
          "{%4,%5}, {%6}, {%0,%1,%2,%3};"
          : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
          : "r"(a), "r"(a_below), "r"(b));
    } else {
      asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
          "{%4,%5}, {%6}, {%0,%1,%2,%3};"
          : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
          : "r"(a), "r"(a_below), "r"(b));
    }
  }
};

template <int Lane, int Phases, int Shifts, bool Aligned>
struct Window<float, Lane, Phases, Shifts, Aligned> {
  small_groups::Operand<4, true> a[Shifts + Lane / 2 - 1];  ///< positions k and k + Lane / 2 in both channels

  __device__ __forceinline__ explicit Window(const Feed<float, Lane, Shifts, Aligned>& feed) {
#pragma unroll
    for (int k = 0; k < Shifts + Lane / 2 - 1; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t bits = feed.word[i / 2][k + i % 2 * (Lane / 2)];
        asm volatile(""
                     : "+r"(bits));  // a split of its own for each operand, as
                                     // registers of one stand together
        a[k].set(i, __uint_as_float(bits));
      }
    }
  }

  __device__ __forceinline__ void multiply(WeightStream<float>& weights, uint32_t taps,
                                           float (&sums)[Phases][Lane / 2][4]) const {
    constexpr uint32_t kAll = (1u << Phases) - 1;
    float part[Phases][Lane / 2][4] = {};
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
  __device__ __forceinline__ void multiply_phases(WeightStream<float>& weights, int shift,
                                                  float (&part)[Phases][Lane / 2][4]) const {
    small_groups::Operand<2, true> b[Count];
#pragma unroll
    for (int p = 0; p < Count; ++p) b[p] = weights.take();
#pragma unroll
    for (int product = 0; product < 3; ++product) {
#pragma unroll
      for (int p = 0; p < Count; ++p) {
#pragma unroll
        for (int m = 0; m < Lane / 2; ++m) {
          small_groups::multiply_add(part[Phases - 1 - First - p][m],
                                     product == 0 ? a[shift + m].low : a[shift + m].high,
                                     product == 1 ? b[p].low : b[p].high);
        }
      }
    }
  }
};

}  // namespace halo::cuda::conv::phases
