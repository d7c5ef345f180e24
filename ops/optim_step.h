// The steps of the optimisers, in place, on many tensors at once.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/optim_functors.h>

#include <vector>

namespace halo {

/// One parameter with its gradient and state: one shape, dtype (float32, float64) and device, any strides.
struct SgdTensors {
  Tensor param{}, grad{};
  Tensor velocity{};  ///< undefined where there is no momentum
  template <class F>
  void for_each_tensor(F&& f) {
    for (Tensor* t : {&param, &grad, &velocity}) f(*t);
  }
};
struct AdamTensors {
  Tensor param{}, grad{}, exp_avg{}, exp_avg_sq{};
  int64_t step = 1;  ///< 1 for the first
  template <class F>
  void for_each_tensor(F&& f) {
    for (Tensor* t : {&param, &grad, &exp_avg, &exp_avg_sq}) f(*t);
  }
};

namespace ops {

/// Changes param (and velocity) of each of `tensors`.
void sgd_step(const SgdUpdate& update, const std::vector<SgdTensors>& tensors);
/// Changes param, exp_avg and exp_avg_sq of each of `tensors`.
void adam_step(const AdamUpdate& update, const std::vector<AdamTensors>& tensors);

}  // namespace ops
}  // namespace halo
