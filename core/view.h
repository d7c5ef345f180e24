// Views: other shapes and strides over the same storage. Plain functions that record nothing; the Tensor methods of the
// same names are their differentiable forms.
#pragma once

#include <halo/core/tensor.h>

namespace halo::view {

/// `tensor` itself where it is dense, else a dense copy.
Tensor dense(const Tensor& tensor);
/// The same of an argument that may be absent.
Tensor dense_or_undefined(const Tensor& tensor);
/// A view where the strides allow, else a view of a dense copy. One extent may be -1.
Tensor reshape(const Tensor& tensor, const Shape& shape);
Tensor flatten(const Tensor& tensor, int64_t start, int64_t end);
Tensor transpose(const Tensor& tensor, int64_t dim0, int64_t dim1);
Tensor permute(const Tensor& tensor, const Shape& dims);
Tensor expand(const Tensor& tensor, const Shape& shape, const char* op = "expand");
Tensor unsqueeze(const Tensor& tensor, int64_t dim);
Tensor squeeze(const Tensor& tensor, int64_t dim);
Tensor slice(const Tensor& tensor, int64_t dim, int64_t start, int64_t end, int64_t step = 1);
Tensor select(const Tensor& tensor, int64_t dim, int64_t index);
/// A second handle on the same elements, without autograd state.
Tensor alias(const Tensor& tensor);

/// `shape` with its -1 (one at most) worked out for `numel` elements. @throws ArgumentError naming `op`.
Shape infer_shape(const char* op, const Shape& shape, int64_t numel);
/// The bounds that slice() uses: start and length after clipping.
struct SliceBounds {
  int64_t start, length;
};
SliceBounds slice_bounds(int64_t extent, int64_t start, int64_t end, int64_t step);

}  // namespace halo::view
