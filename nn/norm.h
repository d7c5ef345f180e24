// Normalisation layers. Constructors throw ArgumentError for numbers that make no layer, forward() for an input that
// does not fit.
#pragma once

#include <halo/autograd/local_response_norm.h>
#include <halo/nn/module.h>

#include <optional>

namespace halo::nn {

struct BatchNormOptions {
  double eps = 1e-5;
  std::optional<double> momentum = 0.1;  ///< none: the cumulative average of all batches
  bool affine = true;                    ///< parameters weight (ones) and bias (zeros)
  bool track_running_stats = true;       ///< else the batch's own statistics are used in evaluation too
};

/// Batch normalisation of x [N, C, ...] with any number of further axes. Buffers running_mean, running_var [C] and
/// num_batches_tracked (int64).
class BatchNorm : public Module {
 public:
  explicit BatchNorm(int64_t num_features, const BatchNormOptions& options = {});
  Tensor forward(const Tensor& x) override;

  Tensor& weight;
  Tensor& bias;
  Tensor& running_mean;
  Tensor& running_var;
  Tensor& num_batches_tracked;

 private:
  double eps_;
  std::optional<double> momentum_;
};

using BatchNorm1d = BatchNorm;
using BatchNorm2d = BatchNorm;
using BatchNorm3d = BatchNorm;

/// Normalises over the last axes, whose extents are `normalized_shape`. Parameters weight (ones) and bias (zeros) of
/// that shape.
class LayerNorm : public Module {
 public:
  explicit LayerNorm(const Shape& normalized_shape, double eps = 1e-5, bool affine = true);
  explicit LayerNorm(int64_t normalized_size, double eps = 1e-5, bool affine = true)
      : LayerNorm(Shape{normalized_size}, eps, affine) {}
  Tensor forward(const Tensor& x) override;
  double eps() const { return eps_; }

  Tensor& weight;
  Tensor& bias;

 private:
  Shape shape_;
  double eps_;
};

/// Normalises groups of channels of x [N, C, ...]. Parameters weight (ones) and bias (zeros) [C].
class GroupNorm : public Module {
 public:
  GroupNorm(int64_t num_groups, int64_t num_channels, double eps = 1e-5, bool affine = true);
  Tensor forward(const Tensor& x) override;

  Tensor& weight;
  Tensor& bias;

 private:
  int64_t groups_;
  double eps_;
};

/// Normalises each channel of each sample of x [N, C, spatial...]. No parameters unless `affine`.
class InstanceNorm : public Module {
 public:
  explicit InstanceNorm(int64_t num_features, double eps = 1e-5, bool affine = false);
  Tensor forward(const Tensor& x) override;

  Tensor& weight;
  Tensor& bias;

 private:
  int64_t features_;
  double eps_;
};

/// See halo::local_response_norm.
class LocalResponseNorm : public Module {
 public:
  explicit LocalResponseNorm(int64_t size, const LocalResponseNormOptions& options = {})
      : size_(size), options_(options) {}
  Tensor forward(const Tensor& x) override { return local_response_norm(x, size_, options_); }

 private:
  int64_t size_;
  LocalResponseNormOptions options_;
};

}  // namespace halo::nn
