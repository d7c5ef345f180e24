// What phase_rows_kernel.cuh multiplies, and where it stands.
#pragma once

#include "../device/async_copy.cuh"
#include "../device/load_where.cuh"
#include "../device/number.cuh"
#include "../device/shared_words.cuh"
#include "../device/store_box.cuh"
#include "../device/tf32_split.cuh"
#include "../device/wgmma.cuh"
#include "../device/wgmma_half.cuh"
#include "phase_rows.h"

namespace halo::cuda::conv::phase_rows {

template <class T>
using Arguments = small_groups::GatherArguments<T>;

template <class T>
inline constexpr bool kHalf = sizeof(T) == 2;
template <class T>
inline constexpr int kJoined = 4 / static_cast<int>(sizeof(T));  ///< items of a stage
template <class T>
inline constexpr int kLine = kLineBytes / static_cast<int>(sizeof(T));

/// Items first to first + count - 1 of the height.
struct March {
  int index, image, group, depth, first, count;

  __device__ __forceinline__ March(const Plan& plan, int march) : index(march) {
    uint32_t at[3];
    const uint32_t rest = plan.groups.divide(plan.depths.divide(static_cast<uint32_t>(march), at[0]), at[1]);
    image = static_cast<int>(plan.pieces.divide(rest, at[2]));
    depth = static_cast<int>(at[0]);
    group = static_cast<int>(at[1]);
    first = static_cast<int>(at[2]) * plan.march;
    count = min(plan.march, plan.heights - first);
  }
  __device__ __forceinline__ March next(const Plan& plan) const {
    return March(plan, index + static_cast<int>(gridDim.x));
  }
  __device__ __forceinline__ bool exists(const Plan& plan) const { return index < plan.marches; }

  /// The first result of a run.
  template <class T>
  __device__ __forceinline__ T* result(const Plan& plan, T* data, const Run& run) const {
    const small_groups::GroupProblem& p = plan.problem;
    return data + ((int64_t{image} * p.groups + group) * p.result_channels + run.channel) * p.result_rows.plane_pitch +
           (depth * p.phases[0] + run.phase) * p.result_rows.outer_pitch +
           int64_t{first} * p.phases[1] * p.result_rows.inner_pitch;
  }
};

/// Elements behind a line.
template <class T>
__device__ __forceinline__ int behind_line(const T* at) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(at) / sizeof(T) % kLine<T>);
}

template <class T>
__device__ __forceinline__ bool behind_word(const T* at) {
  return reinterpret_cast<uintptr_t>(at) % 4 != 0;
}

/// Where the parts of shared memory are.
template <class T>
struct Shared {
  unsigned char* base;
  int slot_bytes, stage_elements;

  __device__ __forceinline__ Shared(const Plan& plan, unsigned char* memory, int parts)
      : base(memory),
        slot_bytes(plan.reach[0] * kPieceBytes * static_cast<int>(sizeof(T)) / 2 * parts),
        stage_elements(plan.runs * plan.run_pitch) {}
  __device__ __forceinline__ uint32_t barrier(int index) const { return device::shared_address(base) + index * 8; }
  /// Barriers: a source row is there; it is free; all results of a stage are there; it is free.
  __device__ __forceinline__ uint32_t loaded(int slot) const { return barrier(slot); }
  __device__ __forceinline__ uint32_t read(int slot) const { return barrier(kSlots + slot); }
  __device__ __forceinline__ uint32_t staged(int stage) const { return barrier(2 * kSlots + stage); }
  __device__ __forceinline__ uint32_t sent(int stage) const { return barrier(2 * kSlots + kStages + stage); }
  /// The last use of a stage with results that are not finite, counted from one.
  __device__ __forceinline__ int& poisoned(int stage) const {
    return reinterpret_cast<int*>(base + kBarrierBytes)[stage];
  }
  __device__ __forceinline__ uint32_t slot(int slot) const {
    return device::shared_address(base) + 2 * kBarrierBytes + slot * slot_bytes;
  }
  __device__ __forceinline__ T* stage(int stage) const {
    return reinterpret_cast<T*>(base + 2 * kBarrierBytes + kSlots * slot_bytes) + stage * stage_elements;
  }
};

/// What a thread has of a source row of the height: a position's channels, at both depths.
template <class T>
struct SourceRow {
  uint32_t word[kReach][kChannels];
  bool exists;

  __device__ __forceinline__ void load(const Plan& plan, const T* data, const March& march, int row, int thread) {
    const small_groups::GroupProblem& p = plan.problem;
    exists = march.exists(plan);
    const int h = march.first + row + p.origin[1];
    const int64_t plane = (int64_t{march.image} * p.groups + march.group) * p.source_channels;
#pragma unroll
    for (int depth = 0; depth < kReach; ++depth) {
      const int d = march.depth + p.origin[0] + depth;
      const bool inside = exists && depth < plan.reach[0] && d >= 0 && d < p.source[0] && h >= 0 && h < p.source[1] &&
                          thread < p.source[2];
      const T* from = data + plane * p.source_rows.plane_pitch + d * p.source_rows.outer_pitch +
                      h * p.source_rows.inner_pitch + thread;
#pragma unroll
      for (int c = 0; c < kChannels; ++c, from += p.source_rows.plane_pitch)
        word[depth][c] = device::load_one<T>(from, inside && c < p.source_channels);
    }
  }

  /// Splits and stores.
  template <bool Split>
  __device__ __forceinline__ void store(const Plan& plan, uint32_t slot, int position) const {
    if (position < 0 || position >= kSourcePositions) return;
    constexpr int kPieces = static_cast<int>(sizeof(T)) / 2, kParts = Split ? 2 : 1;
#pragma unroll
    for (int depth = 0; depth < kReach; ++depth) {
      if (depth >= plan.reach[0]) break;
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const uint32_t to = slot + (depth * kParts * kPieces + piece) * kPieceBytes + position * 16;
        uint32_t four[4], low[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if constexpr (kHalf<T>) {
            four[i] = word[depth][2 * i] | word[depth][2 * i + 1] << 16;
          } else {
            const float value = __uint_as_float(word[depth][piece * 4 + i]);
            const device::Tf32Pair two = device::split_tf32_unguarded(value);
            four[i] = Split ? two.high : device::round_tf32_by_cut(value);
            low[i] = two.low;
          }
        }
        device::store_shared(to, four[0], four[1], four[2], four[3]);
        if constexpr (Split) device::store_shared(to + kPieces * kPieceBytes, low[0], low[1], low[2], low[3]);
      }
    }
  }
};

/// Descriptor of a source row: 16 bytes of a position and those of the next one, any may be the first. The second half
/// of a product's depth: other channels of float32; of half types the same of the next position.
template <class T>
__device__ __forceinline__ uint64_t source_descriptor(uint32_t address) {
  constexpr uint64_t kLeading = kHalf<T> ? 16 : kPieceBytes;
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | kLeading >> 4 << 16 | uint64_t{128 >> 4} << 32;
}

/// A warp's weights of each neighbour: row g of the product is its run g at the first phase of the width, row g + 8
/// that at the second.
template <class T, bool Split>
struct Weights {
  static constexpr int kProducts = kReach * kReach * (kHalf<T> ? 1 : kReach);
  static constexpr uint32_t kPart = kPieceBytes * sizeof(T) / 2, kRow = (Split ? 2 : 1) * kPart;
  uint32_t high[kProducts][4], low[Split ? kProducts : 1][4];

  __device__ __forceinline__ void load(const Plan& plan, const T* data, int group, const Run& run, int height,
                                       bool exists) {
    const small_groups::GroupProblem& p = plan.problem;
    const auto t = static_cast<int>(threadIdx.x % 4);
    const T* const from = data + group * p.weight_group + run.channel * p.weight_result;
    const auto at = [&](int depth, int neighbour, int phase, int width, int channel) {
      const int taps[3] = {plan.tap[0][run.phase][depth], plan.tap[1][height][neighbour], plan.tap[2][phase][width]};
      const bool is_there = exists && (taps[0] | taps[1] | taps[2]) >= 0 && run.channel < p.result_channels &&
                            channel < p.source_channels;
      return is_there ? from[channel * p.weight_source + taps[0] + taps[1] + taps[2]] : T{};
    };
#pragma unroll
    for (int n = 0; n < kProducts; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kHalf<T>) {
          const T two[2] = {at(n / 2, n % 2, i % 2, i / 2, 2 * t), at(n / 2, n % 2, i % 2, i / 2, 2 * t + 1)};
          high[n][i] = uint32_t{two[0].bits} | uint32_t{two[1].bits} << 16;
        } else {
          const float value = at(n / 4, n / 2 % 2, i % 2, n % 2, t + i / 2 * 4);
          const device::Tf32Pair two = device::split_tf32_unguarded(value);
          high[n][i] = Split ? two.high : device::round_tf32(value);  // which keeps NaN
          if constexpr (Split) low[n][i] = two.low;
        }
      }
    }
  }

  /// The sums of an item. Small products first, since the tensor core cuts off what falls below the last place of a
  /// sum.
  __device__ __forceinline__ void multiply(const Plan& plan, const uint32_t (&slot)[kReach],
                                           float (&sums)[kPositions / 2]) const {
    const uint64_t rows[kReach] = {source_descriptor<T>(slot[0]), source_descriptor<T>(slot[1])};
    const uint32_t depth = plan.reach[0] == kReach ? kRow : 0, width = plan.reach[2] == kReach ? 16 : 0;
    if constexpr (kHalf<T>) {
#pragma unroll
      for (float& sum : sums) sum = 0;
      device::wgmma_fence();
#pragma unroll
      for (int n = 0; n < kProducts; ++n)
        device::wgmma_half<T>(sums, high[n], device::descriptor_after(rows[n % 2], n / 2 * depth));
    } else {
      const auto source = [&](int n) {
        return device::descriptor_after(rows[n / 2 % 2], n / 4 * depth + n % 2 * width);
      };
      device::wgmma_fence();
      if constexpr (Split) {
#pragma unroll
        for (int n = 0; n < kProducts; ++n) {
          device::wgmma_tf32(sums, low[n], source(n), n > 0);
          device::wgmma_tf32(sums, high[n], device::descriptor_after(source(n), kPart), 1);
        }
      }
#pragma unroll
      for (int n = 0; n < kProducts; ++n) device::wgmma_tf32(sums, high[n], source(n), Split || n > 0);
    }
    device::wgmma_commit();
    device::wgmma_wait<0>();
    device::wgmma_pin(sums);
  }
};

}  // namespace halo::cuda::conv::phase_rows
