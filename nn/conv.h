// Convolution layers. Sizes are checked at once: constructors and forward() throw ArgumentError naming what does not
// fit.
#pragma once

#include <halo/nn/module.h>
#include <halo/ops/activation.h>
#include <halo/ops/conv_problem.h>

namespace halo::nn {

/// What lies outside the input.
enum class PaddingMode : uint8_t { Zeros, Reflect, Replicate, Circular };

struct ConvOptions {
  IntList stride{};         ///< default 1
  IntList padding{};        ///< both sides of each axis; default 0
  IntList padding_after{};  ///< the far side where it differs; default `padding`
  IntList dilation{};       ///< default 1
  int64_t groups = 1;
  AutoPadding auto_padding = AutoPadding::None;  ///< Same, Valid or Causal instead of numbers
  PaddingMode padding_mode = PaddingMode::Zeros;
  bool bias = true;
  Activation activation{};  ///< applied to the output, in the same pass where nothing is recorded
};

/// x [N, in, spatial...] to [N, out, spatial...] over `Rank` spatial axes. Parameters weight [out, in / groups,
/// kernel...] and bias [out], both uniform within 1 / sqrt(fan in).
template <int Rank>
class Conv : public Module {
 public:
  Conv(int64_t in_channels, int64_t out_channels, const IntList& kernel_size, const ConvOptions& options = {});
  Tensor forward(const Tensor& x) override;

  Tensor& weight;
  Tensor& bias;

 private:
  halo::ConvOptions options_;
  PaddingMode padding_mode_;
  Activation activation_;
};

using Conv1d = Conv<1>;
using Conv2d = Conv<2>;
using Conv3d = Conv<3>;

struct ConvTransposeOptions {
  IntList stride{};          ///< default 1
  IntList padding{};         ///< taken off both sides of each axis; default 0
  IntList padding_after{};   ///< the far side where it differs; default `padding`
  IntList output_padding{};  ///< added at the far side; less than stride or dilation; default 0
  IntList dilation{};        ///< default 1
  int64_t groups = 1;
  AutoPadding auto_padding = AutoPadding::None;  ///< Same, Valid or Causal instead of numbers
  bool bias = true;
};

/// Transposed convolution, x [N, in, spatial...] to [N, out, spatial...] with the extents of halo::conv_transpose2d.
/// Parameters weight [in, out / groups, kernel...] and bias [out], both uniform within 1 / sqrt(fan in).
template <int Rank>
class ConvTranspose : public Module {
 public:
  ConvTranspose(int64_t in_channels, int64_t out_channels, const IntList& kernel_size,
                const ConvTransposeOptions& options = {});
  Tensor forward(const Tensor& x) override;

  Tensor& weight;
  Tensor& bias;

 private:
  halo::ConvOptions options_;
};

using ConvTranspose1d = ConvTranspose<1>;
using ConvTranspose2d = ConvTranspose<2>;
using ConvTranspose3d = ConvTranspose<3>;

}  // namespace halo::nn
