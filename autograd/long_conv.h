// Differentiable long convolution, the core of Hyena and of other models whose filters span the sequence.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/long_conv.h>

namespace halo {

struct LongConvOptions {
  bool causal = true;  ///< else two-sided
  Tensor gate_in{};    ///< [B, H, L]: multiplies the input
  Tensor gate_out{};   ///< [B, H, L]: multiplies the output
  LongConvMethod method = LongConvMethod::Auto;
};

/// y = gate_out * (w conv u + skip * u) with u = gate_in * x and (w conv u)[t] = sum_k w[k] u[t - k], or two-sided
/// sum_k w[k] u[t - k + K / 2]. x [B, H, L], w [H, K], skip [H] or undefined; any L and K, the filter may be longer
/// than the sequence. By FFT a row's error is relative to its largest values: about 1e-16 of them on the CPU, 3e-7 in
/// float32 on a GPU, also where the exact result is 0 (LongConvMethod::Direct gives exact zeros). @throws ArgumentError
/// naming the argument whose shape, dtype or device does not fit.
Tensor long_conv(const Tensor& input, const Tensor& weight, const Tensor& skip = {},
                 const LongConvOptions& options = {});

/// The same by sums instead of transforms.
Tensor long_conv_direct(const Tensor& input, const Tensor& weight, const Tensor& skip = {},
                        const LongConvOptions& options = {});

}  // namespace halo
