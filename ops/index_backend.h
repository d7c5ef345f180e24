// What a backend must provide for indexing. Operands dense; index int64; shapes checked. An index outside: the CPU
// throws, naming `op`, position and value; a CUDA kernel touches no memory outside: such an element reads as NaN (0 for
// integers) and is dropped by the sums. Sums are made in a fixed order, without atomics.
#pragma once

#include <halo/core/tensor.h>

namespace halo::cpu {
/// x [outer, extent, inner] with `extent` at axis `dim`, index of any shape, read flat: y[o, j, i] =
/// x[o, index[j], i]. Any dtype.
void index_select(const char* op, const Tensor& x, int dim, const Tensor& index, const Tensor& y);
/// y[o, v, i] = sum of g[o, j, i] over the j with index[j] = v; 0 where there is none.
void index_add(const char* op, const Tensor& g, int dim, const Tensor& index, const Tensor& y);
/// y[.., j, ..] = x[.., index[.., j, ..], ..] along `dim`. index has y's shape; its other extents are at most x's. Any
/// dtype.
void gather(const char* op, const Tensor& x, int dim, const Tensor& index, const Tensor& y);
/// y = zeros, then y[.., index[.., j, ..], ..] += g[.., j, ..] in the order of j; g has index's shape.
void scatter_add(const char* op, const Tensor& g, int dim, const Tensor& index, const Tensor& y);
}  // namespace halo::cpu

namespace halo::cuda {
void index_select(const char* op, const Tensor& x, int dim, const Tensor& index, const Tensor& y);
void index_add(const char* op, const Tensor& g, int dim, const Tensor& index, const Tensor& y);
void gather(const char* op, const Tensor& x, int dim, const Tensor& index, const Tensor& y);
void scatter_add(const char* op, const Tensor& g, int dim, const Tensor& index, const Tensor& y);
}  // namespace halo::cuda
