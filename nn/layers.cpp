#include <halo/autograd/dropout.h>
#include <halo/autograd/grad_mode.h>
#include <halo/autograd/index.h>
#include <halo/autograd/matmul.h>
#include <halo/core/error.h>
#include <halo/nn/init.h>
#include <halo/nn/layers.h>

#include <cmath>

namespace halo::nn {
namespace {

Tensor linear_weight(int64_t in, int64_t out) {
  if (in < 1 || out < 1) fail("Linear: features expected 1 or more, got ", in, " and ", out);
  const Tensor weight = empty({out, in});
  init::kaiming_uniform_(weight, std::sqrt(5.0));
  return weight;
}

Tensor linear_bias(bool wanted, int64_t in, int64_t out) {
  if (!wanted) return {};
  const double bound = 1 / std::sqrt(static_cast<double>(in));
  const Tensor bias = empty({out});
  init::uniform_(bias, -bound, bound);
  return bias;
}

Tensor embedding_weight(int64_t count, int64_t width, std::optional<int64_t> padding_idx) {
  if (padding_idx && (*padding_idx < -count || *padding_idx >= count)) {
    fail("Embedding: padding_idx expected a row of ", count, ", got ", *padding_idx);
  }
  const Tensor weight = randn({count, width});
  if (padding_idx) weight.select(0, *padding_idx).zero_();
  return weight;
}

}  // namespace

Linear::Linear(int64_t in_features, int64_t out_features, bool with_bias)
    : weight(register_parameter("weight", linear_weight(in_features, out_features))),
      bias(register_parameter("bias", linear_bias(with_bias, in_features, out_features))) {}

Tensor Linear::forward(const Tensor& x) { return linear(x, weight, bias); }

Embedding::Embedding(int64_t num_embeddings, int64_t embedding_dim, std::optional<int64_t> padding_idx)
    : weight(register_parameter("weight", embedding_weight(num_embeddings, embedding_dim, padding_idx))),
      padding_idx_(padding_idx) {}

Tensor Embedding::forward(const Tensor& indices) { return embedding(indices, weight, padding_idx_); }

Dropout::Dropout(double p, Generator& generator) : p_(p), generator_(&generator) {
  if (!(p >= 0 && p <= 1)) fail("Dropout: p expected in [0, 1], got ", p);
}

Tensor Dropout::forward(const Tensor& x) { return dropout(x, p_, is_training(), *generator_); }

}  // namespace halo::nn
