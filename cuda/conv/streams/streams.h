// Strided convolutions of few channels a group, passes that read the larger tensor: forward (for a transposed
// convolution that is its input gradient) and backward_weight. What the host decides and the kernels of
// gather.cuh and weight.cuh read.
//
// A block owns a group and takes items: a range of heights of an image, over all or some depths. x streams through a
// ring in shared memory along the depth, a unit at a time: of every channel the rows of one depth that the item's
// heights read, which are one run of memory whatever its alignment. Where there is one depth alone, the heights are the
// depths, of one row each.
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include <cstddef>
#include <cstdint>

#include "../../device/fast_divide.h"

namespace halo::cuda::conv::streams {

inline constexpr int kMostSlots = 16;  ///< of the ring

/// What a kernel is compiled for: the step of the width, and the most taps of a row, chunks of 8 channels and depths of
/// y that a unit adds to. Odd taps, for half types two a product.
struct Shape {
  int step, taps, chunks, live;

  /// Tiles of 16 positions that a warp has, as registers allow, and warps that multiply.
  constexpr int tiles() const { return live > 2 ? 2 : taps <= 3 && chunks == 1 ? 4 : 3; }
  constexpr int users() const { return tiles() == 3 ? 12 : 11; }
  /// Whether a lane's positions are neighbours, so that taps a step apart share what they read; of half types, two
  /// columns a word, so do taps one apart.
  constexpr bool windows(int element_size) const { return element_size == 4 ? taps > 2 * step : step == 2; }
  /// Positions from one lane g to the next.
  constexpr int lane_apart(int element_size) const { return windows(element_size) ? 2 * tiles() : 1; }
  /// Of a row and chunk.
  constexpr int products(int element_size) const { return element_size == 4 ? taps : taps / 2 + 1; }
};
inline constexpr Shape kShapes[] = {{2, 3, 1, 2}, {2, 3, 2, 2}, {2, 7, 1, 2}, {2, 7, 1, 3}, {2, 5, 2, 3}, {3, 5, 2, 3}};

struct Axis {
  int source = 1, result = 1;  ///< extents of x and y
  int kernel = 1, step = 1, apart = 1;
  int origin = 0;  ///< of the first tap of result 0
};

/// Which channel a lane (g, t) reads: t % 2 times `odd`, t / 2 times `high`, half times `half`, chunk times `chunk`;
/// and where it lies: channel % 4 times `pitch`, channel / 4 times `quad_pitch`, in bytes.
struct ChannelMap {
  int odd = 1, high = 2, half = 4, chunk = 8;
  int pitch = 0, quad_pitch = 0;
};

struct Plan {
  int groups, channels, results;  ///< of a group
  Axis depth, height, width;
  int64_t x_elements;
  int apart;    ///< depths of x from one unit to the next
  int phases;   ///< units from one depth of y to the next
  int heights;  ///< of y, of an item
  int depths;   ///< of y, of an item
  FastDivide by_height, by_depth;
  ChannelMap map;
  int weight_depths;  ///< of the weights in shared memory: those of the kernel, and some zeros
  int weight_bytes;   ///< of shared memory, in front of the slots: lanes read some columns in front of a row
  int slot_bytes, slots;
  int shape;      ///< of kShapes
  int row_warps;  ///< that share a row
  int users;
  int result_sets;  ///< of 8, a block each
  int items;        ///< of a group and result set
  int sharers;      ///< blocks that share those
  int64_t blocks = 0;
  std::size_t shared_bytes = 0;
  double predicted_ms = 0;
};

/// Sizes of the streams of `problem`; false where they have none.
bool describe(const ConvProblem& problem, Plan& plan);
/// Room for runs of `bytes` in a slot, with the pitches of `map` modulo 128, where all banks are met.
void place_channels(Plan& plan, const ChannelMap& map, int64_t bytes);
/// Makes items of the depths in so many parts, or fewer, and of `plan.heights`, which blocks of each of `owners` share.
/// The rounds of items that the busiest multiprocessor has; 0 where this is no other cut than the last, or one of too
/// many items.
double cut_depths(Plan& plan, int64_t batch, int64_t cuts, int64_t owners);

/// `blocks` is 0 where there is none.
Plan plan_gather(const ConvProblem& problem, const ConvConfig& config);

}  // namespace halo::cuda::conv::streams
