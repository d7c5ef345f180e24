// What plans of few_results/few_results.h and few_sources/few_sources.h have in common.
#pragma once

#include "small_groups/small_groups.h"

namespace halo::cuda::conv {

/// Sets the extents, pitches and origin of `g`, seen as images of one depth and one group each.
template <class Plan>
void describe_images(const small_groups::GroupProblem& g, Plan& plan) {
  plan.groups = g.groups;
  plan.depth = g.source[0];
  plan.images = g.batch * g.groups * plan.depth;
  plan.channels = g.source_channels;
  plan.results = g.result_channels;
  plan.source_rows = g.source[1];
  plan.source_width = g.source[2];
  plan.result_rows = g.result[1];
  plan.result_width = g.result[2];
  plan.source_plane = g.source_rows.plane_pitch;
  plan.result_plane = g.result_rows.plane_pitch;
  plan.source_slice = g.source_rows.outer_pitch;
  plan.result_slice = g.result_rows.outer_pitch;
  plan.weight_group = g.weight_group;
  plan.weight_result = g.weight_result;
  plan.weight_source = g.weight_source;
  plan.first_row = g.origin[1];
  plan.first_column = g.origin[2];
}

}  // namespace halo::cuda::conv
