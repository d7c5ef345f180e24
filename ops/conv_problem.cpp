#include <halo/core/error.h>
#include <halo/ops/conv_problem.h>

#include <algorithm>

#include "extents.h"

namespace halo {
namespace {

using extents::Axes;
using extents::effective_kernel;
using extents::kLargest;
using extents::product;
using extents::saturating_madd;
using extents::show;
using extents::with_channels;
using Extents = ConvProblem::Extents;

int check_rank(const char* op, const Shape& x, const Shape& w) {
  if (x.size() < 3 || x.size() > 5) {
    fail(op, ": input expects 3 to 5 axes [N, C, spatial...], got ", x);
  }
  if (w.size() != x.size()) {
    fail(op, ": weight expects ", x.size(), " axes to match input ", x, ", got ", w);
  }
  for (const auto& shape : {x, w}) {
    for (int64_t extent : shape) {
      if (extent < 0) fail(op, ": extents expect 0 or more, got ", shape);
    }
  }
  return static_cast<int>(x.size()) - 2;
}

void check_groups(const char* op, int64_t groups, int64_t channels, const char* argument, const Shape& shape) {
  if (groups < 1) fail(op, ": groups expects at least 1, got ", groups);
  if (channels % groups != 0) {
    fail(op, ": groups ", groups, " expects to divide the ", channels, " channels of ", argument, " ", shape);
  }
}

void check_kernel(const char* op, const Shape& w) {
  for (int i = 2; i < w.rank(); ++i) {
    if (w[i] < 1) fail(op, ": weight expects kernel extents of at least 1, got ", w);
  }
}

void check_numel(const char* op, const ConvProblem& p) {
  const auto x = p.x_shape(), w = p.w_shape(), y = p.y_shape();
  product(op, "input", x);
  product(op, "weight", w);
  product(op, "output", y);
}

/// What ordinary and transposed convolution read alike: the batch, the kernel, and how it steps and is padded.
ConvProblem read(const Axes& axes, const Shape& x, const Shape& w, const ConvOptions& options) {
  check_kernel(axes.op, w);
  ConvProblem p;
  p.rank = axes.rank;
  p.groups = options.groups;
  p.batch = x[0];
  p.kernel = axes.spatial(w);
  p.stride = axes.expand("stride", options.stride, 1, 1);
  p.dilation = axes.expand("dilation", options.dilation, 1, 1);
  if (options.auto_padding == AutoPadding::Causal && axes.rank != 1) {
    fail(axes.op, ": causal padding expects one spatial axis, got input ", x);
  }
  if (options.auto_padding == AutoPadding::None) {
    p.padding_before = axes.expand("padding", options.padding, 0, 0);
    p.padding_after =
        options.padding_after.empty() ? p.padding_before : axes.expand("padding_after", options.padding_after, 0, 0);
  } else if (!options.padding.empty() || !options.padding_after.empty()) {
    fail(axes.op, ": padding expects no numbers beside valid, same or causal, got ", show(options.padding));
  }
  return p;
}

/// Ordinary convolution: padding that the input's size decides, and the output's size.
void find_output(ConvProblem& p, std::size_t i, const Axes& axes, AutoPadding auto_padding) {
  const int64_t reach = effective_kernel(p.kernel[i], p.dilation[i]);
  if (auto_padding == AutoPadding::Same) {
    const int64_t wanted = (p.input[i] + p.stride[i] - 1) / p.stride[i];
    const int64_t total =
        std::max<int64_t>(saturating_madd(std::max<int64_t>(wanted - 1, 0), p.stride[i], 0) - p.input[i] + reach, 0);
    p.padding_before[i] = total / 2;
    p.padding_after[i] = total - total / 2;
  } else if (auto_padding == AutoPadding::Causal) {
    p.padding_before[i] = reach - 1;
  }
  if (p.padding_before[i] > kLargest / 4 || p.padding_after[i] > kLargest / 4 || p.input[i] > kLargest / 4) {
    fail(axes.op, ": padding expects values below 2^61, got ", p.padding_before[i], " and ", p.padding_after[i]);
  }
  const int64_t padded = p.input[i] + p.padding_before[i] + p.padding_after[i];
  if (padded < reach) {
    fail(axes.op, ": axis ", axes.axis_seen(i), " expects a padded input of at least the effective kernel ", reach,
         " (dilation ", p.dilation[i], " * (kernel ", p.kernel[i], " - 1) + 1), got padded input ", padded, " (input ",
         p.x_shape(), ", weight ", p.w_shape(), ")");
  }
  p.output[i] = (padded - reach) / p.stride[i] + 1;
}

/// Transposed convolution, whose input is the `output` of the problem: padding that its size decides, and the size of
/// what it makes.
void find_input(ConvProblem& p, std::size_t i, const Axes& axes, AutoPadding auto_padding, int64_t output_padding) {
  const int axis = axes.axis_seen(i);
  const int64_t reach = effective_kernel(p.kernel[i], p.dilation[i]);
  const int64_t limit = std::max(p.stride[i], p.dilation[i]);
  if (output_padding >= limit && output_padding > 0) {
    fail(axes.op, ": output_padding on axis ", axis, " expects less than max(stride ", p.stride[i], ", dilation ",
         p.dilation[i], "), got ", output_padding);
  }
  const int64_t spread = saturating_madd(std::max<int64_t>(p.output[i] - 1, 0), p.stride[i], 0);
  if (spread > kLargest / 4 || reach > kLargest / 4 || p.padding_before[i] > kLargest / 4 ||
      p.padding_after[i] > kLargest / 4) {
    fail(axes.op, ": axis ", axis, " expects sizes below 2^61 (input ", p.y_shape(), ", stride ", p.stride[i],
         ", dilation ", p.dilation[i], ")");
  }
  const int64_t full = p.output[i] == 0 ? 0 : spread + reach;
  const bool computed = auto_padding == AutoPadding::Same || auto_padding == AutoPadding::Causal;
  if (computed && axis >= 0) {
    if (output_padding != 0) fail(axes.op, ": output_padding expects 0 beside same or causal, got ", output_padding);
    p.input[i] = saturating_madd(p.output[i], p.stride[i], 0);
    const int64_t total = full - p.input[i];  // negative: a tail that no tap reaches
    p.padding_before[i] = auto_padding == AutoPadding::Same ? std::max<int64_t>(total, 0) / 2 : 0;
    p.padding_after[i] = total - p.padding_before[i];
  } else {
    p.input[i] = full - p.padding_before[i] - p.padding_after[i] + output_padding;
    p.padding_after[i] -= output_padding;
  }
  if (p.input[i] < 0 || (p.input[i] == 0 && p.output[i] != 0)) {
    fail(axes.op, ": axis ", axis, " expects padding that leaves an output, got output size ", p.input[i], " (input ",
         p.y_shape(), ", weight ", p.w_shape(), ", effective kernel ", reach, ")");
  }
}

/// Where there is one position, nothing steps. So kernels meet no stride beyond the input's extent, whose products and
/// residues they would have to guard.
void drop_unused_strides(ConvProblem& p) {
  for (std::size_t i = 0; i < 3; ++i) {
    if (p.output[i] <= 1) p.stride[i] = 1;
  }
}

}  // namespace

const char* name(ConvPass pass) {
  switch (pass) {
    case ConvPass::Forward: return "forward";
    case ConvPass::BackwardInput: return "backward_input";
    case ConvPass::BackwardWeight: return "backward_weight";
  }
  fail<InternalError>("name: unknown ConvPass");
}

ConvProblem ConvProblem::conv(const char* op, const Shape& x_shape, const Shape& w_shape, const ConvOptions& options) {
  const Axes axes{op, check_rank(op, x_shape, w_shape)};
  ConvProblem p = read(axes, x_shape, w_shape, options);
  p.in_channels = x_shape[1];
  p.out_channels = w_shape[0];
  check_groups(op, p.groups, p.in_channels, "input", x_shape);
  check_groups(op, p.groups, p.out_channels, "weight", w_shape);
  if (w_shape[1] != p.in_channels_per_group()) {
    fail(op, ": weight expects ", p.in_channels_per_group(), " input channels per group (input ", x_shape, ", groups ",
         p.groups, ") but has ", w_shape[1], " (weight ", w_shape, ")");
  }
  if (!options.output_padding.empty()) {
    fail(op, ": output_padding expects a transposed convolution, got ", show(options.output_padding));
  }
  p.input = axes.spatial(x_shape);
  for (std::size_t i = 0; i < 3; ++i) find_output(p, i, axes, options.auto_padding);
  drop_unused_strides(p);
  check_numel(op, p);
  return p;
}

ConvProblem ConvProblem::transposed(const char* op, const Shape& x_shape, const Shape& w_shape,
                                    const ConvOptions& options) {
  const Axes axes{op, check_rank(op, x_shape, w_shape)};
  ConvProblem p = read(axes, x_shape, w_shape, options);
  p.out_channels = x_shape[1];
  check_groups(op, p.groups, p.out_channels, "input", x_shape);
  if (w_shape[0] != p.out_channels) {
    fail(op, ": weight expects ", p.out_channels, " input channels (input ", x_shape, ") but has ", w_shape[0],
         " (weight ", w_shape, ")");
  }
  const std::array<int64_t, 2> channel_factors{w_shape[1], p.groups};
  p.in_channels = product(op, "output channels", channel_factors);
  p.output = axes.spatial(x_shape);
  const Extents output_padding = axes.expand("output_padding", options.output_padding, 0, 0);
  for (std::size_t i = 0; i < 3; ++i) find_input(p, i, axes, options.auto_padding, output_padding[i]);
  drop_unused_strides(p);
  check_numel(op, p);
  return p;
}

Shape ConvProblem::x_shape() const { return with_channels(batch, in_channels, input, rank); }
Shape ConvProblem::w_shape() const { return with_channels(out_channels, in_channels_per_group(), kernel, rank); }
Shape ConvProblem::y_shape() const { return with_channels(batch, out_channels, output, rank); }

double ConvProblem::flops() const {
  return 2.0 * static_cast<double>(y_numel()) * static_cast<double>(in_channels_per_group() * taps());
}

double ConvProblem::bytes(std::size_t element_size) const {
  return static_cast<double>(element_size) *
         (static_cast<double>(x_numel()) + static_cast<double>(w_numel()) + static_cast<double>(y_numel()));
}

std::string ConvProblem::str() const {
  const auto axes = [this](const Extents& e) {
    std::string text;
    for (int i = 3 - rank; i < 3; ++i) {
      text += (text.empty() ? "" : ",") + std::to_string(e[static_cast<std::size_t>(i)]);
    }
    return text;
  };
  return concat("conv", rank, "d x", x_shape(), " w", w_shape(), " y", y_shape(), " s", axes(stride), " p",
                axes(padding_before), "+", axes(padding_after), " d", axes(dilation), " g", groups);
}

std::size_t hash_value(const ConvProblem& p) {
  std::size_t seed = 0;
  const auto mix = [&seed](int64_t v) {
    seed ^= static_cast<std::size_t>(v) + 0x9e3779b97f4a7c15ULL + (seed << 6) + (seed >> 2);
  };
  for (int64_t v : {p.batch, p.in_channels, p.out_channels, p.groups, static_cast<int64_t>(p.rank)}) mix(v);
  for (const Extents* e :
       {&p.input, &p.kernel, &p.output, &p.stride, &p.dilation, &p.padding_before, &p.padding_after}) {
    for (int64_t v : *e) mix(v);
  }
  return seed;
}

int64_t output_padding_for(int64_t input, int64_t wanted, int64_t kernel, int64_t stride, int64_t padding,
                           int64_t dilation) {
  const int64_t base = (input - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1;
  const int64_t limit = std::max(stride, dilation);
  if (wanted < base || wanted >= base + limit) {
    fail("output_padding_for: wanted size expects ", base, " to ", base + limit - 1, " (input ", input, ", kernel ",
         kernel, ", stride ", stride, ", padding ", padding, ", dilation ", dilation, "), got ", wanted);
  }
  return wanted - base;
}

}  // namespace halo
