// A column of tokens at a time: it is gathered, filtered and written as a sequence.
#include <halo/core/parallel.h>
#include <halo/ops/token_filter_backend.h>

#include <algorithm>

namespace halo::cpu {
namespace {

template <class T>
T value_or_zero(const Tensor& t, int64_t i) {
  return t.defined() ? t.data<T>()[i] : T(0);
}

/// Column `d` of sequence `b` with kernel - 1 zeros in front.
template <class T>
void gather(const TokenFilterProblem& p, const TokenFilterTensors& in, int64_t b, int64_t d, std::vector<T>& v) {
  const T bias = value_or_zero<T>(in.x_bias, d);
  const T* x = in.x.data<T>() + b * p.length * p.width() + d;
  std::fill_n(v.begin(), p.kernel - 1, T(0));
  for (int64_t t = 0; t < p.length; ++t) v[p.kernel - 1 + t] = x[t * p.width()] + bias;
}

template <class T>
T* sequence(const TokenFilterProblem& p, const std::vector<Tensor>& parts, int64_t b, int64_t d) {
  return parts[static_cast<std::size_t>(d / p.channels)].data<T>() + (b * p.channels + d % p.channels) * p.length;
}

}  // namespace

void token_filter_forward(const TokenFilterProblem& p, const TokenFilterTensors& in, const std::vector<Tensor>& y) {
  dispatch_float("token_filter", in.x.dtype(), [&]<class T>(std::type_identity<T>) {
    parallel_for(p.batch * p.width(), 1, [&](int64_t begin, int64_t end) {
      std::vector<T> v(static_cast<std::size_t>(p.kernel - 1 + p.length));
      for (int64_t row = begin; row < end; ++row) {
        const int64_t b = row / p.width(), d = row % p.width();
        gather(p, in, b, d, v);
        T* out = sequence<T>(p, y, b, d);
        std::fill_n(out, p.length, value_or_zero<T>(in.bias, d));
        for (int64_t k = 0; k < p.kernel; ++k) {
          const T weight = in.weight.data<T>()[d * p.kernel + k];
          for (int64_t t = 0; t < p.length; ++t) out[t] += weight * v[t + k];
        }
      }
    });
  });
}

void token_filter_backward(const TokenFilterProblem& p, const TokenFilterTensors& in, const std::vector<Tensor>& grads,
                           const TokenFilterTensors& into) {
  dispatch_float("token_filter_backward", in.x.dtype(), [&]<class T>(std::type_identity<T>) {
    parallel_for(p.width(), 1, [&](int64_t begin, int64_t end) {
      std::vector<T> v(static_cast<std::size_t>(p.kernel - 1 + p.length));
      for (int64_t d = begin; d < end; ++d) {
        const T* weight = in.weight.data<T>() + d * p.kernel;
        double x_bias = 0, bias = 0;
        std::vector<double> sums(static_cast<std::size_t>(p.kernel), 0.0);
        for (int64_t b = 0; b < p.batch; ++b) {
          gather(p, in, b, d, v);
          const T* g = sequence<T>(p, grads, b, d);
          T* dx = into.x.data<T>() + b * p.length * p.width() + d;
          for (int64_t t = 0; t < p.length; ++t) {
            T sum = 0;
            for (int64_t k = 0; k < p.kernel; ++k) {
              const int64_t from = t + p.kernel - 1 - k;
              if (from < p.length) sum += weight[k] * g[from];
            }
            dx[t * p.width()] = sum;
            x_bias += static_cast<double>(sum);
            bias += static_cast<double>(g[t]);
            for (int64_t k = 0; k < p.kernel; ++k) {
              sums[static_cast<std::size_t>(k)] += static_cast<double>(g[t]) * static_cast<double>(v[t + k]);
            }
          }
        }
        into.x_bias.data<T>()[d] = static_cast<T>(x_bias);
        into.bias.data<T>()[d] = static_cast<T>(bias);
        for (int64_t k = 0; k < p.kernel; ++k) {
          into.weight.data<T>()[d * p.kernel + k] = static_cast<T>(sums[static_cast<std::size_t>(k)]);
        }
      }
    });
  });
}

}  // namespace halo::cpu
