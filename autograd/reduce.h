// Further differentiable reductions over `dims` (all axes where empty); sum, mean, amax and amin are in arithmetic.h.
// @throws ArgumentError for a dim that x does not have, and (but for any and all) a dtype that is not floating.
#pragma once

#include <halo/core/tensor.h>

namespace halo {

/// sum((x - mean)^2) / (n - 1), or / n where not `unbiased`; NaN where that is a division by 0. The mean is taken
/// first, so that a large one does no harm.
Tensor var(const Tensor& x, const Shape& dims = {}, bool unbiased = true, bool keepdim = false);
/// sqrt(var). Gradient 0 where it is 0.
Tensor std(const Tensor& x, const Shape& dims = {}, bool unbiased = true, bool keepdim = false);
/// log(sum(exp(x))), without overflow.
Tensor logsumexp(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
/// The p-norm for p = 1, 2 or infinity. Gradient 0 where it is 0. @throws ArgumentError for another p.
Tensor norm(const Tensor& x, double p = 2, const Shape& dims = {}, bool keepdim = false);
/// Whether any, or every, element is not 0: bool, no gradient.
Tensor any(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor all(const Tensor& x, const Shape& dims = {}, bool keepdim = false);

}  // namespace halo
