#include <algorithm>
#include <array>

#include "limits.h"

namespace halo::cuda::conv::small_groups {
namespace {

/// Sizes of the form along one axis.
struct FormAxis {
  int64_t input = 1, output = 1, kernel = 1, stride = 1, dilation = 1, padding = 0;
};

/// The axes of `p`. A width that the kernel passes through unchanged becomes part of the height above it, so that
/// short last axes do not waste the width of a tile.
std::array<FormAxis, 3> merged_axes(const ConvProblem& p) {
  std::array<FormAxis, 3> axes;
  for (std::size_t i = 0; i < 3; ++i) {
    axes[i] = {p.input[i], p.output[i], p.kernel[i], p.stride[i], p.dilation[i], p.padding_before[i]};
  }
  for (int merges = 0; merges < 2; ++merges) {
    const FormAxis& w = axes[2];
    const FormAxis& h = axes[1];
    const bool untouched = w.kernel == 1 && w.stride == 1 && w.padding == 0 && w.input == w.output;
    if (!untouched || h.stride != 1) break;
    axes[2] = {h.input * w.input, h.output * w.input, h.kernel, 1, h.dilation * w.input, h.padding * w.input};
    axes[1] = axes[0];
    axes[0] = {};
  }
  return axes;
}

void forward_taps(const FormAxis& axis, AxisTaps& taps, int& origin) {
  origin = to_int(-axis.padding);
  taps.count[0] = static_cast<int16_t>(axis.kernel);
  for (int t = 0; t < axis.kernel; ++t) {
    taps.tap[0][t] = static_cast<int16_t>(t);
    taps.offset[0][t] = to_int(t * axis.dilation);
  }
}

void backward_taps(const FormAxis& axis, AxisTaps& taps, int& origin) {
  int64_t least = kLargestExtent;
  for (int64_t phase = 0; phase < axis.stride; ++phase) {
    int count = 0;
    for (int64_t t = 0; t < axis.kernel; ++t) {
      const int64_t scaled = phase + axis.padding - t * axis.dilation;
      if (scaled % axis.stride != 0) continue;
      taps.tap[phase][count] = static_cast<int16_t>(t);
      taps.offset[phase][count++] = to_int(scaled / axis.stride);
      least = std::min(least, scaled / axis.stride);
    }
    taps.count[phase] = static_cast<int16_t>(count);
  }
  origin = to_int(least);
  for (int64_t phase = 0; phase < axis.stride; ++phase) {
    for (int i = 0; i < taps.count[phase]; ++i) taps.offset[phase][i] -= origin;
  }
}

}  // namespace

GroupProblem group_problem(const ConvProblem& p, bool forward) {
  GroupProblem g{};
  const auto axes = merged_axes(p);
  g.batch = p.batch;
  g.groups = to_int(p.groups);
  g.source_channels = to_int(forward ? p.in_channels_per_group() : p.out_channels_per_group());
  g.result_channels = to_int(forward ? p.out_channels_per_group() : p.in_channels_per_group());
  for (std::size_t i = 0; i < 3; ++i) {
    const FormAxis& axis = axes[i];
    g.source[i] = to_int(forward ? axis.input : axis.output);
    g.result[i] = to_int(forward ? axis.output : axis.input);
    g.kernel[i] = to_int(axis.kernel);
    g.step[i] = forward ? to_int(axis.stride) : 1;
    g.phases[i] = forward ? 1 : to_int(axis.stride);
    if (forward) {
      forward_taps(axis, g.taps[i], g.origin[i]);
    } else {
      backward_taps(axis, g.taps[i], g.origin[i]);
    }
  }
  const auto rows = [](const int(&extents)[3]) {
    RowSource source{extents[0], extents[1], extents[2]};
    source.inner_pitch = extents[2];
    source.outer_pitch = source.inner_pitch * extents[1];
    source.plane_pitch = source.outer_pitch * extents[0];
    return source;
  };
  g.source_rows = rows(g.source);
  g.result_rows = rows(g.result);
  g.source_rows.elements = forward ? p.x_numel() : p.y_numel();
  g.result_rows.elements = forward ? p.y_numel() : p.x_numel();
  g.tap_pitch[2] = 1;
  g.tap_pitch[1] = g.kernel[2];
  g.tap_pitch[0] = g.kernel[1] * g.kernel[2];
  const int64_t row = p.in_channels_per_group() * p.taps();
  g.weight_group = p.out_channels_per_group() * row;
  g.weight_result = forward ? row : p.taps();
  g.weight_source = forward ? p.taps() : row;
  return g;
}

bool small_groups_fit(const ConvProblem& p) {
  if (p.x_numel() == 0 || p.y_numel() == 0 || p.w_numel() == 0) return false;
  for (const FormAxis& axis : merged_axes(p)) {
    const bool fits = std::max(axis.input, axis.output) < kLargestExtent && axis.kernel <= kMostAxisTaps &&
                      axis.stride <= kMostPhases && axis.dilation * axis.kernel < kLargestExtent / 2 &&
                      std::abs(axis.padding) < kLargestExtent / 2 && axis.output * axis.stride < kLargestExtent;
    if (!fits) return false;
  }
  return p.groups < kLargestExtent && std::max(p.in_channels_per_group(), p.out_channels_per_group()) <= 64;
}

bool few_channels(const ConvProblem& p) {
  const int64_t fewest = std::min(p.in_channels_per_group(), p.out_channels_per_group());
  const int64_t most = std::max(p.in_channels_per_group(), p.out_channels_per_group());
  return most <= 16 || (fewest <= 4 && most <= 64);
}

}  // namespace halo::cuda::conv::small_groups
