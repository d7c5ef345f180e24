// Layers without a file of their own: linear, embedding, dropout, flatten, resizing, and activations as modules.
// Constructors throw ArgumentError for numbers that make no layer, forward() for an input that does not fit.
#pragma once

#include <halo/autograd/interpolate.h>
#include <halo/autograd/unary.h>
#include <halo/core/generator.h>
#include <halo/nn/module.h>

#include <optional>

namespace halo::nn {

/// x [..., in] to x weight^T + bias [..., out]. Parameters weight [out, in] and bias [out], uniform within 1 /
/// sqrt(in).
class Linear : public Module {
 public:
  Linear(int64_t in_features, int64_t out_features, bool bias = true);
  Tensor forward(const Tensor& x) override;

  Tensor& weight;
  Tensor& bias;
};

/// Indices [...] to rows of the parameter weight [num_embeddings, embedding_dim]: [..., embedding_dim]. Standard normal
/// at first; the row `padding_idx` is zero and gets no gradient.
class Embedding : public Module {
 public:
  Embedding(int64_t num_embeddings, int64_t embedding_dim, std::optional<int64_t> padding_idx = std::nullopt);
  Tensor forward(const Tensor& indices) override;

  Tensor& weight;

 private:
  std::optional<int64_t> padding_idx_;
};

/// In training, zeroes each element with probability p and scales the rest by 1 / (1 - p).
class Dropout : public Module {
 public:
  explicit Dropout(double p = 0.5, Generator& generator = default_generator());
  Tensor forward(const Tensor& x) override;

 private:
  double p_;
  Generator* generator_;
};

/// Merges the axes start..end into one: [N, C, H, W] to [N, C H W].
class Flatten : public Module {
 public:
  explicit Flatten(int64_t start = 1, int64_t end = -1) : start_(start), end_(end) {}
  Tensor forward(const Tensor& x) override { return x.flatten(start_, end_); }

 private:
  int64_t start_, end_;
};

/// Resizes x [N, C, spatial...]: see halo::interpolate.
class Upsample : public Module {
 public:
  explicit Upsample(const InterpolateOptions& options) : options_(options) {}
  Tensor forward(const Tensor& x) override { return interpolate(x, options_); }

 private:
  InterpolateOptions options_;
};

/// Gives x itself.
class Identity : public Module {
 public:
  Tensor forward(const Tensor& x) override { return x; }
};

// --- Activations: x of any shape and a floating dtype; see autograd/unary.h ----------------------------------------
class ReLU : public Module {
 public:
  Tensor forward(const Tensor& x) override { return relu(x); }
};

class LeakyReLU : public Module {
 public:
  explicit LeakyReLU(double negative_slope = 0.01) : slope_(negative_slope) {}
  Tensor forward(const Tensor& x) override { return leaky_relu(x, slope_); }

 private:
  double slope_;
};

class GELU : public Module {
 public:
  explicit GELU(GeluForm form = GeluForm::Exact) : form_(form) {}
  Tensor forward(const Tensor& x) override { return gelu(x, form_); }

 private:
  GeluForm form_;
};

class SiLU : public Module {
 public:
  Tensor forward(const Tensor& x) override { return silu(x); }
};

class Sigmoid : public Module {
 public:
  Tensor forward(const Tensor& x) override { return sigmoid(x); }
};

class Tanh : public Module {
 public:
  Tensor forward(const Tensor& x) override { return tanh(x); }
};

class Softplus : public Module {
 public:
  Tensor forward(const Tensor& x) override { return softplus(x); }
};

}  // namespace halo::nn
