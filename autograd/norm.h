// Differentiable normalisation: y = (x - mean) / sqrt(variance + eps) * weight + bias. Variances are over n; weight and
// bias may be undefined (1 and 0). @throws ArgumentError naming the argument whose shape, dtype or device does not fit.
#pragma once

#include <halo/core/tensor.h>

#include <cstdint>
#include <optional>

namespace halo {

struct BatchNormOptions {
  bool training = false;  ///< normalise with this batch's statistics, else with the running ones
  /// running = (1 - momentum) running + momentum * batch. None: the cumulative average of all batches.
  std::optional<double> momentum = 0.1;
  int64_t batches_before = 0;  ///< training batches seen before this one; the cumulative average needs it
  double eps = 1e-5;
};

/// x [N, C, ...], statistics of each channel over all else; weight, bias, running_mean, running_var [C]. Training
/// updates the running values in place where they are given, the variance with n - 1 in its divisor (the output uses
/// n); evaluation needs them. @throws ArgumentError in training on one value a channel, which has no variance; the
/// running values stay as they are. An empty batch leaves them too.
Tensor batch_norm(const Tensor& input, const Tensor& running_mean, const Tensor& running_var, const Tensor& weight = {},
                  const Tensor& bias = {}, const BatchNormOptions& options = {});

/// x [..., normalized_shape], statistics over those last axes; weight and bias have that shape.
Tensor layer_norm(const Tensor& input, const Shape& normalized_shape, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5);

/// x [N, C, ...], statistics of each sample over groups of C / num_groups channels; weight, bias [C].
/// @throws ArgumentError where num_groups does not divide C.
Tensor group_norm(const Tensor& input, int64_t num_groups, const Tensor& weight = {}, const Tensor& bias = {},
                  double eps = 1e-5);

/// x [N, C, spatial...], statistics of each sample and channel; weight, bias [C].
Tensor instance_norm(const Tensor& input, const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5);

}  // namespace halo
