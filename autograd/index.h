// Differentiable indexing. Indices are integer tensors on the data's device and count from 0; on the CPU one outside is
// an ArgumentError naming position and value (on a GPU the result is NaN there). Sums have a fixed order.
// @throws ArgumentError also for indices of another dtype or device, shapes that do not fit, and a dim that x lacks.
#pragma once

#include <halo/core/tensor.h>

#include <optional>

namespace halo {

/// The slices index[0], index[1], ... of x along `dim`: x [a, extent, b], index [n], result [a, n, b].
Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index);
/// x with source's slices added: result[:, index[j], :] = x[:, index[j], :] + source[:, j, :].
Tensor index_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);
/// result[.., j, ..] = x[.., index[.., j, ..], ..] along `dim`: index has x's rank, its other extents are at most x's.
Tensor gather(const Tensor& x, int64_t dim, const Tensor& index);
/// x with result[.., index[.., j, ..], ..] += src[.., j, ..]: src has index's shape.
Tensor scatter_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src);
/// The rows of weight [entries, width] at `indices` [...]: result [..., width]. The row `padding_idx` (negative counts
/// from the back) gets no gradient.
Tensor embedding(const Tensor& indices, const Tensor& weight, std::optional<int64_t> padding_idx = std::nullopt);
/// `value` where the bool `mask` (broadcast over x) holds, else x; no gradient goes to what was replaced.
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value);
/// 1 at the class, 0 elsewhere: indices [...], result int64 [..., num_classes].
Tensor one_hot(const Tensor& indices, int64_t num_classes);

}  // namespace halo
