// Few channels out of many, unit stride, on Hopper: what the kernel is told, and its planning. Host code and plain
// data.
#pragma once

#include <halo/cuda/conv/algorithm.h>
#include <halo/cuda/device/fast_divide.h>

#include <cstdint>
#include <optional>

namespace halo::cuda::conv {

inline constexpr int kSpreadRows = 128;               ///< source positions of a tile
inline constexpr int kSpreadPitch = kSpreadRows + 4;  ///< words from column to column: 4 mod 32, no bank conflicts
inline constexpr int kSpreadSteps = 8;                ///< of eight source channels
inline constexpr int kSpreadThreads = 384;            ///< two warpgroups multiply, one adds up
inline constexpr int kSpreadColumns[] = {32, 64, 88, 112};  ///< compiled

/// With `source` the activation that is read and `target` the one that is written, on each axis and with t a tap,
///   target[q + t * dilation + shift] += source[q] * weight(t)
struct SpreadParams {
  const float* source;
  const float* weights;
  const float* bias;  ///< or null
  float* target;
  Activation activation;
  int64_t source_plane, target_plane;  ///< positions a channel
  int source_extent[3], target_extent[3], kernel[3], dilation[3], shift[3];
  int channels, target_channels, taps;
  bool forward;
  int tile_channels, channel_tiles;         ///< target channels of a block, which keeps to them
  int reach[3];                             ///< (kernel - 1) * dilation
  int line;                                 ///< words of a line of sums: a source line and how far it reaches
  int tile_lines, tile_planes;              ///< targets of a work item
  int ring;                                 ///< planes of sums
  FastDivide by_line, lines_of, planes_of;  ///< `line`; tiles along height and depth
  int items;
};

struct SpreadPlan {
  SpreadParams params{};  ///< without pointers
  int columns = 0;
  int blocks = 0;
  std::size_t shared_bytes = 0;
  double predicted_ms = 0;
};

/// The cheapest plan, or none where the limits (spread.cu) do not hold.
std::optional<SpreadPlan> plan_spread(const ConvProblem& problem, const ConvConfig& config, int multiprocessors);

}  // namespace halo::cuda::conv
