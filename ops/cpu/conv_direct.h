// Convolution for tiny groups on the CPU: row by row, tap by tap, nothing gathered.
#pragma once

#include <halo/ops/activation.h>
#include <halo/ops/conv_problem.h>

namespace halo::cpu {

/// Few products an output: a matrix product would mostly be overhead.
inline bool prefers_direct(const ConvProblem& p) { return p.in_channels_per_group() * p.out_channels_per_group() <= 8; }

template <class T>
void direct_forward(const ConvProblem& p, const T* x, const T* w, const T* bias, const Activation& activation, T* y);
template <class T>
void direct_backward_input(const ConvProblem& p, const T* g, const T* w, const T* bias, T* x);
template <class T>
void direct_backward_weight(const ConvProblem& p, const T* x, const T* g, T* w);

}  // namespace halo::cpu
