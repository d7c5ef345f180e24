#include <halo/autograd/conv.h>
#include <halo/autograd/pad.h>
#include <halo/core/error.h>
#include <halo/nn/conv.h>
#include <halo/nn/init.h>

#include <array>
#include <cmath>

namespace halo::nn {
namespace {

/// Checks the sizes of a layer and makes its weight: [out, in / groups, kernel...], or transposed [in, out / groups,
/// kernel...].
Tensor make_weight(const char* op, int rank, bool transposed, int64_t in, int64_t out, const IntList& kernel_size,
                   int64_t groups) {
  if (groups < 1 || in % groups != 0 || out % groups != 0) {
    fail(op, ": groups expected at least 1 and a divisor of in_channels ", in, " and out_channels ", out, ", got ",
         groups);
  }
  const auto axes = static_cast<std::size_t>(rank);
  if (kernel_size.size() != 1 && kernel_size.size() != axes) {
    fail(op, ": kernel_size expected 1 or ", rank, " numbers, got ", kernel_size.size());
  }
  Shape shape = transposed ? Shape{in, out / groups} : Shape{out, in / groups};
  for (std::size_t i = 0; i < axes; ++i) shape.push_back(kernel_size[kernel_size.size() == 1 ? 0 : i]);
  for (int64_t extent : shape) {
    if (extent < 1) fail(op, ": channels and kernel_size expected 1 or more, got weight ", shape);
  }
  const Tensor weight = empty(shape);
  init::kaiming_uniform_(weight, std::sqrt(5.0));
  return weight;
}

Tensor make_bias(bool wanted, int64_t channels, const Tensor& weight) {
  if (!wanted) return {};
  const double bound = 1 / std::sqrt(static_cast<double>(init::fan_of(weight).in));
  const Tensor bias = empty({channels});
  init::uniform_(bias, -bound, bound);
  return bias;
}

PadMode pad_mode(PaddingMode mode) {
  switch (mode) {
    case PaddingMode::Zeros: return PadMode::Constant;
    case PaddingMode::Reflect: return PadMode::Reflect;
    case PaddingMode::Replicate: return PadMode::Replicate;
    case PaddingMode::Circular: return PadMode::Circular;
  }
  fail<InternalError>("pad_mode: unknown mode");
}

/// `x` with the padding of its convolution put around it, in pad()'s order of axes (the last one first).
Tensor padded(const char* op, const Tensor& x, const Tensor& weight, const halo::ConvOptions& options, PadMode mode) {
  check_defined(op, {{"input", x}});
  const auto problem = ConvProblem::conv(op, x.shape(), weight.shape(), options);
  IntList amounts;
  for (std::size_t i = 3; i > static_cast<std::size_t>(3 - problem.rank); --i) {
    amounts.push_back(problem.padding_before[i - 1]);
    amounts.push_back(problem.padding_after[i - 1]);
  }
  return pad(x, amounts, mode);
}

}  // namespace

template <int Rank>
Conv<Rank>::Conv(int64_t in_channels, int64_t out_channels, const IntList& kernel_size, const ConvOptions& options)
    : weight(register_parameter(
          "weight", make_weight("Conv", Rank, false, in_channels, out_channels, kernel_size, options.groups))),
      bias(register_parameter("bias", make_bias(options.bias, out_channels, weight))),
      options_{.stride = options.stride,
               .padding = options.padding,
               .padding_after = options.padding_after,
               .dilation = options.dilation,
               .groups = options.groups,
               .auto_padding = options.auto_padding},
      padding_mode_(options.padding_mode),
      activation_(options.activation) {}

template <int Rank>
Tensor Conv<Rank>::forward(const Tensor& input) {
  constexpr const char* kName = std::array{"conv1d", "conv2d", "conv3d"}[Rank - 1];
  Tensor x = input;
  halo::ConvOptions options = options_;
  if (padding_mode_ != PaddingMode::Zeros) {
    x = padded(kName, x, weight, options_, pad_mode(padding_mode_));
    options.padding = options.padding_after = {};
    options.auto_padding = AutoPadding::None;
  }
  if constexpr (Rank == 1) return conv1d(x, weight, bias, options, activation_);
  if constexpr (Rank == 2) return conv2d(x, weight, bias, options, activation_);
  if constexpr (Rank == 3) return conv3d(x, weight, bias, options, activation_);
}

template <int Rank>
ConvTranspose<Rank>::ConvTranspose(int64_t in_channels, int64_t out_channels, const IntList& kernel_size,
                                   const ConvTransposeOptions& options)
    : weight(register_parameter(
          "weight", make_weight("ConvTranspose", Rank, true, in_channels, out_channels, kernel_size, options.groups))),
      bias(register_parameter("bias", make_bias(options.bias, out_channels, weight))),
      options_{.stride = options.stride,
               .padding = options.padding,
               .padding_after = options.padding_after,
               .dilation = options.dilation,
               .output_padding = options.output_padding,
               .groups = options.groups,
               .auto_padding = options.auto_padding} {}

template <int Rank>
Tensor ConvTranspose<Rank>::forward(const Tensor& x) {
  if constexpr (Rank == 1) return conv_transpose1d(x, weight, bias, options_);
  if constexpr (Rank == 2) return conv_transpose2d(x, weight, bias, options_);
  if constexpr (Rank == 3) return conv_transpose3d(x, weight, bias, options_);
}

template class Conv<1>;
template class Conv<2>;
template class Conv<3>;
template class ConvTranspose<1>;
template class ConvTranspose<2>;
template class ConvTranspose<3>;

}  // namespace halo::nn
