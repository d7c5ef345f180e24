// Transposed convolutions (input gradients with a stride of 2 along the width) of few channels a group, all phases of
// which are rows of one product: what the host decides and phase_rows_kernel.cuh reads. Phases and offsets are those of
// small_groups.h.
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include <cstddef>
#include <cstdint>

#include "../device/fast_divide.h"
#include "small_groups.h"

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

}  // namespace halo::cuda::conv::phase_rows
