// Float64 on the CPU, with Eigen: the oracle that float32 here and everything on the GPU is checked against, so plain
// before fast. Eigen is compiled in the oracle_*.cpp files alone.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/activation.h>
#include <halo/ops/conv_problem.h>
#include <halo/ops/matmul.h>

namespace halo::cpu::oracle {

/// The backend functions of the same names, for float64 (conv_backend.h, matmul_backend.h).
void conv_forward(const ConvProblem& p, const Tensor& x, const Tensor& w, const Tensor& bias,
                  const Activation& activation, const Tensor& y);
void conv_backward_input(const ConvProblem& p, const Tensor& g, const Tensor& w, const Tensor& bias, const Tensor& x);
void conv_backward_weight(const ConvProblem& p, const Tensor& x, const Tensor& g, const Tensor& w);
void gemm(const GemmProblem& p, const Tensor& a, const Tensor& b, const Tensor& c);

}  // namespace halo::cpu::oracle
