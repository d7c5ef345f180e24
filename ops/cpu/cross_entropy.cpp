#include <halo/ops/cross_entropy_backend.h>

#include "log_sum_exp.h"
#include "position.h"

namespace halo::cpu {
namespace {

/// The labels and class weights of one call.
template <class T>
struct Labels {
  Labels(const char* op, const ClassLoss& loss, const Tensor& target, const Tensor& weight, int64_t classes)
      : labels(target.data<int64_t>()),
        weights(weight.defined() ? weight.data<T>() : nullptr),
        ignored(loss.ignore_index),
        hard(1 - loss.label_smoothing),
        soft(loss.label_smoothing / static_cast<double>(classes)) {
    for (int64_t i = 0; i < target.numel(); ++i) {
      if (labels[i] == ignored || (labels[i] >= 0 && labels[i] < classes)) continue;
      fail(op, ": target expected a class from 0 to ", classes - 1, " or ignore_index ", ignored, ", got ", labels[i],
           " at position ", position(target.shape(), i));
    }
  }
  bool counts(int64_t i) const { return labels[i] != ignored; }
  double weight(int64_t c) const { return weights == nullptr ? 1.0 : static_cast<double>(weights[c]); }
  /// The share q of class c in the target of position i.
  double share(int64_t i, int64_t c) const {
    return (c == labels[i] ? hard * weight(c) : 0.0) + (soft > 0 ? soft * weight(c) : 0.0);
  }

  const int64_t* labels;
  const T* weights;
  int64_t ignored;
  double hard, soft;
};

}  // namespace

void cross_entropy(const char* op, const ClassLoss& options, const Tensor& x, const Tensor& target,
                   const Tensor& weight, const Tensor& loss, const Tensor& lse, const Tensor& counted) {
  dispatch_float(op, x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const Labels<T> labels(op, options, target, weight, x.size(1));
    const T* const in = x.data<T>();
    T *const out = loss.data<T>(), *const count = counted.data<T>();
    double* const kept = lse.data<double>();
    for_each_column_block(x, 1, [&](const ColumnBlock& b) {
      const ShiftedSum<T> line = options.log_probabilities ? ShiftedSum<T>{} : shifted_sum(b, in);
      for (int64_t i = 0; i < b.width; ++i) {
        const int64_t at = b.line + i;
        const auto column = static_cast<std::size_t>(i);
        const bool counts = labels.counts(at);
        const double log_sum = options.log_probabilities || !counts
                                   ? 0.0
                                   : static_cast<double>(line.largest[column]) + std::log(line.sum[column]);
        double total = 0;
        for (int64_t c = 0; counts && c < b.length; ++c) {
          const double q = labels.share(at, c);
          if (q != 0) total += q * (log_sum - static_cast<double>(in[b.first + c * b.stride + i]));
        }
        out[at] = static_cast<T>(total);
        kept[at] = log_sum;
        count[at] = static_cast<T>(counts ? labels.weight(labels.labels[at]) : 0.0);
      }
    });
  });
}

void cross_entropy_backward(const char* op, const ClassLoss& options, const Tensor& x, const Tensor& target,
                            const Tensor& weight, const Tensor& lse, const Tensor& g, const Tensor& dx) {
  dispatch_float(op, x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const Labels<T> labels(op, options, target, weight, x.size(1));
    const T *const in = x.data<T>(), *const up = g.data<T>();
    const double* const kept = lse.data<double>();
    T* const out = dx.data<T>();
    for_each_column_block(x, 1, [&](const ColumnBlock& b) {
      std::array<double, ColumnBlock::kWidth> shares{};
      for (int64_t i = 0; i < b.width; ++i) {
        for (int64_t c = 0; labels.counts(b.line + i) && c < b.length; ++c) {
          shares[static_cast<std::size_t>(i)] += labels.share(b.line + i, c);
        }
      }
      for (int64_t c = 0; c < b.length; ++c) {
        for (int64_t i = 0; i < b.width; ++i) {
          const int64_t at = b.line + i, element = b.first + c * b.stride + i;
          if (!labels.counts(at)) {
            out[element] = T(0);
            continue;
          }
          const T exponent = static_cast<T>(static_cast<double>(in[element]) - kept[at]);
          const T share = static_cast<T>(shares[static_cast<std::size_t>(i)]);
          const T model = options.log_probabilities ? T(0) : share * std::exp(exponent);
          out[element] = up[at] * (model - static_cast<T>(labels.share(at, c)));
        }
      }
    });
  });
}

void mean_loss(const Tensor& loss, const Tensor& counted, const Tensor& mean, const Tensor& share) {
  dispatch_float("mean_loss", loss.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    double total = 0, divisor = 0;
    for (int64_t i = 0; i < loss.numel(); ++i) {
      total += static_cast<double>(loss.data<T>()[i]);
      divisor += static_cast<double>(counted.data<T>()[i]);
    }
    if (divisor == 0) divisor = 1;
    *mean.data<T>() = static_cast<T>(total / divisor);
    *share.data<T>() = static_cast<T>(1 / divisor);
  });
}

}  // namespace halo::cpu
