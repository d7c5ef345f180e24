// The kernel for small convolutions: everything at once, for latency (see dense_small.cu).
#pragma once

#include <cfloat>
#include <type_traits>

#include "../../device/activation.cuh"
#include "../../device/async_copy.cuh"
#include "../../device/grid_order.cuh"
#include "../../device/mbarrier.cuh"
#include "../../device/shared_words.cuh"
#include "../../device/tf32_split.cuh"
#include "../../device/wgmma.cuh"
#include "../plain_sum.cuh"
#include "dense_small.h"

namespace halo::cuda::conv {

template <int Columns, int Products>
struct SmallTraits {
  static constexpr int kColumns = Columns;  // positions of a tile
  static constexpr int kParts = Products == 3 ? 2 : 1;
  static constexpr bool kAccurate = Products == 3;
  static constexpr int kPitch = small_pitch(Columns);
};

/// Where a flat position of the padded grid lies.
struct SmallPlace {
  int n, at[3];
  __host__ __device__ SmallPlace(const SmallParams& p, uint32_t flat) {
    uint32_t w, h, d;
    flat = p.grid[2].divide(flat, w);
    flat = p.grid[1].divide(flat, h);
    n = static_cast<int>(p.grid[0].divide(flat, d));
    at[0] = static_cast<int>(d);
    at[1] = static_cast<int>(h);
    at[2] = static_cast<int>(w);
  }
};

/// Source words of a position of the padded grid in the group's first channel, or -1 outside the source.
__host__ __device__ inline int64_t small_source(const SmallParams& p, uint32_t flat, int64_t group) {
  const SmallPlace place(p, flat);
  int64_t within = 0;
  bool inside = place.n < p.batch;
  for (int axis = 0; axis < 3; ++axis) {
    const int i = place.at[axis] - p.padding[axis];
    inside &= i >= 0 && i < p.source_extent[axis];
    within = within * p.source_extent[axis] + i;
  }
  return inside ? (place.n * int64_t{p.groups} + group) * p.channels * p.source_plane + within : -1;
}

/// Words of a position's result in its channel, or -1 where there is none.
__host__ __device__ inline int64_t small_target(const SmallParams& p, const SmallPlace& place) {
  const bool exists = place.n < p.batch && place.at[0] < p.target_extent[0] && place.at[1] < p.target_extent[1] &&
                      place.at[2] < p.target_extent[2];
  return exists ? (int64_t{place.at[0]} * p.target_extent[1] + place.at[1]) * p.target_extent[2] + place.at[2] : -1;
}

/// The taps of what thread `thread` of a warpgroup holds as its A fragment's element `i`: block of weights `block` is
/// (row tile, chunk). Null where there are none.
__host__ __device__ inline const float* small_weights(const SmallParams& p, bool forward, const float* weights,
                                                      uint32_t block, int thread, int i) {
  const int row_tile = static_cast<int>(block) / p.chunks, chunk = static_cast<int>(block) % p.chunks;
  const int64_t group = row_tile / p.row_tiles;
  const int row = row_tile % p.row_tiles * kSmallRows + thread / 32 * 16 + thread % 32 / 4 + i % 2 * 8;
  const int channel = chunk * 8 + thread % 4 + i / 2 * 4;
  if (row >= p.target_channels || channel >= p.channels) return nullptr;
  const int64_t pair = forward ? (group * p.target_channels + row) * p.channels + channel
                               : (group * p.channels + channel) * p.target_channels + row;
  return weights + pair * p.taps;
}

__device__ __forceinline__ int load_word(uint32_t address) {
  int value;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(value) : "r"(address));
  return value;
}
__device__ __forceinline__ void store_quad_in_block(uint32_t rank, uint32_t address, float4 v) {
  asm volatile(
      "{\n .reg .b32 there;\n mapa.shared::cluster.u32 there, %0, %1;\n"
      " st.shared::cluster.v4.f32 [there], {%2, %3, %4, %5};\n}\n" ::"r"(address),
      "r"(rank), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
      : "memory");
}
/// A number as the tensor core's operands.
template <class Traits>
__device__ __forceinline__ void small_split(float x, uint32_t& high, uint32_t& low) {
  if constexpr (Traits::kAccurate) {
    const device::Tf32Pair pair = device::split_tf32_unguarded(x);
    high = pair.high;
    low = pair.low;
  } else {
    high = device::round_tf32_by_cut(x);
  }
}

/// What one warpgroup does: its channels' share of a tile.
template <class Traits>
struct SmallLane {
  const SmallParams& p;
  const SmallShared& s;
  const int thread;  // of the warpgroup
  const int first_chunk, chunks;
  const uint32_t halo, weights, barrier;  // shared memory

  /// Bytes of one part of a chunk's halo.
  __device__ uint32_t part_bytes() const { return static_cast<uint32_t>(p.halo) * 32; }

  __device__ void fetch_weights(int64_t row_tile) const {
    if (thread != 0 || chunks == 0) return;
    const uint32_t bytes = static_cast<uint32_t>(chunks * p.taps) * kSmallStepBytes;
    device::barrier_expect(barrier, bytes);
    device::copy_bulk(weights, p.weights + (row_tile * p.chunks + first_chunk) * p.taps * kSmallStepFloats, bytes,
                      barrier);
  }

  /// Brings the lane's channels of the tile's positions, split: [chunk][part][half of the chunk][position][4 channels].
  __device__ void fill() const {
    constexpr int kBatch = 4;  // pieces of four channels, all loads before the first store
    const int pieces = chunks * 2 * p.halo;
    for (int first = thread; first < pieces; first += 128 * kBatch) {
      float value[kBatch][4];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        uint32_t position;
        const int piece = first + b * 128;
        const auto half = static_cast<int>(p.by_halo.divide(static_cast<uint32_t>(piece), position));
        const int channel = first_chunk * 8 + half * 4;
        const int at = piece < pieces ? load_word(s.sources + position * 4) : -1;
        const float* from = p.source + at + channel * p.source_plane;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          value[b][i] = at >= 0 && channel + i < p.channels ? from[i * p.source_plane] : 0.0f;
        }
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        uint32_t position;
        const int piece = first + b * 128;
        if (piece >= pieces) break;
        const uint32_t half = p.by_halo.divide(static_cast<uint32_t>(piece), position);
        uint32_t high[4], low[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) small_split<Traits>(value[b][i], high[i], low[i]);
        const uint32_t to = halo + half / 2 * Traits::kParts * part_bytes() +
                            (half % 2 * static_cast<uint32_t>(p.halo) + position) * 16;
        device::store_shared(to, high[0], high[1], high[2], high[3]);
        if constexpr (Traits::kAccurate) device::store_shared(to + part_bytes(), low[0], low[1], low[2], low[3]);
      }
    }
    device::fence_async_proxy();
    device::barrier_sync(1 + static_cast<int>(threadIdx.x) / 128, 128);
  }

  /// All products of the lane.
  __device__ __forceinline__ void multiply(float (&sum)[Traits::kColumns / 2]) const {
    constexpr int kRegisters = Traits::kColumns / 2;
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) sum[i] = 0;
    const int steps = __shfl_sync(~0u, chunks * p.taps, 0);
    if (steps == 0) return;
    const uint64_t strides = static_cast<uint64_t>(p.halo) << 16 | uint64_t{128 >> 4} << 32;
    const uint32_t own = weights + static_cast<uint32_t>(thread) * 16;
    device::barrier_wait(barrier, 0);
    float4 raw[kSmallChain];
    uint32_t at[kSmallChain];
    const auto load = [&](int first) {
#pragma unroll
      for (int u = 0; u < kSmallChain; ++u) {
        const auto step = static_cast<uint32_t>(min(first + u, steps - 1));
        raw[u] = device::load_shared_vector(own + step * kSmallStepBytes);
        at[u] = halo + static_cast<uint32_t>(load_word(s.steps + step * 4));
      }
    };
    // `Count` steps from `first` on, which load() has brought, in one sum of the tensor core.
    const auto multiply_steps = [&]<int Count>(int first, std::integral_constant<int, Count>) {
      float part[kRegisters];
      uint32_t high[Count][4], low[Count][4];
      uint64_t b[Count];
#pragma unroll
      for (int u = 0; u < Count; ++u) {
        small_split<Traits>(raw[u].x, high[u][0], low[u][0]);
        small_split<Traits>(raw[u].y, high[u][1], low[u][1]);
        small_split<Traits>(raw[u].z, high[u][2], low[u][2]);
        small_split<Traits>(raw[u].w, high[u][3], low[u][3]);
        b[u] = strides | (at[u] & 0x3FFFF) >> 4;
        device::wgmma_pin(high[u]);
        if constexpr (Traits::kAccurate) device::wgmma_pin(low[u]);
      }
      device::wgmma_fence();
#pragma unroll
      for (int u = 0; u < Count; ++u) {
        if constexpr (Traits::kAccurate) {
          device::wgmma_tf32(part, low[u], b[u], u > 0);
          device::wgmma_tf32(part, high[u], device::descriptor_after(b[u], part_bytes()), 1);
          device::wgmma_tf32(part, high[u], b[u], 1);
        } else {
          device::wgmma_tf32(part, high[u], b[u], u > 0);
        }
      }
      device::wgmma_commit();
      load(first + Count);
      device::wgmma_wait<0>();
      device::wgmma_pin(part);
#pragma unroll
      for (int i = 0; i < kRegisters; ++i) sum[i] += part[i];
    };
    load(0);
    int first = 0;
#pragma unroll 1
    for (; first + kSmallChain <= steps; first += kSmallChain) {
      multiply_steps(first, std::integral_constant<int, kSmallChain>());
    }
#pragma unroll 1
    for (; first < steps; ++first) multiply_steps(first, std::integral_constant<int, 1>());
  }

  /// Leaves the lane's sums in shared memory as [target channel][position].
  __device__ __forceinline__ void leave(uint32_t tile, const float (&sum)[Traits::kColumns / 2]) const {
    const auto t = static_cast<uint32_t>(thread);
    const uint32_t own = tile + ((t / 32 * 16 + t % 32 / 4) * Traits::kPitch + t % 4 * 2) * 4;
#pragma unroll
    for (int i = 0; i < Traits::kColumns / 4; ++i) {  // (j, h) of the accumulators' layout
      const uint32_t to = own + static_cast<uint32_t>(i / 2 * 8 + i % 2 * 8 * Traits::kPitch) * 4;
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(sum[i * 2]), "f"(sum[i * 2 + 1]) : "memory");
    }
  }
};

/// What is rare, as calls: the kernel's instructions come from memory too.
inline __device__ __noinline__ float small_plain_sum(const SmallParams& p, const PlainSum& plain, uint32_t flat,
                                                     int64_t channel) {
  const SmallPlace place(p, flat);
  return plain.at(place.n, channel, small_target(p, place));
}

template <class Traits>
__global__ void __launch_bounds__(kSmallThreads, 1)
    small_kernel(const __grid_constant__ SmallParams p, const __grid_constant__ PlainSum plain) {
  extern __shared__ __align__(128) float shared[];
  __shared__ __align__(8) uint64_t barriers[kSmallWarpgroups];
  constexpr int kColumns = Traits::kColumns;
  static_assert(kSmallThreads % kColumns == 0);
  const SmallShared s(p, kColumns, Traits::kParts, device::shared_address(shared));
  const auto thread = static_cast<int>(threadIdx.x), warpgroup = thread / 128;
  const uint32_t rank = blockIdx.x, first_position = blockIdx.y * kColumns;
  const int row_tile = static_cast<int>(blockIdx.z), group = row_tile / p.row_tiles;
  const int number = static_cast<int>(rank) * kSmallWarpgroups + warpgroup, lanes = p.ranks * kSmallWarpgroups;
  const int first_chunk = p.chunks * number / lanes;
  const uint32_t lane_halo = (s.weights - s.halos) / kSmallWarpgroups;
  const uint32_t lane_weights = static_cast<uint32_t>(p.lane_chunks * p.taps) * kSmallStepBytes;
  const SmallLane<Traits> lane{p,
                               s,
                               thread % 128,
                               first_chunk,
                               p.chunks * (number + 1) / lanes - first_chunk,
                               s.halos + static_cast<uint32_t>(warpgroup) * lane_halo,
                               s.weights + static_cast<uint32_t>(warpgroup) * lane_weights,
                               device::shared_address(barriers + warpgroup)};
  device::release_next_grid();
  if (lane.thread == 0) {
    device::barrier_init(lane.barrier, 1);
    device::barrier_init_fence();
  }
  // Tables of what is the same for all warpgroups; different warps make them.
  for (int i = thread; i < p.halo; i += kSmallThreads) {
    device::store_shared(s.sources + static_cast<uint32_t>(i) * 4,
                         static_cast<uint32_t>(small_source(p, first_position + static_cast<uint32_t>(i), group)));
  }
  if (const int column = thread - 256; column >= 0 && column < kColumns) {
    const SmallPlace place(p, first_position + static_cast<uint32_t>(column));
    const int64_t within = small_target(p, place), channel = (int64_t{place.n} * p.groups + group) * p.target_channels;
    device::store_shared(s.targets + static_cast<uint32_t>(column) * 4,
                         static_cast<uint32_t>(within < 0 ? -1 : channel * p.target_plane + within));
  }
  for (int i = kSmallThreads - 1 - thread; i < p.lane_chunks * p.taps; i += kSmallThreads) {
    const int chunk = i / p.taps, tap = i % p.taps, line = tap / p.kernel[2];
    const int position =
        tap % p.kernel[2] * p.tap_step[2] + line % p.kernel[1] * p.tap_step[1] + line / p.kernel[1] * p.tap_step[0];
    device::store_shared(s.steps + static_cast<uint32_t>(i) * 4,
                         static_cast<uint32_t>(chunk * Traits::kParts * p.halo * 32 + position * 16));
  }
  __syncthreads();
  if (!p.source_first) {
    device::wait_for_previous_grid();
    lane.fetch_weights(row_tile);
  }
  lane.fill();
  if (p.source_first) {
    device::wait_for_previous_grid();
    lane.fetch_weights(row_tile);
  }
  if (p.ranks > 1) asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");  // this block is there
  float sum[kColumns / 2];
  lane.multiply(sum);
  __syncthreads();  // everything has been read
  constexpr uint32_t kTileBytes = kSmallRows * Traits::kPitch * 4;
  lane.leave(s.halos + static_cast<uint32_t>(warpgroup) * kTileBytes, sum);
  if (p.ranks > 1) asm volatile("barrier.cluster.wait;" ::: "memory");
  __syncthreads();
  // The warpgroups' sums are added, and each block of the cluster receives an equal share of the rows from all.
  for (int i = thread; i < kSmallRows * kColumns / 4; i += kSmallThreads) {
    const uint32_t row = static_cast<uint32_t>(i) / (kColumns / 4), quad = static_cast<uint32_t>(i) % (kColumns / 4);
    const uint32_t at = s.halos + (row * Traits::kPitch + quad * 4) * 4;
    float4 total = device::load_shared_vector(at);
#pragma unroll
    for (uint32_t k = 1; k < kSmallWarpgroups; ++k) {
      const float4 one = device::load_shared_vector(at + k * kTileBytes);
      total.x += one.x;
      total.y += one.y;
      total.z += one.z;
      total.w += one.w;
    }
    const auto share = static_cast<uint32_t>(p.share), to = row / share;
    store_quad_in_block(to, s.received + ((rank * share + row - to * share) * Traits::kPitch + quad * 4) * 4, total);
  }
  if (p.ranks > 1) {
    device::cluster_sync();
  } else {
    __syncthreads();
  }
  // A thread keeps its position; neighbours write neighbours.
  const int column = thread % kColumns, target = load_word(s.targets + static_cast<uint32_t>(column) * 4);
  if (target < 0) return;
  const int first_row = static_cast<int>(rank) * p.share, tile_row = row_tile % p.row_tiles * kSmallRows;
  const int rows = min(p.share, min(p.target_channels - tile_row, kSmallRows) - first_row);
  const uint32_t part = static_cast<uint32_t>(p.share * Traits::kPitch) * 4;
  for (int row = thread / kColumns; row < rows; row += kSmallThreads / kColumns) {
    const int channel = group * p.target_channels + tile_row + first_row + row;
    uint32_t from = s.received + static_cast<uint32_t>(row * Traits::kPitch + column) * 4;
    float value = 0;
#pragma unroll 2
    for (int i = 0; i < p.ranks; ++i, from += part) value += __int_as_float(load_word(from));
    if (!(fabsf(value) <= FLT_MAX)) {
      value = small_plain_sum(p, plain, first_position + static_cast<uint32_t>(column), channel);
    }
    if (p.bias != nullptr) value += __ldg(p.bias + channel);
    if (p.activation.kind == ActivationKind::Relu) {
      value = value > 0 || value != value ? value : 0.0f;
    } else if (p.activation.kind != ActivationKind::None) {
      value = device::call_activation(p.activation, value);
    }
    p.target[target + (channel - group * p.target_channels) * p.target_plane] = value;
  }
}

}  // namespace halo::cuda::conv
