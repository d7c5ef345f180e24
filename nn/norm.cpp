#include <halo/autograd/checkpoint.h>
#include <halo/autograd/norm.h>
#include <halo/core/error.h>
#include <halo/nn/norm.h>

namespace halo::nn {
namespace {

/// Ones (for a weight) or zeros (for a bias) where the layer has them.
Tensor filled(bool wanted, const Shape& shape, double value) { return wanted ? full(shape, value) : Tensor(); }

int64_t checked(const char* op, int64_t channels) {
  if (channels < 1) fail(op, ": channels expected 1 or more, got ", channels);
  return channels;
}

int64_t checked_groups(int64_t groups, int64_t channels) {
  if (groups < 1 || channels < 1 || channels % groups != 0) {
    fail("GroupNorm: num_groups expected a divisor of num_channels ", channels, ", got ", groups);
  }
  return channels;
}

}  // namespace

BatchNorm::BatchNorm(int64_t num_features, const BatchNormOptions& options)
    : weight(register_parameter("weight", filled(options.affine, {checked("BatchNorm", num_features)}, 1))),
      bias(register_parameter("bias", filled(options.affine, {num_features}, 0))),
      running_mean(register_buffer("running_mean", filled(options.track_running_stats, {num_features}, 0))),
      running_var(register_buffer("running_var", filled(options.track_running_stats, {num_features}, 1))),
      num_batches_tracked(register_buffer("num_batches_tracked",
                                          options.track_running_stats ? zeros({}, {.dtype = DType::Int64}) : Tensor())),
      eps_(options.eps),
      momentum_(options.momentum) {}

Tensor BatchNorm::forward(const Tensor& x) {
  const bool tracked = running_mean.defined();
  halo::BatchNormOptions options{.training = is_training() || !tracked, .momentum = momentum_, .eps = eps_};
  const bool counts = is_training() && tracked && !is_recomputing();
  // The count is read only where it matters, since reading waits for a GPU.
  if (counts && !momentum_) options.batches_before = static_cast<int64_t>(num_batches_tracked.item());
  const Tensor y = batch_norm(x, running_mean, running_var, weight, bias, options);
  if (counts && x.numel() > 0) num_batches_tracked.add_(ones_like(num_batches_tracked));
  return y;
}

LayerNorm::LayerNorm(const Shape& normalized_shape, double eps, bool affine)
    : weight(register_parameter("weight", filled(affine, normalized_shape, 1))),
      bias(register_parameter("bias", filled(affine, normalized_shape, 0))),
      shape_(normalized_shape),
      eps_(eps) {}

Tensor LayerNorm::forward(const Tensor& x) { return layer_norm(x, shape_, weight, bias, eps_); }

GroupNorm::GroupNorm(int64_t num_groups, int64_t num_channels, double eps, bool affine)
    : weight(register_parameter("weight", filled(affine, {checked_groups(num_groups, num_channels)}, 1))),
      bias(register_parameter("bias", filled(affine, {num_channels}, 0))),
      groups_(num_groups),
      eps_(eps) {}

Tensor GroupNorm::forward(const Tensor& x) { return group_norm(x, groups_, weight, bias, eps_); }

InstanceNorm::InstanceNorm(int64_t num_features, double eps, bool affine)
    : weight(register_parameter("weight", filled(affine, {checked("InstanceNorm", num_features)}, 1))),
      bias(register_parameter("bias", filled(affine, {num_features}, 0))),
      features_(num_features),
      eps_(eps) {}

Tensor InstanceNorm::forward(const Tensor& x) {
  if (x.rank() < 2 || x.size(1) != features_) {
    fail("InstanceNorm: input expected ", features_, " channels [N, C, spatial...], got ", x.shape());
  }
  return instance_norm(x, weight, bias, eps_);
}

}  // namespace halo::nn
