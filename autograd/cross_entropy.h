// Differentiable losses over classes.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/reduce.h>

namespace halo {

struct CrossEntropyOptions {
  Tensor weight{};  ///< [C]: how much a target of each class counts; no gradient
  int64_t ignore_index = -100;
  Reduction reduction = Reduction::Mean;
  double label_smoothing = 0;  ///< this share of each target is spread over all classes
};

/// Cross entropy of logits: input [N, C] or [N, C, d...], target (class numbers, integer dtype) [N] or [N, d...].
/// Result of the target's shape, or its sum, or its mean over what counts (divided by the sum of the targets' weights).
/// A target equal to ignore_index does not count: its loss and gradient are exactly 0, whatever the logits. Where
/// nothing counts the mean is 0 (PyTorch gives NaN). A logit of +inf makes the loss of its position NaN.
/// @throws ArgumentError for shapes, dtypes or a label_smoothing (0 to 1) that do not fit, and naming position and
/// label where one is neither a class nor ignore_index (on the CPU; on a GPU its loss is NaN).
Tensor cross_entropy(const Tensor& input, const Tensor& target, const CrossEntropyOptions& options = {});

struct NllLossOptions {
  Tensor weight{};
  int64_t ignore_index = -100;
  Reduction reduction = Reduction::Mean;
};

/// The same of log probabilities: minus the input at the target.
Tensor nll_loss(const Tensor& input, const Tensor& target, const NllLossOptions& options = {});

}  // namespace halo
