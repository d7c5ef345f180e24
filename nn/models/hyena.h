// The Hyena operator (Poli et al., "Hyena hierarchy", ICML 2023) and the HyenaDNA language model (Nguyen et al.,
// NeurIPS 2023). Parameters have the names of the published HyenaDNA weights.
#pragma once

#include <halo/nn/conv.h>
#include <halo/nn/layers.h>
#include <halo/nn/norm.h>
#include <halo/ops/weight_use.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace halo::models {

/// Which of its two factors runs fastest in a filter bank of (order - 1) * d_model channels. The same for order 2.
enum class FilterLayout {
  OrderSlowest,  ///< channel = o * d_model + d: the stand-alone HyenaDNA
  OrderFastest   ///< channel = d * (order - 1) + o: the research code
};

struct HyenaOptions {
  int64_t d_model = 128;
  int64_t order = 2;           ///< gates and long convolutions: order - 1 of the latter; 2 or more
  int64_t l_max = 1024;        ///< longest sequence; the filters' values depend on it
  int64_t short_filter = 3;    ///< taps of the depthwise filter in front
  int64_t filter_order = 64;   ///< width of the network that makes the filters
  int64_t num_inner_mlps = 2;  ///< its hidden layers beside the first
  int64_t emb_dim = 5;         ///< its inputs a position: time and (emb_dim - 1) / 2 pairs of cosine and sine; odd
  double w = 10;               ///< its sines' frequency at first
  bool train_z = false;        ///< the positions' embedding is a parameter, else a buffer
  bool modulate = true;        ///< multiply filters by exp(-t |delta|) + shift
  double shift = 0.05;         ///< 0.05 in the stand-alone HyenaDNA, 0 in the research code
  double fast_decay = 0.3, slow_decay = 1.5, decay_target = 1e-2;  ///< deltas: ln(target) / slow ... ln(target) / fast
  FilterLayout layout = FilterLayout::OrderSlowest;
  double dropout = 0;  ///< in the recurrence, before each long convolution
};

/// The long filters as a function of position: sines of linear maps of an embedding of time, under a decaying window.
class HyenaFilter : public nn::Module {
 public:
  explicit HyenaFilter(const HyenaOptions& options);
  /// The first `length` taps of each filter: [order - 1, d_model, length]. Where nothing is recorded they are kept
  /// (those of one length, 64 MiB at most) until a parameter changes: do not change them.
  Tensor filters(int64_t length);
  /// What the networks of several layers, all of the same options, make of the first `length` positions before their
  /// last linear map, in one product a step for all of them: [filter_order, length] each.
  static std::vector<Tensor> hidden(const std::vector<HyenaFilter*>& layers, int64_t length);
  /// The filters from this layer's hidden(): the same as filters(), but for rounding.
  Tensor filters_from(const Tensor& hidden);
  /// Again for what filters() returned and keeps.
  WeightUse use_of(const Tensor& filters) const;
  /// The skip weights: [order - 1, d_model].
  Tensor skips();

  Tensor& bias;  ///< skip weights [(order - 1) d_model]

 private:
  struct PositionalEmbedding : nn::Module {
    explicit PositionalEmbedding(const HyenaOptions& options);
    Tensor& z;  ///< [1, l_max, emb_dim]
    Tensor& t;  ///< [1, l_max, 1]
  };
  struct Modulation : nn::Module {
    explicit Modulation(const HyenaOptions& options);
    Tensor& deltas;  ///< [1, 1, (order - 1) d_model]
  };
  struct Sine : nn::Module {
    explicit Sine(const Tensor& frequencies) : freq(register_parameter("freq", frequencies)) {}
    Tensor& freq;  ///< [1, filter_order]
  };
  /// Linear, sine, ..., linear; the sines share their frequencies.
  struct ImplicitFilter : nn::Module {
    explicit ImplicitFilter(const HyenaOptions& options);
    int layers = 0;  ///< registered so far
    std::vector<nn::Linear*> linears;
    std::vector<Sine*> sines;
    nn::Linear* last = nullptr;
  };
  /// [(order - 1) d_model, ...] to [order - 1, d_model, ...].
  Tensor by_order(const Tensor& bank) const;
  /// All that filters() are made of.
  std::vector<Tensor> sources() const;
  struct Memory;

  HyenaOptions options_;
  ImplicitFilter& implicit_filter_;
  PositionalEmbedding& pos_emb_;
  Modulation& modulation_;
  std::shared_ptr<Memory> memory_;
};

/// u [B, L, d_model] to [B, min(L, l_max), d_model]. With the projections x_0 ... x_{order-1}, v of u, each after a
/// short causal filter: v <- long_conv(v x_i) for i = order - 1 ... 1, then y = v x_0, projected.
class HyenaOperator : public nn::Module {
  friend class HyenaDecoder;

 public:
  explicit HyenaOperator(const HyenaOptions& options);
  Tensor forward(const Tensor& u) override;
  /// From in_proj's products, without its bias, to the result without the bias of the last projection: what stands
  /// before and after adds them for nothing. `filter_hidden`: of HyenaFilter::hidden, where it is known.
  Tensor forward_without_biases(const Tensor& projections, const Tensor& filter_hidden = {});
  nn::Linear& in_proj() { return in_proj_; }
  nn::Linear& out_proj() { return out_proj_; }
  HyenaFilter& filter_fn() { return filter_fn_; }

 private:
  Tensor recurrence(const Tensor& projected, const Tensor& filters);

  HyenaOptions options_;
  nn::Linear& in_proj_;
  nn::Linear& out_proj_;
  nn::Conv1d& short_filter_;
  HyenaFilter& filter_fn_;
};

struct HyenaLMOptions {
  HyenaOptions mixer{};
  int64_t n_layer = 2;
  int64_t d_inner = 0;  ///< hidden width of the MLPs; 0: 4 d_model
  int64_t vocab_size = 12;
  int64_t vocab_multiple = 8;  ///< the embedding has vocab_size rounded up to a multiple of this rows
  double embed_dropout = 0.1;
  double resid_dropout = 0;
  double layer_norm_eps = 1e-5;
  bool tied_head = true;                 ///< the head's weight is the embedding's
  GeluForm activation = GeluForm::Tanh;  ///< of the MLPs
  bool checkpoint = false;  ///< keep only what goes from block to block for backward, which runs them again
};

/// Token embedding, pre-norm blocks of Hyena and MLP around a residual stream kept in float32, final norm, head (tied
/// to the embedding or not). Weights start normal (0.02; projections into the residual stream 0.02 / sqrt(2 n_layer)),
/// biases 0.
class HyenaLM : public nn::Module {
  friend class HyenaDecoder;

 public:
  explicit HyenaLM(const HyenaLMOptions& options = {});
  /// Token numbers [B, L] (int64, L <= l_max) to logits [B, L, vocabulary].
  Tensor forward(const Tensor& ids) override;
  /// The state before the head: [B, L, d_model].
  Tensor hidden(const Tensor& ids);
  /// Logits of states [..., d_model].
  Tensor logits(const Tensor& hidden) const;
  const HyenaLMOptions& options() const { return options_; }

 private:
  struct Mlp : nn::Module {
    explicit Mlp(const HyenaLMOptions& options);
    Tensor forward(const Tensor& x) override;
    Tensor forward_without_biases(const Tensor& h);  ///< from fc1's products, without its bias and that of fc2
    GeluForm activation;
    nn::Linear &fc1, &fc2;
  };
  /// What a half of a block adds to the residual stream: values + bias, the bias undefined or not added yet.
  struct Branch {
    Tensor values, bias{};
  };
  /// Adds `x` to `residual` (undefined at first), and returns the norm of the sum, or its product with the weight of
  /// `next` where that is given.
  static Tensor add_and_norm(const Branch& x, double dropout, Tensor& residual, nn::LayerNorm& norm, bool training,
                             const nn::Linear* next = nullptr);

  struct Block : nn::Module {
    Block(const HyenaLMOptions& options, double dropout);
    /// Adds `x` to `residual`, and returns what is to be added next.
    Branch step(const Branch& x, Tensor& residual, const Tensor& filter_hidden);
    /// The same as a checkpoint.
    Branch checkpointed_step(const Branch& x, Tensor& residual, const Tensor& filter_hidden);
    double dropout1, dropout2;
    HyenaOperator& mixer;
    nn::LayerNorm& norm1;
    Mlp& mlp;
    nn::LayerNorm& norm2;
  };
  struct Embeddings : nn::Module {
    explicit Embeddings(const HyenaLMOptions& options);
    nn::Embedding& word_embeddings;
  };
  struct Backbone : nn::Module {
    explicit Backbone(const HyenaLMOptions& options);
    Embeddings& embeddings;
    nn::ModuleList<Block>& layers;
    nn::LayerNorm& ln_f;
  };
  struct Head : nn::Module {
    explicit Head(const Tensor& initial) : weight(register_parameter("weight", initial)) {}
    Tensor& weight;
  };

  void initialise();

  HyenaLMOptions options_;
  Backbone& backbone_;
  Head& lm_head_;
};

/// Loads published HyenaDNA weights: training checkpoints (`model.` in front, torchmetrics entries, `.layer.` of
/// checkpointed modules) and the converted ones (`hyena.` in front, a head of their own). Position tables (z, t,
/// deltas) that the file lacks are the model's own: they follow from l_max, which must be that of the pretraining.
/// @throws ArgumentError as Module::load_state_dict.
void load_hyenadna(HyenaLM& model, const StateDict& weights);

}  // namespace halo::models
