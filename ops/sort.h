// Ordering along one axis. NaN counts as larger than every number; among equals the lower index comes first, whatever
// the direction.
#pragma once

#include <halo/core/tensor.h>

#include <optional>

namespace halo {

/// Values in order, and where each came from (int64).
struct SortResult {
  Tensor values, indices;
};

namespace ops {

/// All elements along `dim`, ascending (NaN last) or descending (NaN first). Stable.
SortResult sort(const Tensor& x, int64_t dim = -1, bool descending = false);
/// The k largest (or smallest) elements along `dim`, in that order.
SortResult topk(const Tensor& x, int64_t k, int64_t dim = -1, bool largest = true);
/// Index of the largest (or smallest) element along `dim`, or in row-major order of all where there is no dim. A NaN
/// beats every number in both directions.
Tensor arg_extreme(const char* op, const Tensor& x, bool largest, std::optional<int64_t> dim, bool keepdim);

}  // namespace ops
}  // namespace halo
