// Transposed convolutions whose results have one tap of an axis or none, and many of whose rows have none.
//
// A block walks down its share of all planes, some channels at a time. Its warps have parts. Some copy the source. A
// warp that multiplies owns a row of the phases, whose weights stay in its registers, multiplies tiles of the source by
// them on the tensor core, and puts the sums between zeros in shared memory. The others give the copy engine its
// orders: rows with taps leave by whole lines. What precedes and follows a run of these in the lines at its ends is
// zero, and zeros from shared memory fill the lines between runs. Only the ends of a slice leave by elements.
//
// Split operands, and zeros that stand for what does not exist, make results that are not finite where plain sums have
// finite ones: those who send a stage with such results compute them again before, in plain float32.
#pragma once

#include "../../device/mbarrier.cuh"
#include "../../device/mma.cuh"
#include "../plain_sum.cuh"
#include "../small_groups/tile.cuh"
#include "rows_copies.cuh"

namespace halo::cuda::conv::few_taps_rows {

template <class T>
using Arguments = small_groups::GatherArguments<T>;

template <class T>
inline constexpr bool kHalf = sizeof(T) == 2;
template <class T>
inline constexpr int kColumnTiles = channel_tiles(sizeof(T));
template <class T>
inline constexpr int kChannels = 8 * kColumnTiles<T>;  ///< of an item
template <class T>
inline constexpr int kSteps = kSourceChannels / (kHalf<T> ? 16 : 8);  ///< products of all source channels

template <class T, bool Split>
using Weights = small_groups::Operand<2, Split>[kTaps][kSteps<T>][kColumnTiles<T>];

/// The channels that a lane reads of eight, or of each eight of 16 of half types.
template <class T>
__device__ __forceinline__ int lane_channel(int index) {
  const auto t = static_cast<int>(threadIdx.x % 4);
  return kHalf<T> ? 2 * t + index : t + 4 * index;
}

/// The weights of a row of the phases for the channels of a group.
template <class T, bool Split>
__device__ __forceinline__ void load_weights(const Plan& plan, const T* data, int row_tap, int first_channel,
                                             Weights<T, Split>& weights) {
  const small_groups::GroupProblem& p = plan.problem;
  const int g = static_cast<int>(threadIdx.x % 32 / 4), t = static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
    __syncwarp();  // registers have no room for the addresses of all taps at once
#pragma unroll
    for (int k = 0; k < kSteps<T>; ++k) {
#pragma unroll
      for (int n = 0; n < kColumnTiles<T>; ++n) {
        const int result = first_channel + n * 8 + g;
        const auto at = [&](int channel) {
          const bool exists = result < p.result_channels && channel < p.source_channels && tap < plan.taps;
          return exists ? data[result * p.weight_result + channel * p.weight_source + row_tap + plan.tap[tap]] : T{};
        };
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          small_groups::Operand<2, Split>& operand = weights[tap][k][n];
          if constexpr (kHalf<T>) {
            const int channel = k * 16 + i * 8 + 2 * t;
            operand.high[i] = uint32_t{at(channel).bits} | uint32_t{at(channel + 1).bits} << 16;
          } else {
            operand.set_rounded(i, at(k * 8 + t + i * 4));
          }
        }
      }
    }
  }
}

/// The sums of each tap at kChunk source positions. `from`: the first, of the first channel, were its row at a
/// boundary; `shift`: by how much those of a lane's channels are behind one. The small products of split operands have
/// sums of their own.
template <class T, bool Split>
__device__ __forceinline__ void multiply(const T* from, int pitch, const int (&shift)[2], bool aligned,
                                         const Weights<T, Split>& weights, float (&sums)[kTaps][kColumnTiles<T>][4]) {
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4;
  const T* const at[2] = {from + lane_channel<T>(0) * pitch + shift[0] + g,
                          from + lane_channel<T>(1) * pitch + shift[1] + g};
  float small[kTaps][kColumnTiles<T>][4] = {};
#pragma unroll
  for (int k = 0; k < kSteps<T>; ++k) {
    small_groups::Operand<4, Split> a;
    if constexpr (!kHalf<T>) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a.set(i, at[i / 2][k * 8 * pitch + i % 2 * 8]);
    } else if (aligned) {
      const auto row =
          static_cast<uint32_t>(__cvta_generic_to_shared(from + (k * 16 + lane % 8) * pitch + lane / 8 % 2 * 8));
      device::load_transposed(row, a.high[0], a.high[1]);
      device::load_transposed(row + static_cast<uint32_t>(8 * pitch) * 2, a.high[2], a.high[3]);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int position = (k * 16 + i / 2 * 8) * pitch + i % 2 * 8;
        a.high[i] = uint32_t{at[0][position].bits} | uint32_t{at[1][position].bits} << 16;
      }
    }
    const auto for_each_tile = [&](auto product) {
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
#pragma unroll
        for (int n = 0; n < kColumnTiles<T>; ++n) product(sums[tap][n], small[tap][n], weights[tap][k][n]);
      }
    };
    using W = small_groups::Operand<2, Split>;
    if constexpr (kHalf<T>) {
      for_each_tile([&](float(&sum)[4], float(&)[4], const W& w) { device::multiply_halves<T>(sum, a.high, w.high); });
    } else {
      if constexpr (Split) {
        for_each_tile(
            [&](float(&)[4], float(&sum)[4], const W& w) { device::multiply_tf32<false>(sum, a.low, w.high); });
        for_each_tile(
            [&](float(&)[4], float(&sum)[4], const W& w) { device::multiply_tf32<false>(sum, a.high, w.low); });
      }
      for_each_tile(
          [&](float(&sum)[4], float(&)[4], const W& w) { device::multiply_tf32<false>(sum, a.high, w.high); });
    }
  }
  if constexpr (Split) small_groups::promote(sums, small);
}

/// Where the parts of shared memory are, and what an item has there.
template <class T>
struct Shared {
  const Plan& plan;
  T* result;
  unsigned char* base;

  __device__ __forceinline__ uint32_t address(int byte) const {
    return static_cast<uint32_t>(__cvta_generic_to_shared(base + byte));
  }
  /// Barriers: all rows of a stage are there; the stage is free, and zero where it has to be; an item's source is
  /// there.
  __device__ __forceinline__ uint32_t staged(int buffer) const { return address(buffer * 8); }
  __device__ __forceinline__ uint32_t free(int buffer) const { return address((kStages + buffer) * 8); }
  __device__ __forceinline__ uint32_t loaded(int buffer) const { return address((2 * kStages + buffer) * 8); }
  /// The item of a stage that has sums that are not finite, plus one.
  __device__ __forceinline__ int& poisoned(int buffer) const {
    return reinterpret_cast<int*>(base + 3 * kStages * 8)[buffer];
  }
  __device__ __forceinline__ uint32_t zeros() const { return address(kBarrierBytes); }
  __device__ __forceinline__ T* stages() const { return reinterpret_cast<T*>(base + kBarrierBytes + kZeroBytes); }
  __device__ __forceinline__ T* sources() const { return stages() + kStages * kChannels<T> * plan.stage_pitch; }
  __device__ __forceinline__ Stage<T> stage(const Place& place, int buffer) const {
    const RowSource& rows = plan.problem.result_rows;
    T* const to = result +
                  (int64_t{place.image} * plan.problem.result_channels + place.group * kChannels<T>)*rows.plane_pitch +
                  place.depth * rows.outer_pitch + place.top * rows.inner_pitch;
    return {stages() + buffer * kChannels<T> * plan.stage_pitch, plan.stage_pitch, to, rows.plane_pitch,
            plan.problem.result[2]};
  }
};

__device__ __forceinline__ void clear(void* data, int bytes, int thread, int threads) {
  for (int i = thread * 16; i < bytes; i += threads * 16)
    *reinterpret_cast<uint4*>(static_cast<unsigned char*>(data) + i) = uint4{};
}

/// Replaces what is not finite in the rows of an item, of every kStorers-th channel from `part` on.
template <class T>
__device__ __noinline__ void repair(const Plan& plan, const PlainSumOf<T>& plain, T* result, unsigned char* shared,
                                    int item, int buffer, int part) {
  const small_groups::GroupProblem& p = plan.problem;
  const Place place(plan, item);
  const Stage<T> stage = Shared<T>{plan, result, shared}.stage(place, buffer);
  for (int channel = part; channel < kChannels<T>; channel += kStorers) {
    if (place.group * kChannels<T> + channel >= p.result_channels) break;
    for (int r = 0; r < plan.tapped; ++r) {
      const TappedRow& own = plan.tapped_row[r];
      if (place.top + own.row < 0 || place.top + own.row >= p.result[1]) continue;
      T* const row = stage.shared(plan.run[own.run], channel, own.row);
      repair_row(plain, row, stage.width, place.image, place.group * kChannels<T> + channel,
                 place.depth * p.result_rows.outer_pitch + int64_t{place.top + own.row} * stage.width);
    }
  }
  device::fence_async_proxy();
  __syncwarp();
}

/// Loads the sources of all items, as one of kLoaders warps.
template <class T>
__device__ __forceinline__ void load_sources(const Plan& plan, const T* data, const Shared<T>& shared, int first,
                                             int items, int warp) {
  SourceRing<T> ring{shared.sources()};
  for (int item = 0; item < items; ++item) {
    const int buffer = item % kStages;
    const Place place(plan, first + item);
    const bool follows = item > 0 && place.q > 0;
    if (item > 0) ring = ring.next(plan, follows);
    if (item >= kStages)  // nobody reads the source before the last any more
      device::barrier_wait(shared.staged(buffer), static_cast<uint32_t>(item / kStages - 1) % 2);
    load_source(plan, data, place, ring, follows, warp);
    device::copy_async_arrive(shared.loaded(buffer));
    __syncwarp();
    if (threadIdx.x % 32 == 0) device::barrier_arrive(shared.loaded(buffer));  // and what came by elements
  }
}

/// Sends the stages of `buffer`, of every kStorers-th channel from `part` on, by a warp.
template <class T>
__device__ __forceinline__ void send_stages(const Plan& plan, const PlainSumOf<T>& plain, const Shared<T>& shared,
                                            int first, int items, int buffer, int part) {
  constexpr int kOwn = kChannels<T> / kStorers;
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int item = buffer; item < items; item += kStages) {
    device::barrier_wait(shared.staged(buffer), static_cast<uint32_t>(item / kStages % 2));
    if (shared.poisoned(buffer) == item + 1)
      repair(plan, plain, shared.result, shared.base, first + item, buffer, part);
    const Place place(plan, first + item);
    const Stage<T> stage = shared.stage(place, buffer);
    for (int i = lane; i < plan.runs * kOwn; i += 32) {
      const int channel = i % kOwn * kStorers + part;
      if (place.group * kChannels<T> + channel < plan.problem.result_channels)
        store_run(plan, stage, plan.run[i / kOwn], channel, place, shared.zeros());
    }
    device::store_bulk_wait<0>();
    if (item + kStages >= items) break;
    __syncwarp();
    if (shared.stage(Place(plan, first + item + kStages), buffer).beside() != stage.beside()) {
      for (int c = part; c < kChannels<T>; c += kStorers)
        clear(stage.data + c * stage.pitch, stage.pitch * static_cast<int>(sizeof(T)), lane, 32);
      __syncwarp();
    }
    if (lane == 0) device::barrier_arrive(shared.free(buffer));
  }
  device::store_wait();
}

template <class T, bool Split>
__global__ void __launch_bounds__(kThreads, 1)
    few_taps_rows_kernel(const __grid_constant__ Plan plan, const __grid_constant__ Arguments<T> arguments,
                         const __grid_constant__ PlainSumOf<T> plain) {
  extern __shared__ __align__(128) unsigned char memory[];
  const small_groups::GroupProblem& p = plan.problem;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int g = lane / 4, t = lane % 4, stride = p.phases[2], width = p.result[2];
  const int warps = plan.tapped * plan.shares;
  const Shared<T> shared{plan, arguments.result, memory};
  clear(memory, static_cast<int>(plan.shared_bytes), static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int buffer = 0; buffer < kStages; ++buffer) {
      device::barrier_init(shared.staged(buffer), warps);
      device::barrier_init(shared.free(buffer), kStorers);
      device::barrier_init(shared.loaded(buffer), kLoaders * 33);
    }
    device::barrier_init_fence();
  }
  device::fence_async_proxy();
  __syncthreads();
  const auto boundary_of = [&](int64_t block) { return static_cast<int>(plan.items * block / gridDim.x); };
  const int first = boundary_of(blockIdx.x), items = boundary_of(int64_t{blockIdx.x} + 1) - first;
  if (warp >= kMostWarps + kLoaders) {
    device::registers_decrease<kStorerRegisters>();
    send_stages(plan, plain, shared, first, items, warp % kStages, (warp - kMostWarps - kLoaders) / kStages);
    return;
  }
  if (warp >= kMostWarps) {
    device::registers_decrease<kLoaderRegisters>();
    load_sources(plan, arguments.source, shared, first, items, warp - kMostWarps);
    return;
  }
  device::registers_increase<kRegisters>();
  if (warp >= warps) return;

  const int share = warp / plan.tapped;
  const TappedRow& own = plan.tapped_row[warp % plan.tapped];
  Weights<T, Split> weights;
  int group = -1, depth_phase = -1;  // of the weights
  SourceRing<T> ring{shared.sources()};
  for (int item = 0; item < items; ++item) {
    const int buffer = item % kStages;
    const Place place(plan, first + item);
    if (item > 0) ring = ring.next(plan, place.q > 0);
    if (place.source >= 0 && (place.group != group || place.phase != depth_phase)) {
      group = place.group;
      depth_phase = place.phase;
      load_weights<T, Split>(plan, arguments.weight, p.taps[0].tap[depth_phase][0] * p.tap_pitch[0] + own.tap,
                             group * kChannels<T>, weights);
    }
    const auto round = static_cast<uint32_t>(item / kStages % 2);
    device::barrier_wait(shared.loaded(buffer), round);
    device::barrier_wait(shared.free(buffer), round ^ 1);
    if (place.source >= 0 && place.top + own.row >= 0 && place.top + own.row < p.result[1]) {
      const Source<T> from(plan, arguments.source, place);
      const bool exists = own.source >= from.first && own.source < from.end;
      int shifts[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // other channels of the lane are eight planes away, as far behind 16 bytes
        const uint32_t elements =
            static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from.row) / sizeof(T)) +
            static_cast<uint32_t>(lane_channel<T>(i)) * static_cast<uint32_t>(p.source_rows.plane_pitch) +
            static_cast<uint32_t>(own.source * p.source[2]);
        shifts[i] = static_cast<int>(elements % (16 / sizeof(T)));
      }
      const T* const source = ring.row(plan, own.source);
      const Stage<T> stage = shared.stage(place, buffer);
      T* rows[2 * kColumnTiles<T>];
#pragma unroll
      for (int c = 0; c < 2 * kColumnTiles<T>; ++c)
        rows[c] = stage.shared(plan.run[own.run], c / 2 * 8 + 2 * t + c % 2, own.row);
      float poison = 0;
#pragma unroll 1
      for (int q = share * kChunk; q < p.source[2]; q += plan.shares * kChunk) {
        float sums[kTaps][kColumnTiles<T>][4] = {};
        if (exists) multiply<T, Split>(source + q, plan.source_pitch, shifts, plan.aligned, weights, sums);
        const auto put = [&](bool inside) {
#pragma unroll
          for (int tap = 0; tap < kTaps; ++tap) {
            if (tap >= plan.taps) break;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              const int position = q + g + 8 * i, column = position * stride + plan.shift[tap];
              if (!inside && (position >= p.source[2] || column < 0 || column >= width)) continue;
#pragma unroll
              for (int c = 0; c < 2 * kColumnTiles<T>; ++c) {
                const float sum = sums[tap][c / 2][i * 2 + c % 2];
                poison = fmaf(sum, 0.0f, poison);
                rows[c][column] = device::from_accumulator<T>(sum);
              }
            }
          }
        };
        if (q * stride + plan.least_shift >= 0 && (q + kChunk - 1) * stride + plan.most_shift < width &&
            q + kChunk <= p.source[2]) {
          put(true);
        } else {
          put(false);
        }
      }
      if (poison != 0) shared.poisoned(buffer) = item + 1;
    }
    device::fence_async_proxy();
    __syncwarp();
    if (lane == 0) device::barrier_arrive(shared.staged(buffer));
  }
}

}  // namespace halo::cuda::conv::few_taps_rows
