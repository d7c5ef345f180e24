// Differentiable joining, splitting and reversing. A negative dim counts from the back; @throws ArgumentError for one
// that there is not.
#pragma once

#include <halo/core/tensor.h>

#include <vector>

namespace halo {

/// The tensors one after the other along `dim`. @throws ArgumentError for none, and where dtypes, devices or extents of
/// the other axes differ.
Tensor cat(const std::vector<Tensor>& tensors, int64_t dim = 0);
/// The tensors along a new axis `dim`. @throws ArgumentError for none, and where dtypes, devices or shapes differ.
Tensor stack(const std::vector<Tensor>& tensors, int64_t dim = 0);
/// Views of `sizes[0]`, `sizes[1]`, ... slices along `dim`. A single size repeats, and the last view has what is left.
/// @throws ArgumentError where the sizes do not add up to the extent.
std::vector<Tensor> split(const Tensor& x, const IntList& sizes, int64_t dim = 0);
/// The views x[0], x[1], ... along `dim`, which they lack.
std::vector<Tensor> unbind(const Tensor& x, int64_t dim = 0);
/// At most `chunks` views along `dim`, as long as each other but for the last. @throws ArgumentError for less than 1.
std::vector<Tensor> chunk(const Tensor& x, int64_t chunks, int64_t dim = 0);
/// x read backward along each of `dims`. @throws ArgumentError for a dim given twice.
Tensor flip(const Tensor& x, const Shape& dims);

}  // namespace halo
