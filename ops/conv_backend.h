// What a backend must provide for convolution. Operands are dense, of one dtype and on one device, shapes checked;
// every element of the last argument is written.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/activation.h>
#include <halo/ops/conv_problem.h>
#include <halo/ops/weight_use.h>

namespace halo::cpu {
void conv_forward(const ConvProblem& problem, const Tensor& x, const Tensor& w, const Tensor& bias,
                  const Activation& activation, WeightUse use, const Tensor& y);
void conv_backward_input(const ConvProblem& problem, const Tensor& g, const Tensor& w, const Tensor& bias,
                         WeightUse use, const Tensor& x);
void conv_backward_weight(const ConvProblem& problem, const Tensor& x, const Tensor& g, const Tensor& w);
void sum_per_channel(const Tensor& g, const Tensor& sum);
}  // namespace halo::cpu

namespace halo::cuda {
void conv_forward(const ConvProblem& problem, const Tensor& x, const Tensor& w, const Tensor& bias,
                  const Activation& activation, WeightUse use, const Tensor& y);
void conv_backward_input(const ConvProblem& problem, const Tensor& g, const Tensor& w, const Tensor& bias,
                         WeightUse use, const Tensor& x);
void conv_backward_weight(const ConvProblem& problem, const Tensor& x, const Tensor& g, const Tensor& w);
void sum_per_channel(const Tensor& g, const Tensor& sum);
}  // namespace halo::cuda
