// Few channels out of many, unit stride (spread.cu): the kernel.
#pragma once

#include <cfloat>

#include "../device/activation.cuh"
#include "../device/mbarrier.cuh"
#include "../device/tf32_split.cuh"
#include "../device/wgmma.cuh"
#include "../device/wgmma_tf32_more.cuh"
#include "plain_sum.cuh"
#include "spread.h"

namespace halo::cuda::conv {

/// A work item: some lines of some planes of targets, and the source that reaches them. Positions of sums are counted
/// from what the first source position reaches with its first tap.
struct SpreadItem {
  int n;
  int first_plane, end_plane, first_line, lines;  ///< sums
  int source_line, source_lines;                  ///< first, and how many
  int tiles;                                      ///< of a source plane

  __host__ __device__ SpreadItem(const SpreadParams& p, int index) {
    const int h = index % static_cast<int>(p.lines_of.divisor), rest = index / static_cast<int>(p.lines_of.divisor);
    const int d = rest % static_cast<int>(p.planes_of.divisor);
    n = rest / static_cast<int>(p.planes_of.divisor);
    const auto least = [](int a, int b) { return a < b ? a : b; };
    first_plane = d * p.tile_planes - p.shift[0];
    end_plane = first_plane + least(p.tile_planes, p.target_extent[0] - d * p.tile_planes);
    first_line = h * p.tile_lines - p.shift[1];
    lines = least(p.tile_lines, p.target_extent[1] - h * p.tile_lines);
    source_line = first_line < p.reach[1] ? 0 : first_line - p.reach[1];
    source_lines = least(p.source_extent[1], first_line + lines) - source_line;
    if (source_lines < 0) source_lines = 0;
    const int step = kSpreadRows - p.reach[2];
    tiles = (source_lines * p.line + step - 1) / step;
  }
  /// Planes of the source.
  __host__ __device__ int first_source(const SpreadParams& p) const {
    return first_plane < p.reach[0] ? 0 : first_plane - p.reach[0];
  }
  __host__ __device__ int end_source(const SpreadParams& p) const {
    return end_plane < p.source_extent[0] ? end_plane : p.source_extent[0];
  }
};

/// Where row `row` of a tile lies in a source plane, or -1: rows before the first line, between lines and after the
/// last are zero.
__host__ __device__ inline int spread_row(const SpreadParams& p, const SpreadItem& item, int tile, int row) {
  const int flat = tile * (kSpreadRows - p.reach[2]) - p.reach[2] + row;
  if (flat < 0) return -1;
  uint32_t w;
  const auto line = static_cast<int>(p.by_line.divide(static_cast<uint32_t>(flat), w));
  if (line >= item.source_lines || static_cast<int>(w) >= p.source_extent[2]) return -1;
  return (item.source_line + line) * p.source_extent[2] + static_cast<int>(w);
}

template <int Columns, int Products>
struct SpreadTraits {
  static constexpr int kColumns = Columns;
  static constexpr bool kAccurate = Products == 3;
  static constexpr int kStepFloats = Columns * 8 * (kAccurate ? 2 : 1);  // high and low parts, or one
  static constexpr int kResultFloats = Columns * kSpreadPitch;
  static constexpr int kMultipliers = 256;  // threads; the others add up
  static constexpr int kMultiplierRegisters = 208, kAdderRegisters = 88;
  static constexpr int kLaunchRegisters = 65536 / kSpreadThreads / 8 * 8;
  static_assert(kMultipliers * kMultiplierRegisters + (kSpreadThreads - kMultipliers) * kAdderRegisters <=
                kSpreadThreads * kLaunchRegisters);
};

/// Shared memory: bytes from its start.
template <class Traits>
struct SpreadShared {
  uint32_t weights, results, barriers, sums;
  __device__ explicit SpreadShared(uint32_t base)
      : weights(base),
        results(weights + kSpreadSteps * Traits::kStepFloats * 4),
        barriers(results + 2 * Traits::kResultFloats * 4),
        sums(barriers + 64) {}
  __device__ uint32_t full(int buffer) const { return barriers + static_cast<uint32_t>(buffer) * 16; }
  __device__ uint32_t empty(int buffer) const { return full(buffer) + 8; }
  __device__ uint32_t result(int buffer) const {
    return results + static_cast<uint32_t>(buffer * Traits::kResultFloats) * 4;
  }
};

__device__ __forceinline__ float spread_load(uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address));
  return value;
}
__device__ __forceinline__ void spread_store(uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

/// Place of the weight that links source channel `channel` with column `column`, or -1.
__host__ __device__ inline int64_t spread_weight(const SpreadParams& p, int channel_tile, int channel, int column) {
  const int own = column / p.taps, tap = column - own * p.taps, target = channel_tile * p.tile_channels + own;
  if (own >= p.tile_channels || target >= p.target_channels || channel >= p.channels) return -1;
  return p.forward ? (int64_t{target} * p.channels + channel) * p.taps + p.taps - 1 - tap
                   : (int64_t{channel} * p.target_channels + target) * p.taps + tap;
}

/// The channel tile's weights, split, as core matrices.
template <class Traits>
__device__ void lay_out_weights(const SpreadParams& p, const SpreadShared<Traits>& s, int channel_tile) {
  constexpr int kWords = Traits::kColumns * 8;
  for (int i = static_cast<int>(threadIdx.x); i < kSpreadSteps * kWords; i += kSpreadThreads) {
    const int step = i / kWords, word = i % kWords;
    const int n = word / 64 * 8 + word % 32 / 4, k = word / 32 % 2 * 4 + word % 4;  // core_matrix_word, backwards
    const int64_t from = spread_weight(p, channel_tile, step * 8 + k, n);
    const float value = from >= 0 ? __ldg(p.weights + from) : 0.0f;
    const uint32_t to = s.weights + static_cast<uint32_t>(step * Traits::kStepFloats + word) * 4;
    if constexpr (Traits::kAccurate) {
      const device::Tf32Pair pair = device::split_tf32(value);
      spread_store(to, __uint_as_float(pair.high));
      spread_store(to + kWords * 4, __uint_as_float(pair.low));
    } else {
      spread_store(to, __uint_as_float(device::round_tf32_finite(value)));
    }
  }
  device::fence_async_proxy();
}

/// The tiles of a block in the order of the work.
struct SpreadWalk {
  int index, plane, tile;
  SpreadItem item;

  __device__ SpreadWalk(const SpreadParams& p)
      : index(static_cast<int>(blockIdx.x) / p.channel_tiles), tile(-1), item(p, index) {
    plane = item.first_source(p);
    next(p);
  }
  __device__ bool more(const SpreadParams& p) const { return index < p.items; }
  __device__ void next(const SpreadParams& p) {
    ++tile;
    while (tile >= item.tiles || plane >= item.end_source(p)) {
      if (item.tiles > 0 && plane + 1 < item.end_source(p)) {
        ++plane;
      } else {
        index += static_cast<int>(gridDim.x) / p.channel_tiles;
        if (index >= p.items) return;
        item = SpreadItem(p, index);
        plane = item.first_source(p);
      }
      tile = 0;
    }
  }
};

/// Two warpgroups multiply, each 64 positions of a tile. Sources go from global memory straight into registers, the
/// next tile's while this one's are multiplied.
template <class Traits>
struct SpreadMultiplier {
  static constexpr int kRegisters = Traits::kColumns / 2;
  // The tensor core truncates each addition: float32-accurate, it adds up no more than four steps (dense_kernel.cuh).
  static constexpr int kSums = Traits::kAccurate ? 2 : 1, kStepsOfSum = kSpreadSteps / kSums;
  const SpreadParams& p;
  const SpreadShared<Traits>& s;
  float sum[kSums][kRegisters];
  float raw[kSpreadSteps][4];
  uint32_t high[2][4], low[Traits::kAccurate ? 2 : 1][4];
  const float* from[2];  // the next tile's first channels, of this thread's two rows; null: zero

  __device__ __forceinline__ void locate(const SpreadWalk& at) {
    const int thread = static_cast<int>(threadIdx.x), row = thread / 32 * 16 + thread % 32 / 4;
    const int64_t plane = int64_t{p.source_extent[1]} * p.source_extent[2];
    const float* first = p.source + (int64_t{at.item.n} * p.channels + thread % 4) * p.source_plane + at.plane * plane;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int within = at.more(p) ? spread_row(p, at.item, at.tile, row + h * 8) : -1;
      from[h] = within >= 0 ? first + within : nullptr;
    }
  }

  /// Starts the loads of step `k`. Past the last channel the last ones are read again: their weights are zero.
  __device__ __forceinline__ void load(int k) {
    const int64_t far = min(k, p.channels / 8 - 1) * 8 * p.source_plane;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* const at = from[i % 2];
      raw[k][i] = at != nullptr ? __ldg(at + far + (i / 2) * 4 * p.source_plane) : 0.0f;
    }
  }

  __device__ __forceinline__ void convert(int k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (Traits::kAccurate) {
        const device::Tf32Pair pair = device::split_tf32_unguarded(raw[k][i]);
        high[k % 2][i] = pair.high;
        low[k % 2][i] = pair.low;
      } else {
        high[k % 2][i] = device::round_tf32_by_cut(raw[k][i]);
      }
    }
  }

  __device__ __forceinline__ void multiply(int k) {
    const uint64_t b = device::core_matrix_descriptor(s.weights + static_cast<uint32_t>(k * Traits::kStepFloats) * 4);
    const int own = k / kStepsOfSum, goes_on = k % kStepsOfSum > 0;
    device::wgmma_pin(high[k % 2]);
    if constexpr (Traits::kAccurate) device::wgmma_pin(low[k % 2]);
    device::wgmma_fence();
    if constexpr (Traits::kAccurate) {
      device::wgmma_tf32(sum[own], low[k % 2], b, goes_on);
      device::wgmma_tf32(sum[own], high[k % 2], device::descriptor_after(b, Traits::kColumns * 32), 1);
      device::wgmma_tf32(sum[own], high[k % 2], b, 1);
    } else {
      device::wgmma_tf32(sum[own], high[k % 2], b, goes_on);
    }
    device::wgmma_commit();
  }

  /// The tile's products to where the adders find them.
  __device__ __forceinline__ void hand_over(uint32_t results) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, row = thread / 32 * 16 + lane / 4;
    const uint32_t to = results + static_cast<uint32_t>(lane % 4 * 2 * kSpreadPitch + row) * 4;
    device::wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < kSums; ++i) device::wgmma_pin(sum[i]);
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) {
      const int column = i / 4 * 8 + i % 2, below = i / 2 % 2 * 8;
      const float value = kSums == 2 ? sum[0][i] + sum[kSums - 1][i] : sum[0][i];
      spread_store(to + static_cast<uint32_t>(column * kSpreadPitch + below) * 4, value);
    }
  }

  __device__ void run() {
    int buffer = 0;
    uint32_t parity = 1;
    SpreadWalk at(p);
    locate(at);
#pragma unroll
    for (int k = 0; k < kSpreadSteps; ++k) load(k);
    while (at.more(p)) {
      convert(0);
#pragma unroll
      for (int k = 0; k < kSpreadSteps; ++k) {
        multiply(k);
        if (k == 0) {  // while the tensor core is busy
          at.next(p);
          locate(at);
        }
        load(k);
        if (k + 1 == kSpreadSteps) break;
        device::wgmma_wait<1>();
        convert(k + 1);
      }
      device::barrier_wait(s.empty(buffer), parity);
      hand_over(s.result(buffer));
      __syncwarp();
      if (threadIdx.x % 32 == 0) device::barrier_arrive(s.full(buffer));
      buffer ^= 1;
      if (buffer == 0) parity ^= 1;
    }
  }
};

/// The other warps add products to sums of targets, and store those that are complete. A warp keeps to the sums of its
/// pairs of a target channel and a tap along depth, so that warps only meet where a plane is complete.
template <class Traits>
struct SpreadAdder {
  static constexpr int kBarrier = 1, kThreads = kSpreadThreads - Traits::kMultipliers, kWarps = kThreads / 32;
  const SpreadParams& p;
  const PlainSum& plain;
  const SpreadShared<Traits>& s;
  const int channel_tile;
  const int warp = static_cast<int>(threadIdx.x - Traits::kMultipliers) / 32, lane = static_cast<int>(threadIdx.x) % 32;

  __device__ void meet() const { device::barrier_sync(kBarrier, kThreads); }

  /// A channel's sums of the plane in `slot` of the ring.
  __device__ uint32_t sums_of(int slot, int channel) const {
    return s.sums + static_cast<uint32_t>((slot * p.tile_channels + channel) * p.tile_lines * p.line) * 4;
  }

  /// Adds a tile's products to the sums, row of taps after row of taps: each sum's in one order. `slot`: the plane's.
  /// `Taps`: along width, or 0 for any number.
  template <int Taps>
  __device__ __forceinline__ void add_tile(const SpreadItem& item, int plane, int slot, int tile,
                                           uint32_t products) const {
    constexpr int kEach = kSpreadRows / 32;  // positions of a lane
    const int step = kSpreadRows - p.reach[2], limit = item.lines * p.line, taps = Taps > 0 ? Taps : p.kernel[2];
    const auto apart = static_cast<uint32_t>(kSpreadPitch - p.dilation[2]) * 4;
    const uint32_t row_apart = static_cast<uint32_t>(p.kernel[2] * kSpreadPitch) * 4;
    int channel = 0, d = warp;
    for (; d >= p.kernel[0]; d -= p.kernel[0]) ++channel;
    while (channel < p.tile_channels) {
      const int to = plane + d * p.dilation[0], own_slot = slot + d * p.dilation[0];
      if (to >= item.first_plane && to < item.end_plane) {
        int at = (item.source_line - item.first_line) * p.line + tile * step + lane;
        const uint32_t sums = sums_of(own_slot < p.ring ? own_slot : own_slot - p.ring, channel);
        const int column = channel * p.taps + d * p.kernel[1] * p.kernel[2];
        uint32_t row = products + static_cast<uint32_t>(column * kSpreadPitch + lane + p.reach[2]) * 4;
        for (int h = 0; h < p.kernel[1]; ++h, row += row_apart, at += p.dilation[1] * p.line) {
          uint32_t own[kEach];
          float sum[kEach], value[kEach] = {};
#pragma unroll
          for (int i = 0; i < kEach; ++i) {
            const int word = at + i * 32;
            const bool exists = lane + i * 32 < step && word >= 0 && word < limit;
            own[i] = exists ? sums + static_cast<uint32_t>(word) * 4 : 0;
            sum[i] = spread_load(exists ? own[i] : sums);
          }
          uint32_t from = row;
#pragma unroll
          for (int t = 0; t < taps; ++t, from += apart) {
#pragma unroll
            for (int i = 0; i < kEach; ++i) value[i] += spread_load(from + i * 128);  // past the tile's end: not used
          }
#pragma unroll
          for (int i = 0; i < kEach; ++i) {
            if (own[i] != 0) spread_store(own[i], sum[i] + value[i]);
          }
          __syncwarp();  // the next row of taps adds to the same sums
        }
      }
      for (d += kWarps; d >= p.kernel[0]; d -= p.kernel[0]) ++channel;
    }
  }

  __device__ float finished(const SpreadItem& item, float value, int channel, int64_t at) const {
    if (!(fabsf(value) <= FLT_MAX)) value = plain.at(item.n, channel, at);
    if (p.bias != nullptr) value += __ldg(p.bias + channel);
    return p.activation.kind == ActivationKind::None ? value : device::call_activation(p.activation, value);
  }

  /// Stores the sums of a plane and clears them.
  __device__ void store_plane(const SpreadItem& item, int plane, int slot) const {
    const int depth = plane + p.shift[0], first = min(0, p.shift[2]);
    const int end = max(p.target_extent[2], p.line + p.shift[2]);
    for (int row = warp; row < p.tile_channels * item.lines; row += kWarps) {
      const int channel = row / item.lines, line = row % item.lines;
      const int target = channel_tile * p.tile_channels + channel;
      const uint32_t sums = sums_of(slot, channel) + static_cast<uint32_t>(line * p.line) * 4;
      const int64_t above =
          (int64_t{depth} * p.target_extent[1] + item.first_line + p.shift[1] + line) * p.target_extent[2];
      float* const to = p.target + (int64_t{item.n} * p.target_channels + target) * p.target_plane + above;
      for (int w = first + lane; w < end; w += 32) {
        const int at = w - p.shift[2];
        float value = 0;
        if (at >= 0 && at < p.line) {
          value = spread_load(sums + static_cast<uint32_t>(at) * 4);
          spread_store(sums + static_cast<uint32_t>(at) * 4, 0.0f);
        }
        if (w >= 0 && w < p.target_extent[2] && target < p.target_channels) {
          to[w] = finished(item, value, target, above + w);
        }
      }
    }
  }

  __device__ void run() {
    int buffer = 0;
    uint32_t parity = 0;
    for (int index = static_cast<int>(blockIdx.x) / p.channel_tiles; index < p.items;
         index += static_cast<int>(gridDim.x) / p.channel_tiles) {
      const SpreadItem item(p, index);
      int slot = 0;
      for (int plane = item.first_plane - p.reach[0]; plane < item.end_plane; ++plane) {
        const int tiles = plane >= 0 && plane < p.source_extent[0] ? item.tiles : 0;
        for (int tile = 0; tile < tiles; ++tile) {
          device::barrier_wait(s.full(buffer), parity);
          const uint32_t products = s.result(buffer);
          switch (p.kernel[2]) {
            case 3: add_tile<3>(item, plane, slot, tile, products); break;
            case 5: add_tile<5>(item, plane, slot, tile, products); break;
            case 7: add_tile<7>(item, plane, slot, tile, products); break;
            default: add_tile<0>(item, plane, slot, tile, products);
          }
          if (lane == 0) device::barrier_arrive(s.empty(buffer));
          buffer ^= 1;
          if (buffer == 0) parity ^= 1;
        }
        meet();  // the next plane adds to the same sums, by other warps
        if (plane >= item.first_plane) {
          store_plane(item, plane, slot);
          meet();
        }
        slot = slot + 1 < p.ring ? slot + 1 : 0;
      }
    }
  }
};

template <class Traits>
__global__ void __launch_bounds__(kSpreadThreads, 1)
    spread_kernel(const __grid_constant__ SpreadParams p, const __grid_constant__ PlainSum plain) {
  extern __shared__ __align__(128) float shared[];
  const SpreadShared<Traits> s(device::shared_address(shared));
  const int thread = static_cast<int>(threadIdx.x), channel_tile = static_cast<int>(blockIdx.x) % p.channel_tiles;
  if (thread == 0) {
    for (int i = 0; i < 2; ++i) {
      device::barrier_init(s.full(i), Traits::kMultipliers / 32);
      device::barrier_init(s.empty(i), SpreadAdder<Traits>::kWarps);
    }
    device::barrier_init_fence();
  }
  lay_out_weights<Traits>(p, s, channel_tile);
  for (int i = thread; i < p.ring * p.tile_channels * p.tile_lines * p.line; i += kSpreadThreads) {
    spread_store(s.sums + static_cast<uint32_t>(i) * 4, 0.0f);
  }
  __syncthreads();
  if (thread < Traits::kMultipliers) {
    device::registers_increase<Traits::kMultiplierRegisters>();
    SpreadMultiplier<Traits>{p, s}.run();
  } else {
    device::registers_decrease<Traits::kAdderRegisters>();
    SpreadAdder<Traits>{p, plain, s, channel_tile}.run();
  }
}

}  // namespace halo::cuda::conv
