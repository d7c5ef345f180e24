// Losses over classes: cross entropy of logits and negative log likelihood.
#pragma once

#include <halo/core/tensor.h>

namespace halo {

struct ClassLoss {
  bool log_probabilities = false;  ///< x holds log probabilities (nll_loss) instead of logits (cross_entropy)
  int64_t ignore_index = -100;     ///< a target that does not count
  double label_smoothing = 0;      ///< in [0, 1]: this share of each target is spread over all classes
};

namespace ops {

/// Losses of the positions and what backward and the mean need: all of the target's shape, in x's dtype (lse float64).
struct ClassLossResult {
  Tensor loss;
  Tensor lse;      ///< log(sum(exp(x))) of each position; 0 for log probabilities
  Tensor counted;  ///< weight of each position's target; 0 where ignored
};

/// x [N, C] or [N, C, d...], target [N] or [N, d...] (integer), weight [C] or undefined. `op` names the caller.
/// @throws ArgumentError naming position and label (on the CPU) where one is neither a class nor ignore_index.
ClassLossResult cross_entropy(const char* op, const ClassLoss& options, const Tensor& x, const Tensor& target,
                              const Tensor& weight);

/// Gradient of x for the upstream gradient g of `loss`.
Tensor cross_entropy_backward(const char* op, const ClassLoss& options, const Tensor& x, const Tensor& target,
                              const Tensor& weight, const Tensor& lse, const Tensor& g);

/// The mean of losses, sum(loss) / sum(counted), and the share 1 / sum(counted) that each has in it, both of rank 0; of
/// nothing that counts 0 and 1.
struct MeanLoss {
  Tensor mean, share;
};
/// `loss` and `counted` as ClassLossResult has them.
MeanLoss mean_loss(const Tensor& loss, const Tensor& counted);

}  // namespace ops
}  // namespace halo
