// The dense engine's kernel for small convolutions: what it is told, and its planning. Host code and plain data.
#pragma once

#include <halo/core/host_device.h>
#include <halo/cuda/conv/algorithm.h>
#include <halo/cuda/device/fast_divide.h>

#include <cstdint>
#include <optional>

namespace halo::cuda::conv {

inline constexpr int kSmallWarpgroups = 4;  ///< a block; each multiplies some channels
inline constexpr int kSmallThreads = kSmallWarpgroups * 128;
inline constexpr int kSmallRows = 64;                    ///< target channels of a tile
inline constexpr int kSmallStepFloats = kSmallRows * 8;  ///< weights of a tile and 8 source channels, one tap
inline constexpr int kSmallStepBytes = kSmallStepFloats * 4;
inline constexpr int kSmallChain = 3;  ///< steps whose products are added inside the tensor core

/// Positions of a tile for which there is a kernel.
inline constexpr int kSmallColumns[] = {32, 64};

/// Words from row to row of partial sums: 8 mod 32, so that no banks conflict.
HALO_HOST_DEVICE constexpr int small_pitch(int columns) { return (columns + 31) / 32 * 32 + 8; }

/// With `source` the activation that is read and `target` the one that is written,
///   target[n, co, q] = sum over taps t and source channels ci of source[n, ci, q - padding + t * dilation] * weight
/// Positions are counted in a grid that is wide enough for the zeros around the source (dense_small.cu).
struct SmallParams {
  const float* source;
  const float* weights;  ///< prepared
  const float* bias;     ///< or null
  float* target;
  Activation activation;
  int64_t source_plane, target_plane;
  int batch, groups;
  int channels, target_channels;  ///< a group
  int row_tiles;                  ///< of kSmallRows target channels, a group
  int chunks, lane_chunks;        ///< of 8 source channels: all, and those of one warpgroup, at most
  int ranks, share;               ///< blocks of a cluster, which share the channels; rows that each finishes
  FastDivide grid[3];             ///< extents of the grid of positions
  int source_extent[3], target_extent[3], padding[3];
  int kernel[3], tap_step[3];  ///< steps in the grid
  int taps;
  int halo;  ///< positions that a tile reads
  FastDivide by_halo;
  bool source_first;  ///< the grid before this one lays out the weights, and the source was complete before it
};

/// Shared memory, in this order; byte offsets from an aligned base. Sums take the room of what was multiplied.
struct SmallShared {
  uint32_t halos, weights, received, sources, targets, steps;
  HALO_HOST_DEVICE SmallShared(const SmallParams& p, int columns, int parts, uint32_t base) {
    const uint32_t lane_halo = static_cast<uint32_t>(p.lane_chunks * parts * p.halo) * 32;
    const uint32_t lane_weights = static_cast<uint32_t>(p.lane_chunks * p.taps) * kSmallStepBytes;
    const auto tile = static_cast<uint32_t>(kSmallRows * small_pitch(columns)) * 4;
    halos = base;
    weights = halos + kSmallWarpgroups * lane_halo;
    received = halos + kSmallWarpgroups * (lane_halo + lane_weights > tile ? lane_halo + lane_weights : tile);
    sources = received + static_cast<uint32_t>(p.ranks * p.share * small_pitch(columns)) * 4;
    targets = sources + static_cast<uint32_t>(p.halo) * 4;
    steps = targets + static_cast<uint32_t>(columns) * 4;
  }
  HALO_HOST_DEVICE uint32_t end(const SmallParams& p) const {
    return steps + static_cast<uint32_t>(p.lane_chunks * p.taps) * 4;
  }
};

struct SmallPlan {
  SmallParams params{};  ///< without pointers
  int columns = 0;       ///< positions of a tile
  int tiles = 0;         ///< of positions
  std::size_t shared_bytes = 0;
  std::size_t weight_bytes = 0;
  double predicted_ms = 0;
};

/// The cheapest plan, or none where the limits (dense_small.cu) do not hold.
std::optional<SmallPlan> plan_small(const ConvProblem& problem, const ConvConfig& config, int multiprocessors);

}  // namespace halo::cuda::conv
