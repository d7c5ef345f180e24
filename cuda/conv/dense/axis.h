// One axis of the dense engine's gather: which source offsets its outputs read. Host only.
#pragma once

#include <halo/ops/conv_problem.h>

#include <cstdint>
#include <vector>

namespace halo::cuda::conv {

/// One axis of the gather (params.h).
struct DenseAxis {
  int64_t source, target;     // extents
  int64_t out_step, in_step;  // U, S
  int64_t group = 1;          // J
  int64_t origin = 0;         // of the first group, -U < origin <= 0: groups that start with a phase need fewer taps
  int64_t tap_step = 1;
  int64_t fill_step = 1;      // common step of rows and taps: positions between are never read
  int64_t halo_tap_step = 1;  // tap_step in fill_steps; so is in_step
  struct Taps {
    int64_t first = 0, window = 0;
    int64_t j0 = 0;
  };
  std::vector<Taps> phases;  // one unless the phases of a stride are separate; those without taps are left out
  bool complete = true;      // no phase was left out
};

/// The axis with `group` positions (a multiple of the stride's phases in backward_input) as columns, or, with
/// `separate`, each phase of the stride on its own.
DenseAxis make_dense_axis(const ConvProblem& p, std::size_t axis, bool forward, int64_t group, bool separate);

/// Axes that one pass treats as one: an axis with a kernel of 1, stride 1 and no padding joins the one before it. An
/// idle height gives its place to depth.
ConvProblem merge_axes(ConvProblem problem);

}  // namespace halo::cuda::conv
