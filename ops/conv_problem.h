// ConvProblem: the one place where convolution sizes are computed and checked.
//
// Every convolution is the trilinear form T(x, w, g) = sum over output positions of g * (w correlated with x):
//   x [batch, in_channels, input...]            forward(x, w)         = dT/dg
//   w [out_channels, in_channels/groups, k...]  backward_input(g, w)  = dT/dx
//   g [batch, out_channels, output...]          backward_weight(x, g) = dT/dw
// A transposed convolution is the same form with x and g exchanged: its forward is backward_input, its input
// gradient is forward, and its weight gradient is backward_weight with the two activations swapped.
// 1-D and 2-D are 3-D with leading extents of 1.
#pragma once

#include <halo/core/shape.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace halo {

/// The three partial contractions of the form.
enum class ConvPass { Forward, BackwardInput, BackwardWeight };

const char* name(ConvPass pass);

/// Padding that is computed from the sizes instead of given as numbers. Strided `Same` gives ceil(L/stride) outputs,
/// the odd zero after; transposed `Same` gives L*stride. `Causal` (1-D) puts all of it before: y[t] sees x[..t*stride].
enum class AutoPadding { None, Valid, Same, Causal };

/// What a caller says about a convolution. An empty list means the default; a list of one serves every axis.
struct ConvOptions {
  IntList stride{};          ///< default 1
  IntList padding{};         ///< both sides of each axis; default 0
  IntList padding_after{};   ///< the far side where it differs; default `padding`
  IntList dilation{};        ///< default 1
  IntList output_padding{};  ///< transposed only; default 0
  int64_t groups = 1;
  AutoPadding auto_padding = AutoPadding::None;  ///< replaces `padding` unless None
};

/// Sizes of one convolution, checked. Plain data: copy it, compare it, hash it whole.
struct ConvProblem {
  using Extents = std::array<int64_t, 3>;  ///< depth, height, width

  int64_t batch = 0;
  int64_t in_channels = 0;
  int64_t out_channels = 0;
  int64_t groups = 1;
  int rank = 3;  ///< spatial axes the caller sees: 1, 2 or 3
  Extents input{1, 1, 1};
  Extents kernel{1, 1, 1};
  Extents output{1, 1, 1};
  Extents stride{1, 1, 1};
  Extents dilation{1, 1, 1};
  Extents padding_before{0, 0, 0};
  /// Informative: kernels need only `padding_before`, `input` and `output`, and treat everything outside `input` as 0.
  /// Negative where a transposed convolution's output padding leaves a tail that no window reads.
  Extents padding_after{0, 0, 0};

  /// The problem of `conv(x, w)`. Shapes are [N, C, spatial...] and [K, C/groups, kernel...].
  /// `op` names the caller in messages.
  /// @throws ArgumentError naming the argument, its value and what was expected.
  static ConvProblem conv(const char* op, const Shape& x_shape, const Shape& w_shape, const ConvOptions& options);

  /// The problem of `conv_transpose(x, w)`: x [N, Cin, spatial...], w [Cin, Cout/groups, kernel...]. In the result the
  /// roles are those of the form: `in_channels`, `input` are the transposed convolution's *outputs*, so that its
  /// forward is ConvPass::BackwardInput of this problem with g = x.
  static ConvProblem transposed(const char* op, const Shape& x_shape, const Shape& w_shape, const ConvOptions& options);

  int64_t in_channels_per_group() const { return groups == 0 ? 0 : in_channels / groups; }
  int64_t out_channels_per_group() const { return groups == 0 ? 0 : out_channels / groups; }
  int64_t input_positions() const { return input[0] * input[1] * input[2]; }
  int64_t output_positions() const { return output[0] * output[1] * output[2]; }
  int64_t taps() const { return kernel[0] * kernel[1] * kernel[2]; }

  /// Shapes as the caller sees them: rank + 2 extents.
  Shape x_shape() const;
  Shape w_shape() const;
  Shape y_shape() const;

  int64_t x_numel() const { return batch * in_channels * input_positions(); }
  int64_t w_numel() const { return out_channels * in_channels_per_group() * taps(); }
  int64_t y_numel() const { return batch * out_channels * output_positions(); }

  /// Two for each useful multiply-add of any of the three passes (padding counted as useful).
  double flops() const;
  /// Bytes one pass must move: both operands read once, the result written once.
  double bytes(std::size_t element_size) const;

  bool is_depthwise() const { return groups == in_channels && groups > 0; }
  bool operator==(const ConvProblem&) const = default;

  /// One reproducible line: `conv2d x[8,16,32,32] w[32,16,3,3] s1,1 p1,1 d1,1 g1`.
  std::string str() const;
};

/// Hash of the whole problem.
std::size_t hash_value(const ConvProblem& problem);

/// `output_padding` that makes a transposed convolution give `wanted` along one axis.
/// @throws ArgumentError if no value below max(stride, dilation) does.
int64_t output_padding_for(int64_t input, int64_t wanted, int64_t kernel, int64_t stride, int64_t padding,
                           int64_t dilation);

}  // namespace halo
