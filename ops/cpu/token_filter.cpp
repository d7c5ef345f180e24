// A few neighbouring columns of tokens at a time: they are gathered, filtered and written as sequences.
#include <halo/core/parallel.h>
#include <halo/ops/token_filter_backend.h>

#include <algorithm>
#include <vector>

namespace halo::cpu {
namespace {

constexpr int64_t kColumns = 16;  ///< a line of the cache

template <class T>
T value_or_zero(const Tensor& t, int64_t i) {
  return t.defined() ? t.data<T>()[i] : T(0);
}

/// Columns d0 ... d0 + count - 1 of sequence `b`, each with kernel - 1 zeros in front and `bias` added.
template <class T>
void gather(const TokenFilterProblem& p, const TokenFilterTensors& in, int64_t b, int64_t d0, int64_t count,
            std::vector<T>& columns) {
  const int64_t pitch = p.kernel - 1 + p.length;
  T bias[kColumns];
  for (int64_t c = 0; c < count; ++c) {
    bias[c] = value_or_zero<T>(in.x_bias, d0 + c);
    std::fill_n(columns.begin() + c * pitch, p.kernel - 1, T(0));
  }
  const T* x = in.x.data<T>() + b * p.length * p.width() + d0;
  T* const to = columns.data() + p.kernel - 1;
  for (int64_t t = 0; t < p.length; ++t, x += p.width()) {
    for (int64_t c = 0; c < count; ++c) to[c * pitch + t] = x[c] + bias[c];
  }
}

template <class T>
T* sequence(const TokenFilterProblem& p, const std::vector<Tensor>& parts, int64_t b, int64_t d) {
  return parts[static_cast<std::size_t>(d / p.channels)].data<T>() + (b * p.channels + d % p.channels) * p.length;
}

/// Sums in float64, eight in turn so that they need not wait for each other; in an order that n alone decides.
template <class F>
double sum(int64_t n, F&& term) {
  constexpr int64_t kLanes = 8;
  double lanes[kLanes] = {}, total = 0;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (; i < n; ++i) total += term(i);
  for (const double lane : lanes) total += lane;
  return total;
}

}  // namespace

void token_filter_forward(const TokenFilterProblem& p, const TokenFilterTensors& in, const std::vector<Tensor>& y) {
  dispatch_float("token_filter", in.x.dtype(), [&]<class T>(std::type_identity<T>) {
    const int64_t blocks = (p.width() + kColumns - 1) / kColumns, pitch = p.kernel - 1 + p.length;
    parallel_for(p.batch * blocks, 1, [&](int64_t begin, int64_t end) {
      std::vector<T> columns(static_cast<std::size_t>(kColumns * pitch));
      for (int64_t task = begin; task < end; ++task) {
        const int64_t b = task / blocks, d0 = task % blocks * kColumns, count = std::min(kColumns, p.width() - d0);
        gather(p, in, b, d0, count, columns);
        for (int64_t c = 0; c < count; ++c) {
          const T* column = columns.data() + c * pitch;
          const T* weight = in.weight.data<T>() + (d0 + c) * p.kernel;
          T* out = sequence<T>(p, y, b, d0 + c);
          std::fill_n(out, p.length, value_or_zero<T>(in.bias, d0 + c));
          for (int64_t k = 0; k < p.kernel; ++k) {
            for (int64_t t = 0; t < p.length; ++t) out[t] += weight[k] * column[t + k];
          }
        }
      }
    });
  });
}

void token_filter_backward(const TokenFilterProblem& p, const TokenFilterTensors& in, const std::vector<Tensor>& grads,
                           const TokenFilterTensors& into) {
  dispatch_float("token_filter_backward", in.x.dtype(), [&]<class T>(std::type_identity<T>) {
    const int64_t blocks = (p.width() + kColumns - 1) / kColumns, pitch = p.kernel - 1 + p.length;
    parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
      std::vector<T> columns(static_cast<std::size_t>(kColumns * pitch));
      std::vector<T> dx(static_cast<std::size_t>(kColumns * p.length));
      for (int64_t block = begin; block < end; ++block) {
        const int64_t d0 = block * kColumns, count = std::min(kColumns, p.width() - d0);
        std::vector<double> x_bias(kColumns), bias(kColumns), weights(static_cast<std::size_t>(kColumns * p.kernel));
        for (int64_t b = 0; b < p.batch; ++b) {
          gather(p, in, b, d0, count, columns);
          for (int64_t c = 0; c < count; ++c) {
            const T* column = columns.data() + c * pitch;
            const T* weight = in.weight.data<T>() + (d0 + c) * p.kernel;
            const T* g = sequence<T>(p, grads, b, d0 + c);
            T* row = dx.data() + c * p.length;
            std::fill_n(row, p.length, T(0));
            for (int64_t k = 0; k < p.kernel; ++k) {
              const int64_t shift = p.kernel - 1 - k;
              for (int64_t t = 0; t + shift < p.length; ++t) row[t] += weight[k] * g[t + shift];
            }
            const auto at = static_cast<std::size_t>(c);
            x_bias[at] += sum(p.length, [&](int64_t t) { return static_cast<double>(row[t]); });
            bias[at] += sum(p.length, [&](int64_t t) { return static_cast<double>(g[t]); });
            for (int64_t k = 0; k < p.kernel; ++k) {
              weights[static_cast<std::size_t>(c * p.kernel + k)] += sum(
                  p.length, [&](int64_t t) { return static_cast<double>(g[t]) * static_cast<double>(column[t + k]); });
            }
          }
          T* to = into.x.data<T>() + b * p.length * p.width() + d0;
          for (int64_t t = 0; t < p.length; ++t, to += p.width()) {
            for (int64_t c = 0; c < count; ++c) to[c] = dx[static_cast<std::size_t>(c * p.length + t)];
          }
        }
        for (int64_t c = 0; c < count; ++c) {
          into.x_bias.data<T>()[d0 + c] = static_cast<T>(x_bias[static_cast<std::size_t>(c)]);
          into.bias.data<T>()[d0 + c] = static_cast<T>(bias[static_cast<std::size_t>(c)]);
          for (int64_t k = 0; k < p.kernel; ++k) {
            into.weight.data<T>()[(d0 + c) * p.kernel + k] =
                static_cast<T>(weights[static_cast<std::size_t>(c * p.kernel + k)]);
          }
        }
      }
    });
  });
}

}  // namespace halo::cpu
