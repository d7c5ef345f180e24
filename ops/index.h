// Reading and summing by index. Index tensors hold integers (int64, int32 or uint8) on the data's device; indices count
// from 0. On the CPU an index outside is an ArgumentError naming position and value; on a GPU nothing outside is
// touched, and the result is NaN there.
#pragma once

#include <halo/core/tensor.h>

namespace halo::ops {

/// The slices index[0], index[1], ... along `dim`: x [a, extent, b], index [n], result [a, n, b]. Any dtype. `op` names
/// the caller in messages.
Tensor index_select(const char* op, const Tensor& x, int64_t dim, const Tensor& index);
/// The adjoint: zeros with `extent` slices along `dim`, onto which the slices of g [a, n, b] are added.
Tensor index_add(const char* op, const Tensor& g, int64_t dim, const Tensor& index, int64_t extent);

/// result[.., j, ..] = x[.., index[.., j, ..], ..] along `dim`. index has x's rank, and its other extents are at most
/// x's.
Tensor gather(const Tensor& x, int64_t dim, const Tensor& index);
/// The adjoint: zeros of `shape`, with result[.., index[.., j, ..], ..] += g[.., j, ..]. g has index's shape.
Tensor scatter_add(const Tensor& g, int64_t dim, const Tensor& index, const Shape& shape);

/// 1 at the class, 0 elsewhere: index [...], result int64 [..., classes]. On a GPU a class outside has no 1.
Tensor one_hot(const Tensor& index, int64_t classes);

/// `index` as int64. @throws ArgumentError naming `op` where it is no integer tensor on `device`.
Tensor index_tensor(const char* op, const char* argument, const Tensor& index, Device device);

}  // namespace halo::ops
