#include <halo/core/error.h>
#include <halo/ops/pool_problem.h>

#include <algorithm>

#include "extents.h"

namespace halo {
namespace {

using extents::Axes;
using extents::effective_kernel;
using extents::Extents;
using extents::kLargest;
using extents::saturating_madd;

/// The options of both kinds.
struct Windows {
  const IntList &kernel_size, &stride, &padding, &padding_after, &dilation;
  bool ceil_mode;
  AutoPadding auto_padding;
};

PoolProblem begin(const char* op, int rank, const Shape& x) {
  if (x.rank() != rank + 2) fail(op, ": input expects ", rank + 2, " axes [N, C, spatial...], got ", x);
  for (int i = 0; i < x.rank(); ++i) {
    if (x[i] < (i < 2 ? 0 : 1)) fail(op, ": input expects spatial extents of at least 1, got ", x);
  }
  PoolProblem p;
  p.rank = rank;
  p.batch = x[0];
  p.channels = x[1];
  return p;
}

/// @throws ArgumentError where a product of extents passes 2^63.
void check_products(const char* op, const PoolProblem& p) {
  extents::product(op, "input", p.x_shape());
  extents::product(op, "output", p.y_shape());
  const Extents kernel{p.axes[0].kernel, p.axes[1].kernel, p.axes[2].kernel};
  extents::product(op, "kernel_size", kernel);
}

/// Number of windows along an axis: the floor or ceiling of (padded - reach) / stride, plus one; the last one starts
/// inside the input or its left padding.
int64_t count_windows(const char* op, int axis, const PoolAxis& a, bool ceil_mode, const Shape& x) {
  const int64_t reach = effective_kernel(a.kernel, a.dilation);
  const int64_t padded = a.input + a.padding_before + a.padding_after, spare = padded - reach;
  if (spare < 0 && (!ceil_mode || -spare >= a.stride)) {
    fail(op, ": axis ", axis, " expects a padded input of at least the effective kernel ", reach, " (dilation ",
         a.dilation, " * (kernel ", a.kernel, " - 1) + 1), got padded input ", padded, " (input ", x, ")");
  }
  if (spare < 0) return 1;
  const int64_t windows = spare / a.stride + 1;
  if (!ceil_mode || spare % a.stride == 0) return windows;
  return saturating_madd(windows, a.stride, 0) < a.input + a.padding_before ? windows + 1 : windows;
}

/// Dilated taps may step over an input shorter than the dilation. (A longer one always stops a tap, since padding is at
/// most half a window.)
void check_not_empty(const char* op, int axis, const PoolAxis& a, const Shape& x) {
  if (a.input >= a.dilation) return;
  for (int64_t o = 0; o < a.output; ++o) {
    if (a.window(o).count > 0) continue;
    fail(op, ": axis ", axis, " expects an input under every window, but window ", o, " has none (input ", x,
         ", kernel ", a.kernel, ", dilation ", a.dilation, ", padding ", a.padding_before, ")");
  }
}

PoolProblem make(const char* op, int rank, const Shape& x, const Windows& options) {
  PoolProblem p = begin(op, rank, x);
  const Axes axes{op, rank};
  if (options.kernel_size.empty()) fail(op, ": kernel_size expects 1 or ", rank, " values, got []");
  const bool same = options.auto_padding == AutoPadding::Same;
  if (options.auto_padding == AutoPadding::Causal) fail(op, ": padding expects none, valid or same, got causal");
  if (options.auto_padding != AutoPadding::None && !(options.padding.empty() && options.padding_after.empty())) {
    fail(op, ": padding expects no numbers beside valid or same, got ", extents::show(options.padding));
  }
  const Extents input = axes.spatial(x), kernel = axes.expand("kernel_size", options.kernel_size, 1, 1);
  const Extents stride = options.stride.empty() ? kernel : axes.expand("stride", options.stride, 1, 1);
  const Extents dilation = axes.expand("dilation", options.dilation, 1, 1);
  const Extents before = axes.expand("padding", options.padding, 0, 0);
  const Extents after =
      options.padding_after.empty() ? before : axes.expand("padding_after", options.padding_after, 0, 0);
  for (std::size_t i = 0; i < 3; ++i) {
    const int axis = axes.axis_seen(i);
    const int64_t reach = effective_kernel(kernel[i], dilation[i]);
    if (std::max(reach, input[i]) > kLargest / 4) {
      fail(op, ": axis ", axis, " expects an input and an effective kernel below 2^61, got ", input[i], " and ", reach);
    }
    if (std::max(before[i], after[i]) > reach / 2) {
      fail(op, ": padding on axis ", axis, " expects at most half of the effective kernel ", reach, ", got ",
           std::max(before[i], after[i]));
    }
    PoolAxis& a = p.axes[i];
    a = {input[i], 0, kernel[i], stride[i], dilation[i], before[i], after[i], false};
    if (same) {
      const int64_t wanted = (input[i] - 1) / stride[i] + 1;
      const int64_t total = std::max<int64_t>((wanted - 1) * stride[i] + reach - input[i], 0);
      a.padding_before = total / 2;
      a.padding_after = total - total / 2;
    }
    a.output = count_windows(op, axis, a, options.ceil_mode && !same, x);
    check_not_empty(op, axis, a, x);
  }
  check_products(op, p);
  return p;
}

}  // namespace

PoolProblem PoolProblem::max(const char* op, int rank, const Shape& x, const IntList& kernel_size,
                             const MaxPoolOptions& o) {
  return make(op, rank, x,
              {kernel_size, o.stride, o.padding, o.padding_after, o.dilation, o.ceil_mode, o.auto_padding});
}

PoolProblem PoolProblem::average(const char* op, int rank, const Shape& x, const IntList& kernel_size,
                                 const AvgPoolOptions& o) {
  if (o.divisor_override.has_value() && *o.divisor_override == 0) {
    fail(op, ": divisor_override expects a number other than 0, got 0");
  }
  const IntList dilation{};
  PoolProblem p =
      make(op, rank, x, {kernel_size, o.stride, o.padding, o.padding_after, dilation, o.ceil_mode, o.auto_padding});
  p.count_include_pad = o.count_include_pad;
  p.divisor_override = o.divisor_override.value_or(0);
  return p;
}

PoolProblem PoolProblem::adaptive(const char* op, int rank, const Shape& x, const IntList& output_size) {
  PoolProblem p = begin(op, rank, x);
  const Axes axes{op, rank};
  if (output_size.empty()) fail(op, ": output_size expects 1 or ", rank, " values, got []");
  const Extents input = axes.spatial(x), output = axes.expand("output_size", output_size, 1, 0);
  for (std::size_t i = 0; i < 3; ++i) {
    const Extents sizes{input[i], output[i], 2};
    extents::product(op, "input times output_size", sizes);  // the windows' bounds are quotients of such products
    PoolAxis& a = p.axes[i];
    a.adaptive = true;
    a.input = input[i];
    a.output = output[i];
    a.kernel = a.output == 0 ? 1 : (a.input - 1) / a.output + 1 + (a.input % a.output != 0);
    a.kernel = std::min(a.kernel, a.input);
  }
  check_products(op, p);
  return p;
}

Shape PoolProblem::x_shape() const {
  return extents::with_channels(batch, channels, {axes[0].input, axes[1].input, axes[2].input}, rank);
}
Shape PoolProblem::y_shape() const {
  return extents::with_channels(batch, channels, {axes[0].output, axes[1].output, axes[2].output}, rank);
}

std::string PoolProblem::str() const {
  const auto list = [this](int64_t PoolAxis::*member) {
    std::string text;
    for (std::size_t i = static_cast<std::size_t>(3 - rank); i < 3; ++i) {
      text += (text.empty() ? "" : ",") + std::to_string(axes[i].*member);
    }
    return text;
  };
  const std::string shapes = concat("pool", rank, "d x", x_shape(), " y", y_shape());
  if (axes[2].adaptive) return shapes + " adaptive";
  return concat(shapes, " k", list(&PoolAxis::kernel), " s", list(&PoolAxis::stride), " p",
                list(&PoolAxis::padding_before), "+", list(&PoolAxis::padding_after), " d", list(&PoolAxis::dilation));
}

}  // namespace halo
