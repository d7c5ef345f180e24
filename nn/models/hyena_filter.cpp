#include <halo/autograd/arithmetic.h>
#include <halo/autograd/concat.h>
#include <halo/autograd/grad_mode.h>
#include <halo/autograd/hyena_filter.h>
#include <halo/autograd/matmul.h>
#include <halo/core/cuda_backend.h>
#include <halo/core/error.h>
#include <halo/core/precision.h>
#include <halo/core/stream.h>
#include <halo/nn/models/hyena.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numbers>
#include <optional>

namespace halo::models {
namespace {

constexpr TensorOptions kDouble{.dtype = DType::Float64};

HyenaOptions checked(const HyenaOptions& o) {
  if (o.order < 2) fail("Hyena: order expected 2 or more, got ", o.order);
  if (o.emb_dim < 3 || o.emb_dim % 2 == 0) fail("Hyena: emb_dim expected odd and 3 or more, got ", o.emb_dim);
  if (o.d_model < 1 || o.l_max < 1 || o.filter_order < 1 || o.num_inner_mlps < 0) {
    fail("Hyena: d_model, l_max and filter_order expected 1 or more, got ", o.d_model, ", ", o.l_max, " and ",
         o.filter_order);
  }
  return o;
}

int64_t bank_size(const HyenaOptions& o) { return (o.order - 1) * o.d_model; }

/// Time from 0 to 1: [1, l_max, 1].
Tensor time_axis(const HyenaOptions& o) { return linspace(0, 1, o.l_max, kDouble).reshape({1, o.l_max, 1}); }

/// [time, Re e^(-i f w), Im e^(-i f w)] with w = 2 pi n / l_max and bands f = 1e-4 ... bands - 1: [1, l_max, emb_dim].
Tensor position_embedding(const HyenaOptions& o) {
  const int64_t bands = (o.emb_dim - 1) / 2;
  const Tensor w =
      arange(o.l_max, kDouble).reshape({1, o.l_max, 1}) * (2 * std::numbers::pi / static_cast<double>(o.l_max));
  const Tensor f = linspace(1e-4, static_cast<double>(bands - 1), bands, kDouble);
  return cat({time_axis(o), cos(w * f), -sin(w * f)}, -1);
}

}  // namespace

HyenaFilter::PositionalEmbedding::PositionalEmbedding(const HyenaOptions& o)
    : z(o.train_z ? register_parameter("z", position_embedding(o).to(DType::Float32))
                  : register_buffer("z", position_embedding(o).to(DType::Float32))),
      t(register_buffer("t", time_axis(o).to(DType::Float32))) {}

HyenaFilter::Modulation::Modulation(const HyenaOptions& o)
    : deltas(register_buffer("deltas", linspace(std::log(o.decay_target) / o.slow_decay,
                                                std::log(o.decay_target) / o.fast_decay, bank_size(o))
                                           .reshape({1, 1, bank_size(o)}))) {}

HyenaFilter::ImplicitFilter::ImplicitFilter(const HyenaOptions& o) {
  const Tensor frequencies = full({1, o.filter_order}, o.w);
  const auto add = [this]<class Layer>(Layer&& layer) {
    return &register_module(std::to_string(layers++), std::forward<Layer>(layer));
  };
  for (int64_t i = 0; i <= o.num_inner_mlps; ++i) {
    linears.push_back(add(nn::Linear(i == 0 ? o.emb_dim : o.filter_order, o.filter_order)));
    sines.push_back(add(Sine(frequencies)));
  }
  last = add(nn::Linear(o.filter_order, bank_size(o), false));
}

/// The filters that inference asked for last, and what they were computed from.
struct HyenaFilter::Memory {
  static constexpr std::size_t kMostBytes = std::size_t{64} << 20;

  bool keeps(const Tensor& filters) {
    const std::lock_guard lock(mutex_);
    return kept_.defined() && kept_.is_same(filters);
  }
  Tensor filters(HyenaFilter& from, int64_t length) {
    const std::lock_guard lock(mutex_);
    std::vector<Source> now;
    for (const Tensor& t : from.sources()) now.push_back({t.storage(), t.storage()->version()});
    if (kept_.defined() && length_ == length && precision_ == precision() && same(now)) {
      const Stream stream = current_stream(kept_.device());
      if (!(stream == *stream_)) stream.wait(*stream_);
      return kept_;
    }
    kept_ = {};
    const Tensor result = from.filters_from(hidden({&from}, length)[0]);
    const auto is_private = [](const Source& s) { return s.storage.lock()->is_private(); };
    if (result.nbytes() > kMostBytes || !std::ranges::all_of(now, is_private)) return result;
    kept_ = result;
    version_ = result.storage()->version();
    length_ = length;
    precision_ = precision();
    stream_ = current_stream(result.device());
    sources_ = std::move(now);
    return result;
  }

 private:
  struct Source {
    std::weak_ptr<Storage> storage;
    uint64_t version;
  };

  /// Whether these are the sources of what is kept, and nobody changed that either.
  bool same(const std::vector<Source>& now) const {
    return kept_.storage()->version() == version_ &&
           std::ranges::equal(now, sources_, [](const Source& a, const Source& b) {
             return a.version == b.version && a.storage.lock() == b.storage.lock();
           });
  }

  std::mutex mutex_;
  Tensor kept_;
  uint64_t version_ = 0;
  int64_t length_ = 0;
  Precision precision_{};
  std::optional<Stream> stream_;
  std::vector<Source> sources_;
};

HyenaFilter::HyenaFilter(const HyenaOptions& options)
    : bias(register_parameter("bias", randn({bank_size(checked(options))}))),
      options_(options),
      implicit_filter_(register_module("implicit_filter", ImplicitFilter(options))),
      pos_emb_(register_module("pos_emb", PositionalEmbedding(options))),
      modulation_(register_module("modulation", Modulation(options))),
      memory_(std::make_shared<Memory>()) {}

Tensor HyenaFilter::by_order(const Tensor& bank) const {
  Shape shape = bank.shape();
  shape.erase(0);
  const bool slowest = options_.layout == FilterLayout::OrderSlowest;
  shape.insert(0, slowest ? options_.d_model : options_.order - 1);
  shape.insert(0, slowest ? options_.order - 1 : options_.d_model);
  const Tensor split = bank.reshape(shape);
  return slowest ? split : split.transpose(0, 1);
}

Tensor HyenaFilter::filters(int64_t length) {
  if (grad_enabled() || cuda::recording_graph()) return filters_from(hidden({this}, length)[0]);
  return memory_->filters(*this, length);
}

std::vector<Tensor> HyenaFilter::hidden(const std::vector<HyenaFilter*>& layers, int64_t length) {
  if (layers.empty()) return {};
  const int64_t l_max = layers[0]->options_.l_max;
  if (length < 0 || length > l_max) fail("HyenaFilter: length expected at most l_max ", l_max, ", got ", length);
  // What `member` gives of every layer, along a new first axis.
  const auto all = [&](auto&& member) {
    if (layers.size() == 1) return member(*layers[0]).unsqueeze(0);
    std::vector<Tensor> tensors;
    for (HyenaFilter* layer : layers) tensors.push_back(member(*layer));
    return stack(tensors);
  };
  const Tensor frequency = all([](HyenaFilter& f) { return f.implicit_filter_.sines[0]->freq.flatten(); });
  Tensor x = all([=](HyenaFilter& f) { return f.pos_emb_.z.slice(1, 0, length).select(0, 0); }).transpose(1, 2);
  for (std::size_t i = 0; i < layers[0]->implicit_filter_.linears.size(); ++i) {
    const Tensor weight = all([=](HyenaFilter& f) { return f.implicit_filter_.linears[i]->weight; });
    const Tensor bias = all([=](HyenaFilter& f) { return f.implicit_filter_.linears[i]->bias; });
    x = bias_sine(matmul(weight, x), bias, frequency);
  }
  return unbind(x);
}

Tensor HyenaFilter::filters_from(const Tensor& hidden) {
  const Tensor bank = matmul(implicit_filter_.last->weight, hidden);
  if (!options_.modulate) return by_order(bank);
  const Tensor time = pos_emb_.t.slice(1, 0, hidden.size(1)).flatten();
  return by_order(decay_window(bank, time, modulation_.deltas.flatten(), options_.shift));
}

WeightUse HyenaFilter::use_of(const Tensor& filters) const {
  return memory_->keeps(filters) ? WeightUse::Again : WeightUse::Once;
}

std::vector<Tensor> HyenaFilter::sources() const {
  std::vector<Tensor> all{pos_emb_.z, pos_emb_.t, modulation_.deltas, implicit_filter_.last->weight};
  for (const nn::Linear* linear : implicit_filter_.linears) all.insert(all.end(), {linear->weight, linear->bias});
  for (const Sine* sine : implicit_filter_.sines) all.push_back(sine->freq);
  return all;
}

Tensor HyenaFilter::skips() { return by_order(bias); }

}  // namespace halo::models
