// Long convolution on CUDA by fused FFT kernels, forward and backward.
//
//   y = gate_out * (w conv (gate_in * x) + skip * gate_in * x)        (see ops/long_conv_problem.h for conv)
//
// Any length up to 2^21 and any kernel length; storage float32, bfloat16 or float16 (computed in float32) or float64.
// Results are the same bits every run on one GPU model, and row (b, h) of every result but the gradients of weight and
// skip depends on row (b, h) alone. The error is that of an FFT: about 4e-7 of the row's root mean square in float32,
// also where the exact result is zero. The gradient of skip is the weight gradient's sum at lag 0 and has that sum's
// error. A block needs 98 KB of shared memory in float32 and 139 KB in float64.
//
// Device memory: nothing is allocated here. The caller gives a workspace of the size that workspace_bytes() names;
// nothing is kept from forward for backward, which recomputes the spectra.
#pragma once

#include <halo/core/dtype.h>
#include <halo/ops/long_conv_problem.h>

#include <cstddef>

#include <cuda_runtime.h>

namespace halo::cuda {

/// Operands of both passes: dense device arrays. In backward an operand that no wanted gradient depends on may be null.
struct LongConvOperands {
  LongConvProblem problem;
  DType dtype = DType::Float32;         ///< of x, gates, output and their gradients
  DType weight_dtype = DType::Float32;  ///< of weight, skip and their gradients; float64 exactly where `dtype` is
  const void* x = nullptr;              ///< [B, H, L]
  const void* weight = nullptr;         ///< [H, K]
  const void* skip = nullptr;           ///< [H] or null (none)
  const void* gate_in = nullptr;        ///< [B, H, L] or null (ones)
  const void* gate_out = nullptr;       ///< [B, H, L] or null (ones)
  const void* prepared = nullptr;  ///< what long_conv_prepare made of weight and skip, if it was kept; forward only
};

/// What backward reads and writes. Null gradients are not computed, nor is what only they need.
struct LongConvGrads {
  const void* grad_output = nullptr;  ///< [B, H, L]
  void* x = nullptr;                  ///< [B, H, L]
  void* weight = nullptr;             ///< [H, K]
  void* skip = nullptr;               ///< [H]; also where the operand is null (its gradient at zero)
  void* gate_in = nullptr;            ///< [B, H, L]; needs the operand
  void* gate_out = nullptr;           ///< [B, H, L]; needs the operand
};

/// Bytes of workspace, on the current device. @throws ArgumentError for sizes or types out of range.
std::size_t long_conv_forward_workspace(const LongConvOperands& operands);
std::size_t long_conv_backward_workspace(const LongConvOperands& operands, const LongConvGrads& grads);

/// Transforms the filters (weight and skip), once for long_conv_forward with any batch and gates; `prepared` is aligned
/// to 256 bytes.
std::size_t long_conv_prepared_bytes(const LongConvOperands& operands);
std::size_t long_conv_prepare_workspace(const LongConvOperands& operands);
void long_conv_prepare(const LongConvOperands& operands, void* prepared, void* workspace, cudaStream_t stream);

/// output [B, H, L]; must not overlap any operand. `workspace` is aligned to 256 bytes.
/// @throws ArgumentError before any launch.
void long_conv_forward(const LongConvOperands& operands, void* output, void* workspace, cudaStream_t stream);
void long_conv_backward(const LongConvOperands& operands, const LongConvGrads& grads, void* workspace,
                        cudaStream_t stream);

}  // namespace halo::cuda
