// Layer norm of rows that a warp holds in registers, with the sums of a residual stream in the same pass.
#pragma once

#include <halo/ops/norm.h>

#include <cstdint>

#include <cuda_runtime.h>

namespace halo::cuda {

/// Longest row.
inline constexpr int64_t kWarpRow = 1024;
inline bool is_warp_row(const RowNormProblem& p) { return p.groups == 1 && p.positions == 1 && p.length() <= kWarpRow; }

/// Dense arrays; see ops/residual_norm.h. Null operands are absent (0 and 1), and a null `sum` is not written.
template <class T>
struct RowForward {
  int64_t rows = 0, length = 0;
  double eps = 0;
  const T *x = nullptr, *x_bias = nullptr, *residual = nullptr, *weight = nullptr, *bias = nullptr;
  T *sum = nullptr, *y = nullptr, *mean = nullptr, *rstd = nullptr;
};
template <class T>
void rows_forward(const char* name, const RowForward<T>& args, cudaStream_t stream);

/// `x` is what was normalised. `g_x`, a gradient that reaches it past the norm, is added; null: 0. Null results are not
/// wanted.
template <class T>
struct RowBackward {
  int64_t rows = 0, length = 0;
  const T *x = nullptr, *mean = nullptr, *rstd = nullptr, *weight = nullptr, *g_x = nullptr, *g_y = nullptr;
  T *x_grad = nullptr, *weight_grad = nullptr, *bias_grad = nullptr;
  T* x_sum = nullptr;  ///< [length]: the sum of x_grad over rows
  bool sums() const { return weight_grad != nullptr || bias_grad != nullptr || x_sum != nullptr; }
};
/// Elements of workspace that rows_backward() needs.
int64_t rows_backward_workspace(int64_t rows, int64_t length);
template <class T>
void rows_backward(const char* name, const RowBackward<T>& args, T* workspace, cudaStream_t stream);

}  // namespace halo::cuda
