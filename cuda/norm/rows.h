// Layer norm of rows that a team of threads holds in registers, with the sums of a residual stream in the same pass.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/norm.h>

#include <cstdint>
#include <type_traits>

#include "../runtime/data.h"
#include <cuda_runtime.h>

namespace halo::cuda {

/// Whether rows of `length` elements of `bytes` each are short enough; and long enough, as gradients of a few values
/// are what cancellation leaves, which the other kernels take in float64.
inline bool is_held_row(int64_t length, std::size_t bytes) {
  return length >= 16 && length <= (bytes == 8 ? 4096 : 8192);
}
inline bool is_held_row(const RowNormProblem& p, DType dtype) {
  return p.groups == 1 && p.positions == 1 && is_held_row(p.length(), size_of(dtype));
}

/// The type of saved statistics, and of sums over rows before they are rounded.
template <class T>
using RowStatistic = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Dense arrays; see ops/residual_norm.h. Null operands are absent (0 and 1), and a null `sum` is not written.
template <class T>
struct RowForward {
  int64_t rows = 0, length = 0;
  double eps = 0;
  const T *x = nullptr, *x_bias = nullptr, *residual = nullptr, *weight = nullptr, *bias = nullptr;
  T *sum = nullptr, *y = nullptr;
  RowStatistic<T>*mean = nullptr, *rstd = nullptr;
};
template <class T>
void rows_forward(const char* name, const RowForward<T>& args, cudaStream_t stream);

/// rows_forward for up to four rows that are whole packs, aligned, and of at most 2048 elements. False, and nothing
/// done, for others.
bool few_rows_forward(const char* name, const RowForward<float>& args, cudaStream_t stream);

/// `x` is what was normalised. `g_x`, a gradient that reaches it past the norm, is added; null: 0. Null results are not
/// wanted.
template <class T>
struct RowBackward {
  int64_t rows = 0, length = 0;
  const T* x = nullptr;
  const RowStatistic<T>*mean = nullptr, *rstd = nullptr;
  const T *weight = nullptr, *g_x = nullptr, *g_y = nullptr;
  T *x_grad = nullptr, *weight_grad = nullptr, *bias_grad = nullptr;
  T* x_sum = nullptr;  ///< [length]: the sum of x_grad over rows
};
/// Elements of workspace that rows_backward() needs.
template <class T>
int64_t rows_backward_workspace(const RowBackward<T>& args);
template <class T>
void rows_backward(const char* name, const RowBackward<T>& args, RowStatistic<T>* workspace, cudaStream_t stream);

}  // namespace halo::cuda
