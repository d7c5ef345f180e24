// Ordering along one axis; the gradient of a value goes to the element it came from. NaN counts as larger than every
// number, and among equals the lower index comes first, whatever the direction. @throws ArgumentError for a dim that x
// does not have.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/sort.h>

#include <optional>

namespace halo {

/// All elements along `dim`, ascending (NaN last) or descending (NaN first). Stable.
SortResult sort(const Tensor& x, int64_t dim = -1, bool descending = false);
/// The k largest (or smallest) elements along `dim`, in that order. @throws ArgumentError unless 0 <= k <= the extent.
SortResult topk(const Tensor& x, int64_t k, int64_t dim = -1, bool largest = true);
/// Index (int64) of the largest or smallest element along `dim`, the first among equals; in row-major order of all
/// where there is no dim. A NaN beats every number. No gradient. @throws ArgumentError where there is no element.
Tensor argmax(const Tensor& x, std::optional<int64_t> dim = std::nullopt, bool keepdim = false);
Tensor argmin(const Tensor& x, std::optional<int64_t> dim = std::nullopt, bool keepdim = false);

}  // namespace halo
