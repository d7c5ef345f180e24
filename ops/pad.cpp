#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/backend.h>
#include <halo/ops/pad.h>
#include <halo/ops/pad_backend.h>

#include <algorithm>

namespace halo::ops {
namespace {

const char* name(PadMode mode) {
  switch (mode) {
    case PadMode::Constant: return "constant";
    case PadMode::Reflect: return "reflect";
    case PadMode::Replicate: return "replicate";
    case PadMode::Circular: return "circular";
  }
  return "?";
}

constexpr int64_t kAnyAmount = INT64_MAX / 4;  // two of them and an extent do not overflow

/// The most that `mode` can put in front of or behind an axis of `extent`.
int64_t longest(PadMode mode, int64_t extent) {
  switch (mode) {
    case PadMode::Constant: return kAnyAmount;
    case PadMode::Reflect: return std::max<int64_t>(0, extent - 1);
    case PadMode::Replicate: return extent > 0 ? kAnyAmount : 0;
    case PadMode::Circular: return extent;
  }
  return 0;
}

PadProblem problem_of(const Shape& shape, const IntList& pad, PadMode mode) {
  const int axes = static_cast<int>(pad.size() / 2), rank = shape.rank();
  if (pad.size() % 2 != 0 || axes < 1 || axes > 3 || axes > rank) {
    fail("pad: pad expected before and after of 1 to 3 of the last axes of ", shape, ", got ", pad.size(), " numbers");
  }
  PadProblem problem{.mode = mode};
  for (int axis = 0; axis < rank - axes; ++axis) problem.outer *= shape[axis];
  for (int i = 0; i < axes; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const int64_t extent = shape[rank - 1 - i], before = pad[2 * at], after = pad[2 * at + 1];
    for (int64_t amount : {before, after}) {
      if (amount >= 0 && amount <= longest(mode, extent)) continue;
      fail("pad: ", name(mode), " padding of dim ", rank - 1 - i, " (extent ", extent, ") expected at least 0",
           " and at most ", longest(mode, extent), ", got ", amount);
    }
    problem.input[2 - at] = extent;
    problem.before[2 - at] = before;
    problem.output[2 - at] = extent + before + after;
  }
  return problem;
}

Shape padded(Shape shape, const IntList& pad) {
  for (std::size_t i = 0; i < pad.size(); ++i) shape[shape.rank() - 1 - static_cast<int>(i / 2)] += pad[i];
  return shape;
}

}  // namespace

Tensor pad(const Tensor& x, const IntList& amounts, PadMode mode, const Scalar& value) {
  check_defined("pad", {{"input", x}});
  const PadProblem problem = problem_of(x.shape(), amounts, mode);
  Tensor y = empty(padded(x.shape(), amounts), x.options());
  const Tensor dense_x = view::dense(x);
  run_backend<HalfKernels::Everywhere>("pad", x.device(), cpu::pad, cuda::pad, problem, value, dense_x, writes(y));
  return y;
}

Tensor pad_backward(const Tensor& g, const Shape& shape, const IntList& amounts, PadMode mode) {
  const PadProblem problem = problem_of(shape, amounts, mode);
  if (g.shape() != padded(shape, amounts)) {
    fail("pad_backward: grad_output expected shape ", padded(shape, amounts), ", got ", g.shape());
  }
  Tensor x = empty(shape, g.options());
  const Tensor dense_g = view::dense(g);
  run_backend<HalfKernels::Cuda>("pad_backward", g.device(), cpu::pad_backward, cuda::pad_backward, problem, dense_g,
                                 writes(x));
  return x;
}

}  // namespace halo::ops
