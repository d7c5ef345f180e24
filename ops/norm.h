// Normalisation by mean and variance: xhat = (x - mean) rstd with rstd = (variance + eps)^-1/2, y = xhat * weight +
// bias. Batch normalisation takes its statistics from each channel, the others (layer, group, instance) from rows.
// Variances come from differences to the mean, with n in the divisor.
#pragma once

#include <halo/core/tensor.h>

#include <cstdint>

namespace halo {

/// One batch normalisation of x [N, C, ...].
struct BatchNormProblem {
  int64_t batch = 0, channels = 0, positions = 0;
  bool training = true;  ///< statistics of this batch, else the running ones
  double eps = 1e-5;
  double momentum = 0.1;                               ///< running = (1 - momentum) running + momentum * batch
  int64_t count() const { return batch * positions; }  ///< values a channel
};

/// One normalisation of dense x seen as rows of length() values. Element j of row r has the weight of channel
/// (r % groups) * channels_per_row + j / positions:
///   layer norm     groups 1, channels_per_row = size of normalized_shape, positions 1
///   group norm     groups G, channels_per_row = C / G,                    positions = product of the spatial extents
///   instance norm  group norm with G = C
struct RowNormProblem {
  int64_t rows = 0, groups = 1, channels_per_row = 1, positions = 1;
  double eps = 1e-5;
  int64_t length() const { return channels_per_row * positions; }
  int64_t channels() const { return groups * channels_per_row; }
};

/// Result of a forward pass with what backward needs: mean and rstd that were used, [C] or [rows].
struct NormResult {
  Tensor y{}, mean{}, rstd{};
  template <class F>
  void for_each_tensor(F&& f) {
    for (Tensor* t : {&y, &mean, &rstd}) f(*t);
  }
};
/// Gradients; undefined where not asked for. Those of weight and bias have one axis.
struct NormGrads {
  Tensor x{}, weight{}, bias{};
  template <class F>
  void for_each_tensor(F&& f) {
    for (Tensor* t : {&x, &weight, &bias}) f(*t);
  }
};
/// Which gradients to compute.
struct NormWanted {
  bool x = true, weight = true, bias = true;
};

namespace ops {

/// weight, bias [C] or undefined (1 and 0). running_mean, running_var [C]: evaluation needs them; training updates them
/// in place where given, the variance with n - 1 in its divisor.
/// @throws ArgumentError where training gets one value a channel: it has no variance.
NormResult batch_norm_forward(const BatchNormProblem& problem, const Tensor& x, const Tensor& weight,
                              const Tensor& bias, const Tensor& running_mean, const Tensor& running_var);

/// In training mean and rstd are functions of x, in evaluation they are constants.
NormGrads batch_norm_backward(const BatchNormProblem& problem, const Tensor& g, const Tensor& x, const Tensor& weight,
                              const Tensor& mean, const Tensor& rstd, const NormWanted& wanted = {});

/// weight, bias: channels() values of any shape, or undefined (1 and 0). A row of one value gives y = bias.
NormResult row_norm_forward(const RowNormProblem& problem, const Tensor& x, const Tensor& weight, const Tensor& bias);

NormGrads row_norm_backward(const RowNormProblem& problem, const Tensor& g, const Tensor& x, const Tensor& weight,
                            const Tensor& mean, const Tensor& rstd, const NormWanted& wanted = {});

}  // namespace ops
}  // namespace halo
