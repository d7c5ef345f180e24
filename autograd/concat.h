// Differentiable joining, splitting and reversing.
#pragma once

#include <halo/core/tensor.h>

#include <vector>

namespace halo {

/// The tensors one after the other along `dim`: equal extents on the other axes.
Tensor cat(const std::vector<Tensor>& tensors, int64_t dim = 0);
/// The tensors along a new axis `dim`: equal shapes.
Tensor stack(const std::vector<Tensor>& tensors, int64_t dim = 0);
/// Views of `sizes[0]`, `sizes[1]`, ... slices along `dim`; the sizes add up to its extent. A single size repeats, and
/// the last view has what is left.
std::vector<Tensor> split(const Tensor& x, const IntList& sizes, int64_t dim = 0);
/// The views x[0], x[1], ... along `dim`, which they lack.
std::vector<Tensor> unbind(const Tensor& x, int64_t dim = 0);
/// At most `chunks` views along `dim`, as long as each other but for the last.
std::vector<Tensor> chunk(const Tensor& x, int64_t chunks, int64_t dim = 0);
/// x read backward along each of `dims`.
Tensor flip(const Tensor& x, const Shape& dims);

}  // namespace halo
