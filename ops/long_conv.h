// Long convolution: filters as long as the sequence, by FFT or directly. Sizes are in long_conv_problem.h.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/long_conv_problem.h>
#include <halo/ops/weight_use.h>

#include <cstdint>

namespace halo {

/// How to compute. Fft: O(L log L); its error is relative to the largest values of a row, also where the exact result
/// is zero. Direct: O(L K) sums; an output depends on nothing but the inputs under its taps. Auto: the faster for the
/// size.
enum class LongConvMethod : uint8_t { Auto, Fft, Direct };

/// Operands, or their gradients: x, gate_in, gate_out [B, H, L], weight [H, K], skip [H].
///   y = gate_out * (weight conv u + skip * u)   with u = gate_in * x
/// skip, gate_in and gate_out may be undefined: 0, 1 and 1.
struct LongConvTensors {
  Tensor x{}, weight{}, skip{}, gate_in{}, gate_out{};
  template <class F>
  void for_each_tensor(F&& f) {
    for (Tensor* t : {&x, &weight, &skip, &gate_in, &gate_out}) f(*t);
  }
};

namespace ops {

/// y [B, H, L]. @throws ArgumentError, in the name of `op`, where a shape is not the problem's, or dtypes or devices
/// differ.
Tensor long_conv_forward(const LongConvProblem& problem, const LongConvTensors& operands,
                         LongConvMethod method = LongConvMethod::Auto, WeightUse use = WeightUse::Once,
                         const char* op = "long_conv");

/// Which gradients to compute.
struct LongConvWanted {
  bool x = false, weight = false, skip = false, gate_in = false, gate_out = false;
};
/// Gradients of <y, g>. Operands that no wanted gradient depends on may be undefined.
LongConvTensors long_conv_backward(const LongConvProblem& problem, const LongConvTensors& operands, const Tensor& g,
                                   const LongConvWanted& wanted, LongConvMethod method = LongConvMethod::Auto);

}  // namespace ops
}  // namespace halo
