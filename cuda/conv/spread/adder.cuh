// Few channels out of many, unit stride (spread.cu): the warps that add products to sums of targets.
#pragma once

#include <cfloat>

#include "../../device/activation.cuh"
#include "../../device/mbarrier.cuh"
#include "../plain_sum.cuh"
#include "item.cuh"

namespace halo::cuda::conv {

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
            sum[i] = device::load_shared(exists ? own[i] : sums);
          }
          uint32_t from = row;
#pragma unroll
          for (int t = 0; t < taps; ++t, from += apart) {
#pragma unroll
            for (int i = 0; i < kEach; ++i)
              value[i] += device::load_shared(from + i * 128);  // past the tile's end: not used
          }
#pragma unroll
          for (int i = 0; i < kEach; ++i) {
            if (own[i] != 0) device::store_shared(own[i], __float_as_uint(sum[i] + value[i]));
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
          value = device::load_shared(sums + static_cast<uint32_t>(at) * 4);
          device::store_shared(sums + static_cast<uint32_t>(at) * 4, 0);
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

}  // namespace halo::cuda::conv
