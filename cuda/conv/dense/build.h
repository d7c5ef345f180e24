// Between the search for a plan and its numbers: what the search chose. Host only.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <optional>

#include "axis.h"
#include "plan.h"

namespace halo::cuda::conv {

inline constexpr int64_t kSharedLimit = 227 * 1024;    // of a block
inline constexpr int64_t kSharedForCache = 32 * 1024;  // copies of 4 and 8 bytes go through L1, which needs room
inline constexpr int64_t kHaloInFlight = 96 * 1024;    // bytes

inline constexpr int64_t kBoxExtent = 256;  // the longest side of what the copy engine brings at once

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int as_int(int64_t value) { return static_cast<int>(value); }

/// What is to be computed, with mergeable axes merged.
struct DenseTask {
  ConvProblem problem;
  bool forward, accurate, aligned;           ///< pass, mode, operands at multiples of 16 bytes
  int element;                               ///< bytes of operands and results
  int64_t source_channels, target_channels;  ///< a group
  int64_t target_numel() const { return forward ? problem.y_numel() : problem.x_numel(); }
};

/// What does not depend on the tile: a choice of groups and of the compiled shape, with its cost a row.
struct DenseCandidate {
  std::array<DenseAxis, 3> axes;
  int variant = 0;
  int64_t group = 1;  ///< columns a target channel
  int64_t column_tiles = 1;
  int64_t steps_per_chunk = 0;  ///< the longest phase's
  int64_t steps = 0;            ///< k8 steps of all chunks and phases, padded to stages
  bool folded = false;
  bool windows = false;  ///< as in DensePlan; items then begin where sources are aligned
  int64_t fill_words = 1;
  bool boxable = false;  ///< rows of the source are such that the copy engine can bring them
  int64_t chunk_channels = 8;
  int64_t chunks = 1;
  double ms_per_row = 0;  ///< lower bound for one output position of one multiprocessor
  int rank = 0;           ///< the less the better where costs are equal

  const DenseVariant& shape() const { return kDenseVariants[variant]; }
  /// The four depth elements that a warp reads together are neighbouring taps, else channels.
  bool taps_are_depth() const { return folded && chunk_channels != 4; }
  /// 2^span_log2 neighbouring columns are neighbouring positions along width.
  int span_log2() const { return std::min(3, std::countr_zero(static_cast<uint64_t>(axes[2].group))); }
  template <class F>
  void for_each_phase(const F& f) const {
    for (const auto& d : axes[0].phases)
      for (const auto& h : axes[1].phases)
        for (const auto& w : axes[2].phases) f(d, h, w);
  }
};

/// One way to cut the rows.
struct DenseTiling {
  std::array<int64_t, 3> tile, halo, tiles;  ///< rows of an item, what they read, items along each axis
  int64_t line = 0;                          ///< positions of a line where tiles are flat, else 0
  bool boxed = false;                        ///< the halo is a box of the copy engine
  int64_t splits = 1;                        ///< of the depth
};

/// The plan's numbers, or none where it does not fit shared memory or the workspace.
std::optional<DensePlan> build_dense(const DenseTask& task, const DenseCandidate& candidate, const DenseTiling& tiling);

}  // namespace halo::cuda::conv
