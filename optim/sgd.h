// Stochastic gradient descent.
#pragma once

#include <halo/ops/optim_functors.h>
#include <halo/optim/optimizer.h>

namespace halo::optim {

using SGDOptions = SgdUpdate;

/// param -= lr * v with v = momentum * v + grad + weight_decay * param. @throws ArgumentError for parameters that are
/// no floating leaves or come twice, and for nesterov without momentum.
class SGD : public Optimizer {
 public:
  explicit SGD(const std::vector<Tensor>& params, const SGDOptions& options = {});
  explicit SGD(const std::vector<ParamGroup<SGDOptions>>& groups);

 private:
  void update(int group, const std::vector<Slot*>& slots) override;

  std::vector<SGDOptions> options_;
};

}  // namespace halo::optim
