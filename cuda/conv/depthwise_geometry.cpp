#include "depthwise_geometry.h"

#include <algorithm>

namespace halo::cuda::conv::depthwise {
namespace {

constexpr int64_t kLargest = int64_t{1} << 30;  // room for the halo and one block beyond the last column

int to_int(int64_t value) { return static_cast<int>(value); }

FastDivide divider(int64_t by) { return FastDivide(static_cast<uint32_t>(by)); }

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool passes_through(const ConvProblem& p, std::size_t axis) {
  return p.kernel[axis] == 1 && p.padding_before[axis] == 0 && p.input[axis] == p.output[axis];
}

MarchSide side(const ConvProblem::Extents& extents, const MarchShape& shape, bool depth_marches) {
  MarchSide out;
  const int64_t depth = extents[0], height = extents[1], width = extents[2];
  out.width = to_int(width);
  out.slice = width;
  if (depth_marches) {
    out.march = to_int(depth);
    out.inner = to_int(height);
    out.march_pitch = height * width;
    out.inner_pitch = width;
    out.slice = depth * height * width;
  } else if (shape.march > 1) {
    out.march = to_int(height);
    out.march_pitch = width;
    out.slice = height * width;
  }
  return out;
}

}  // namespace

MarchShape march_shape(const ConvProblem& p) {
  for (std::size_t axis = 0; axis < 3; ++axis) {
    const bool unit = p.stride[axis] == 1 && (p.dilation[axis] == 1 || p.kernel[axis] == 1);
    if (!unit) return {0, 0, 0};
  }
  const int depth = to_int(p.kernel[0]), height = to_int(p.kernel[1]), width = to_int(p.kernel[2]);
  if (depth > 1) return {depth, height, width};
  if (!passes_through(p, 0)) return {0, 0, 0};
  if (height > 1) return {height, 1, width};
  if (!passes_through(p, 1)) return {0, 0, 0};
  return {1, 1, width};
}

bool march_fits(const ConvProblem& p) {
  for (std::size_t axis = 0; axis < 3; ++axis) {
    if (std::max(p.input[axis], p.output[axis]) >= kLargest) return false;
  }
  return true;
}

MarchGeometry march_geometry(const ConvProblem& p, bool flipped, int vector, int longest_strip) {
  const MarchShape shape = march_shape(p);
  const bool depth_marches = p.kernel[0] > 1;
  MarchGeometry g;
  g.source = side(flipped ? p.output : p.input, shape, depth_marches);
  g.result = side(flipped ? p.input : p.output, shape, depth_marches);
  const auto pad = [&](std::size_t axis) {
    return to_int(flipped ? p.kernel[axis] - 1 - p.padding_before[axis] : p.padding_before[axis]);
  };
  g.pad_width = pad(2);
  g.pad_march = shape.march == 1 ? 0 : depth_marches ? pad(0) : pad(1);
  g.pad_inner = depth_marches ? pad(1) : 0;

  int64_t columns = divide_up(g.result.width, vector);
  int64_t fold = 1;
  if (shape.march == 1) {  // case 1: the steps are blocks of columns of one row
    fold = p.output[0] * p.output[1];
    const int64_t lanes = std::min<int64_t>(columns, kMarchThreads);
    g.column_step = to_int(lanes * vector);
    g.result.march = g.source.march = to_int(divide_up(columns, lanes));
    g.result.march_pitch = g.source.march_pitch = g.column_step;
    columns = lanes;
  } else if (!depth_marches) {
    fold = p.output[0];
  }

  // Enough threads for every multiprocessor several times over come before long strips.
  constexpr int64_t kThreadsWanted = 132 * 2048 * 4;
  const int64_t per_strip = std::max<int64_t>(1, p.batch * p.in_channels * fold * columns * g.result.inner);
  const int64_t strips_wanted = divide_up(kThreadsWanted, per_strip);
  const int64_t shortest = std::min<int64_t>(longest_strip, 2 * shape.march);
  const int64_t rows = std::clamp<int64_t>(divide_up(g.result.march, strips_wanted), shortest, longest_strip);
  const int64_t strips = divide_up(g.result.march, rows);
  g.strip = to_int(divide_up(g.result.march, strips));
  g.columns = divider(columns);
  g.inner = divider(g.result.inner);
  g.strips = divider(strips);
  g.fold = divider(fold);
  g.tasks_per_plane = columns * g.result.inner * strips * fold;
  return g;
}

}  // namespace halo::cuda::conv::depthwise
