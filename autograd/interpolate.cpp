// Resizing is separable, so that an axis is resized after another, and each is an index_select or a weighted sum of
// two: their kernels, their ordered gradients and their second derivatives are all there is.
#include <halo/autograd/arithmetic.h>
#include <halo/autograd/index.h>
#include <halo/autograd/interpolate.h>
#include <halo/autograd/unary.h>
#include <halo/core/error.h>

#include <cmath>

namespace halo {
namespace {

constexpr const char* kOp = "interpolate";

/// How one axis is resized.
struct Axis {
  int64_t from, to;
  double step;  ///< elements of the input from one of the result to the next
  bool identity() const { return from == to && step == 1; }
  double last() const { return static_cast<double>(from - 1); }
};

void check(const Tensor& input, const InterpolateOptions& o) {
  check_floating(kOp, {{"input", input}});
  if (input.rank() < 3 || input.rank() > 5) {
    fail(kOp, ": input expects 3 to 5 axes [N, C, spatial...], got ", input.shape());
  }
  for (int i = 2; i < input.rank(); ++i) {
    if (input.shape()[i] < 1) fail(kOp, ": input expects spatial extents of at least 1, got ", input.shape());
  }
  if (o.size.empty() == o.scale_factor.empty()) fail(kOp, ": expected one of size and scale_factor");
  const std::size_t given = o.size.empty() ? o.scale_factor.size() : o.size.size();
  if (given != 1 && given != static_cast<std::size_t>(input.rank() - 2)) {
    fail(kOp, o.size.empty() ? ": scale_factor" : ": size", " expects 1 or ", input.rank() - 2, " values, got ", given);
  }
  if (o.align_corners && o.mode == InterpolateMode::Nearest)
    fail(kOp, ": align_corners expects InterpolateMode::Linear");
}

Axis axis_of(int64_t from, std::size_t index, const InterpolateOptions& o) {
  constexpr int64_t kLargest = int64_t{1} << 31;  // of an axis: its places are exact in float64 by far
  Axis axis{.from = from, .to = 0, .step = 1};
  if (!o.size.empty()) {
    axis.to = o.size.size() == 1 ? o.size[0] : o.size[index];
    axis.step = static_cast<double>(from) / static_cast<double>(axis.to);
  } else {
    const double factor = o.scale_factor.size() == 1 ? o.scale_factor[0] : o.scale_factor[index];
    const double extent = std::floor(static_cast<double>(from) * factor);
    if (!(extent >= 1 && extent <= static_cast<double>(kLargest))) {
      fail(kOp, ": scale_factor expects to make an extent of 1 to 2^31 of ", from, ", got ", factor);
    }
    axis.to = static_cast<int64_t>(extent);
    axis.step = 1 / factor;
  }
  if (axis.to < 1 || axis.to > kLargest) fail(kOp, ": size expects extents of 1 to 2^31, got ", axis.to);
  if (o.align_corners) {
    axis.step = axis.to > 1 ? static_cast<double>(from - 1) / static_cast<double>(axis.to - 1) : 0;
    if (from == axis.to) axis.step = 1;  // one element is itself
  }
  return axis;
}

// Places are made where x is, in float64, by functions that round once each: a graph of a GPU can hold them.

Tensor nearest(const Tensor& x, int dim, const Axis& axis) {
  const Tensor i = arange(axis.to, {.dtype = float64, .device = x.device()});
  return index_select(x, dim, clamp(i * axis.step, 0, axis.last()).to(int64));
}

Tensor linear(const Tensor& x, int dim, const Axis& axis, bool align_corners) {
  const Tensor i = arange(axis.to, {.dtype = float64, .device = x.device()});
  const Tensor place = align_corners ? i * axis.step : clamp((i + 0.5) * axis.step - 0.5, 0, INFINITY);
  const Tensor below = clamp(place, 0, axis.last()).to(int64), whole = below.to(float64);
  const Tensor above = clamp(whole + 1, 0, axis.last()).to(int64), share = clamp(place - whole, 0, 1);
  Shape along = Shape::filled(x.rank(), 1);
  along[dim] = axis.to;
  const auto part = [&](const Tensor& places, const Tensor& weights) {
    return index_select(x, dim, places) * weights.to(x.dtype()).reshape(along);
  };
  return part(below, 1 - share) + part(above, share);
}

}  // namespace

Tensor interpolate(const Tensor& input, const InterpolateOptions& options) {
  check(input, options);
  std::vector<Axis> axes;
  for (int dim = 2; dim < input.rank(); ++dim) {
    axes.push_back(axis_of(input.shape()[dim], static_cast<std::size_t>(dim - 2), options));
  }
  // Half types are rounded once, at the end.
  Tensor x = is_half(input.dtype()) && options.mode == InterpolateMode::Linear ? input.to(float32) : input;
  for (int dim = input.rank() - 1; dim >= 2; --dim) {
    const Axis& axis = axes[static_cast<std::size_t>(dim - 2)];
    if (axis.identity()) continue;
    x = options.mode == InterpolateMode::Nearest ? nearest(x, dim, axis) : linear(x, dim, axis, options.align_corners);
  }
  return x.to(input.dtype());
}

}  // namespace halo
