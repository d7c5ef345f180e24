#include <halo/autograd/arithmetic.h>
#include <halo/autograd/local_response_norm.h>
#include <halo/autograd/node.h>
#include <halo/autograd/pool.h>
#include <halo/autograd/unary.h>
#include <halo/core/error.h>
#include <halo/ops/local_response_norm.h>

namespace halo {
namespace {

using autograd::BackwardContext;
using autograd::record;
using autograd::SavedTensor;

/// Sums over the channels [c - before, c + after] that exist: an average pooling whose divisor is 1.
Tensor sum_channels(const Tensor& x, int64_t before, int64_t after) {
  const Tensor planes = x.reshape({x.size(0), 1, x.size(1), -1});
  const AvgPoolOptions options{
      .stride = 1, .padding = {before, 0}, .padding_after = {after, 0}, .divisor_override = int64_t{1}};
  return avg_pool2d(planes, {before + after + 1, 1}, options).reshape(x.shape());
}

/// The gradient of LocalResponseNorm's formula from differentiable pieces.
Tensor differentiable_backward(const LocalResponseNorm& norm, const Tensor& x, const Tensor& g) {
  const Tensor s = norm.k + norm.alpha * sum_channels(x * x, norm.before(), norm.after());
  const Tensor ratios = g * x * pow(s, -norm.beta - 1);
  return g * pow(s, -norm.beta) - 2 * norm.alpha * norm.beta * (x * sum_channels(ratios, norm.after(), norm.before()));
}

}  // namespace

Tensor local_response_norm(const Tensor& input, int64_t size, const LocalResponseNormOptions& options) {
  if (size < 1) fail("local_response_norm: size expects at least 1, got ", size);
  const double divisor = options.convention == LrnConvention::DividedBySize ? static_cast<double>(size) : 1.0;
  const LocalResponseNorm norm{size, options.alpha / divisor, options.beta, options.k};
  return record("local_response_norm", {input}, ops::local_response_norm_forward(norm, input),
                [norm, saved = SavedTensor(input)](const Tensor& g, const BackwardContext& context) {
                  const Tensor x = saved.unpack(context);
                  return std::vector<Tensor>{context.create_graph && x.numel() > 0
                                                 ? differentiable_backward(norm, x, g)
                                                 : ops::local_response_norm_backward(norm, x, g)};
                });
}

}  // namespace halo
