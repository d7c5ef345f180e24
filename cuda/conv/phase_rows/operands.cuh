// What the host decides for kernel.cuh, what that multiplies, and where it stands. Phases and offsets are
// those of small_groups/small_groups.h.
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include <cstddef>
#include <cstdint>

#include "../../device/async_copy.cuh"
#include "../../device/fast_divide.h"
#include "../../device/load_where.cuh"
#include "../../device/store_box.cuh"
#include "../positions.cuh"
#include "../small_groups/small_groups.h"

namespace halo::cuda::conv::phase_rows {

inline constexpr int kReach = 2;              ///< neighbouring source positions of an axis that a result may read
inline constexpr int kPhases = 2;             ///< of the width: two results of a warp beside one another
inline constexpr int kChannels = 8;           ///< of the source, at most
inline constexpr int kPositions = 128;        ///< columns of a product: q of a row
inline constexpr int kSourcePositions = 136;  ///< which these read, and some that are zero
inline constexpr int kTeams = 2;              ///< warpgroups that multiply, one item after the other
inline constexpr int kTeamWarps = 4;          ///< each has eight runs at a phase of the height
inline constexpr int kSenders = 4;            ///< warps that give the copy engine its orders, each of every fourth run
inline constexpr int kMostRuns = 32;          ///< of an item
inline constexpr int kStages = 4;             ///< whose results are in shared memory, each an item of float32
inline constexpr int kSlots = 4;              ///< source rows of the height in shared memory
inline constexpr int kAhead = 3;              ///< rows that loaders have asked for
inline constexpr int kLineBytes = 32;         ///< the copy engine writes whole ones, from as far behind one, or it is a
                                              ///< third slower
inline constexpr int kBarrierBytes = 128;
inline constexpr int kThreads = (kTeams + 2) * 128;
inline constexpr int kRegisters = 176, kLoaderRegisters = 80, kSenderRegisters = 80;
static_assert(kTeams * kRegisters + kLoaderRegisters + kSenderRegisters <= 512);

/// Items of a stage, neighbours of a march.
constexpr int joined(int element_size) { return 4 / element_size; }

/// Of an item, one channel of the group at one phase of the depth: rows of the height are one run of memory.
struct Run {
  int16_t phase, channel;
};

/// An item: all results of q of depth and height in a group. A march: items of neighbouring q of the height.
struct Plan {
  small_groups::GroupProblem problem;
  int tap[3][kReach][kReach];  ///< of an axis, phase, neighbour: element of the weights, or below 0 where there is none
  int reach[3];                ///< neighbours of an axis that are read
  int runs, run_pitch;         ///< of an item; elements from one to the next in a stage
  Run run[kMostRuns];          ///< by how far they lie behind a line
  int march;                   ///< items of one, at most
  int heights;                 ///< q of the height
  FastDivide depths, groups, pieces;  ///< q of the depth; marches of a slice
  int marches;
  int64_t blocks = 0;
  std::size_t shared_bytes = 0;
  double predicted_ms = 0;
};

inline constexpr int kPieceBytes = kSourcePositions * 16;  ///< 16 bytes of each position of a source row

/// Bytes of a source row: eight channels are one piece of half types, two of float32, each in `parts` parts.
constexpr int row_bytes(int element_size, int parts) { return kPieceBytes * element_size / 2 * parts; }

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
        store_position<T, Split>(to, kPieces * kPieceBytes, [&](int i) {
          return kHalf<T> ? word[depth][2 * i] | word[depth][2 * i + 1] << 16 : word[depth][piece * 4 + i];
        });
      }
    }
  }
};

/// Descriptor of a source row. The second half of a product's depth: other channels of float32; of half types the same
/// of the next position.
template <class T>
__device__ __forceinline__ uint64_t source_descriptor(uint32_t address) {
  return positions_descriptor(address, kHalf<T> ? 16 : kPieceBytes);
}

/// A warp's weights of each neighbour: row g of the product is its run g at the first phase of the width, row g + 8
/// that at the second.
template <class T, bool Split>
struct Weights {
  static constexpr int kProducts = kReach * kReach * (kHalf<T> ? 1 : kReach);
  static constexpr uint32_t kPart = kPieceBytes * sizeof(T) / 2, kRow = (Split ? 2 : 1) * kPart;
  small_groups::Operand<4, Split> product[kProducts];

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
          product[n].high[i] = uint32_t{two[0].bits} | uint32_t{two[1].bits} << 16;
        } else {
          product[n].set_rounded(i, at(n / 4, n / 2 % 2, i % 2, n % 2, t + i / 2 * 4));
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
        device::wgmma_half<T>(sums, product[n].high, device::descriptor_after(rows[n % 2], n / 2 * depth));
    } else {
      const auto source = [&](int n) {
        return device::descriptor_after(rows[n / 2 % 2], n / 4 * depth + n % 2 * width);
      };
      device::wgmma_fence();
      if constexpr (Split) {
#pragma unroll
        for (int n = 0; n < kProducts; ++n) {
          device::wgmma_tf32(sums, product[n].low, source(n), n > 0);
          device::wgmma_tf32(sums, product[n].high, device::descriptor_after(source(n), kPart), 1);
        }
      }
#pragma unroll
      for (int n = 0; n < kProducts; ++n) device::wgmma_tf32(sums, product[n].high, source(n), Split || n > 0);
    }
    device::wgmma_commit();
    device::wgmma_wait<0>();
    device::wgmma_pin(sums);
  }
};

}  // namespace halo::cuda::conv::phase_rows
