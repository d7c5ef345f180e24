// PoolProblem: the one place where pooling sizes are computed and checked. 1-D and 2-D are 3-D with leading extents of
// 1, and adaptive pooling is pooling whose windows follow from the two sizes.
#pragma once

#include <halo/core/dtype.h>
#include <halo/core/shape.h>
#include <halo/ops/conv_problem.h>
#include <halo/ops/pool_axis.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace halo {

/// What a caller says about max pooling. An empty list means the default; a list of one serves every axis.
struct MaxPoolOptions {
  IntList stride{};         ///< default: the kernel size
  IntList padding{};        ///< both sides of each axis; at most half of the effective kernel; default 0
  IntList padding_after{};  ///< the far side where it differs; default `padding`
  IntList dilation{};       ///< default 1
  bool ceil_mode = false;   ///< round the output size up; the last window starts inside the input or its left padding
  AutoPadding auto_padding = AutoPadding::None;  ///< Same: ceil(L / stride) outputs, the odd padding after
};

/// What a caller says about average pooling.
struct AvgPoolOptions {
  IntList stride{};
  IntList padding{};
  IntList padding_after{};
  bool ceil_mode = false;
  AutoPadding auto_padding = AutoPadding::None;
  bool count_include_pad = true;  ///< divide by the window inside input and padding, not by the inputs in it
  std::optional<int64_t> divisor_override{};  ///< divide by this instead; not 0
};

/// Sizes of one pooling, checked. Plain data.
struct PoolProblem {
  int64_t batch = 0;
  int64_t channels = 0;
  int rank = 3;                  ///< spatial axes the caller sees: 1, 2 or 3
  std::array<PoolAxis, 3> axes;  ///< depth, height, width
  bool count_include_pad = true;
  int64_t divisor_override = 0;  ///< 0: none

  /// Shapes are [N, C, spatial...]; `op` names the caller in messages. Every window has an input in it.
  /// @throws ArgumentError naming the argument, its value and what was expected.
  static PoolProblem max(const char* op, int rank, const Shape& x_shape, const IntList& kernel_size,
                         const MaxPoolOptions& options);
  static PoolProblem average(const char* op, int rank, const Shape& x_shape, const IntList& kernel_size,
                             const AvgPoolOptions& options);
  /// `output_size`: one value for all axes or one an axis.
  static PoolProblem adaptive(const char* op, int rank, const Shape& x_shape, const IntList& output_size);

  Shape x_shape() const;
  Shape y_shape() const;
  int64_t planes() const { return batch * channels; }
  int64_t input_positions() const { return axes[0].input * axes[1].input * axes[2].input; }
  int64_t output_positions() const { return axes[0].output * axes[1].output * axes[2].output; }
  int64_t taps() const { return axes[0].kernel * axes[1].kernel * axes[2].kernel; }

  /// The type in which max pooling keeps where its maxima were: the offset in the window, (td * kh + th) * kw + tw for
  /// taps t and kernel extents k of `axes`. One byte wherever a window has at most 256 taps, else int64.
  DType offset_dtype() const { return taps() <= 256 ? DType::UInt8 : DType::Int64; }

  bool operator==(const PoolProblem&) const = default;
  /// One reproducible line.
  std::string str() const;
};

}  // namespace halo
