// The updates of the optimisers for one element: one formula for CPU and CUDA.
#pragma once

#include <halo/core/host_device.h>

#include <cmath>
#include <cstdint>

namespace halo {

/// Stochastic gradient descent. Sutskever et al., "On the importance of initialization and momentum in deep learning",
/// ICML 2013, in PyTorch's form (the learning rate multiplies the momentum).
struct SgdUpdate {
  double lr = 1e-3;
  double momentum = 0;
  double weight_decay = 0;  ///< added to the gradient as weight_decay * param
  bool nesterov = false;

  /// `velocity` is 0 before the first step; without momentum it is not touched.
  template <class T>
  HALO_HOST_DEVICE void apply(T& param, T grad, T& velocity) const {
    T step = grad + static_cast<T>(weight_decay) * param;
    if (momentum != 0) {
      velocity = static_cast<T>(momentum) * velocity + step;
      step = nesterov ? step + static_cast<T>(momentum) * velocity : velocity;
    }
    param -= static_cast<T>(lr) * step;
  }
};

/// Adam (Kingma and Ba, ICLR 2015) and, with `decoupled`, AdamW (Loshchilov and Hutter, ICLR 2019).
struct AdamUpdate {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = false;  ///< shrink the parameter by lr * weight_decay instead of adding to the gradient

  /// 1 / (1 - beta1^t) and 1 / (1 - beta2^t)^1/2 of step t = 1, 2, ...
  struct Correction {
    double first, second;
  };
  Correction correction(int64_t step) const {
    const auto t = static_cast<double>(step);
    return {1 / (1 - std::pow(beta1, t)), 1 / std::sqrt(1 - std::pow(beta2, t))};
  }

  /// `exp_avg` and `exp_avg_sq` are 0 before the first step.
  template <class T>
  HALO_HOST_DEVICE void apply(const Correction& correction, T& param, T grad, T& exp_avg, T& exp_avg_sq) const {
    if (decoupled) {
      param *= static_cast<T>(1 - lr * weight_decay);
    } else {
      grad += static_cast<T>(weight_decay) * param;
    }
    exp_avg = static_cast<T>(beta1) * exp_avg + static_cast<T>(1 - beta1) * grad;
    exp_avg_sq = static_cast<T>(beta2) * exp_avg_sq + static_cast<T>(1 - beta2) * grad * grad;
    const T root = std::sqrt(exp_avg_sq) * static_cast<T>(correction.second);
    param -= static_cast<T>(lr * correction.first) * exp_avg / (root + static_cast<T>(eps));
  }
};

}  // namespace halo
