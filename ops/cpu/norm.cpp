// Normalisation on the CPU. Statistics are two-pass sums in float64. The mean handed to backward is rounded to the
// tensor's type; where the gradient depends on it, backward measures how far it is off and corrects for it.
#include <halo/core/parallel.h>
#include <halo/ops/norm_backend.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace halo::cpu {
namespace {

constexpr int64_t kGrain = 16384;  // elements a piece of work should touch

int64_t grain_for(int64_t elements) { return kGrain / std::clamp<int64_t>(elements, 1, kGrain); }

/// Runs of `length` contiguous elements from `first` on, `step` apart: a channel of [N, C, ...], or a row.
struct Runs {
  int64_t first, step, runs, length;
  int64_t count() const { return runs * length; }

  /// Calls f(offset) for the start of each run.
  template <class F>
  void for_each(F&& f) const {
    for (int64_t i = 0; i < runs; ++i) f(first + i * step);
  }
};

struct Statistics {
  double mean, variance;
};

template <class T>
Statistics statistics(const T* x, const Runs& runs) {
  const double count = static_cast<double>(runs.count());
  double sum = 0, squares = 0;
  runs.for_each([&](int64_t at) {
    for (int64_t i = 0; i < runs.length; ++i) sum += static_cast<double>(x[at + i]);
  });
  const double mean = sum / count;
  runs.for_each([&](int64_t at) {
    for (int64_t i = 0; i < runs.length; ++i) {
      const double difference = static_cast<double>(x[at + i]) - mean;
      squares += difference * difference;
    }
  });
  return {mean, squares / count};
}

template <class T>
double value_or(const T* values, int64_t i, double otherwise) {
  return values != nullptr ? static_cast<double>(values[i]) : otherwise;
}

template <class T>
T* data_or_null(const Tensor& t) {
  return t.defined() ? t.data<T>() : nullptr;
}

Runs channel(const BatchNormProblem& p, int64_t c) {
  return {c * p.positions, p.channels * p.positions, p.batch, p.positions};
}

template <class T>
void batch_forward(const BatchNormProblem& p, const T* x, const T* weight, const T* bias, T* running_mean,
                   T* running_var, T* y, T* mean, T* rstd) {
  parallel_for(p.channels, grain_for(p.count()), [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      const Runs runs = channel(p, c);
      if (p.training && p.count() == 0) {
        mean[c] = rstd[c] = T(0);
        continue;
      }
      Statistics s;
      if (p.training) {
        s = statistics(x, runs);
        if (running_mean != nullptr) {
          const double n = static_cast<double>(p.count());
          const auto blend = [&](T old, double now) {
            return static_cast<T>((1 - p.momentum) * static_cast<double>(old) + p.momentum * now);
          };
          running_mean[c] = blend(running_mean[c], s.mean);
          running_var[c] = blend(running_var[c], s.variance * (n / (n - 1)));
        }
      } else {
        s = {static_cast<double>(running_mean[c]), static_cast<double>(running_var[c])};
      }
      const double inverse = 1 / std::sqrt(s.variance + p.eps);
      const double scale = inverse * value_or(weight, c, 1), shift = value_or(bias, c, 0);
      mean[c] = static_cast<T>(s.mean);
      rstd[c] = static_cast<T>(inverse);
      runs.for_each([&](int64_t at) {
        for (int64_t i = 0; i < runs.length; ++i) {
          y[at + i] = static_cast<T>((static_cast<double>(x[at + i]) - s.mean) * scale + shift);
        }
      });
    }
  });
}

template <class T>
void batch_backward(const BatchNormProblem& p, const T* g, const T* x, const T* weight, const T* mean, const T* rstd,
                    T* dx, T* dweight, T* dbias) {
  parallel_for(p.channels, grain_for(p.count()), [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      const Runs runs = channel(p, c);
      const double inverse = static_cast<double>(rstd[c]), n = static_cast<double>(p.count());
      double center = static_cast<double>(mean[c]), sum_g = 0, sum_gx = 0, sum_x = 0;
      runs.for_each([&](int64_t at) {
        for (int64_t i = 0; i < runs.length; ++i) {
          const double difference = static_cast<double>(x[at + i]) - center, up = static_cast<double>(g[at + i]);
          sum_g += up;
          sum_gx += up * difference;
          sum_x += difference;
        }
      });
      if (p.training && p.count() > 0) {
        center += sum_x / n;
        sum_gx -= sum_g * (sum_x / n);
      }
      if (dbias != nullptr) dbias[c] = static_cast<T>(sum_g);
      if (dweight != nullptr) dweight[c] = static_cast<T>(sum_gx * inverse);
      if (dx == nullptr) continue;
      const double scale = inverse * value_or(weight, c, 1);
      const double mean_g = p.training ? sum_g / n : 0, slope = p.training ? sum_gx * inverse * inverse / n : 0;
      runs.for_each([&](int64_t at) {
        for (int64_t i = 0; i < runs.length; ++i) {
          const double difference = static_cast<double>(x[at + i]) - center;
          dx[at + i] = static_cast<T>(scale * (static_cast<double>(g[at + i]) - mean_g - difference * slope));
        }
      });
    }
  });
}

/// Calls f(offset, count, channel, step) for runs of a row: element i of a run is at offset + i and has the parameters
/// of channel + i * step.
template <class F>
void for_each_run(const RowNormProblem& p, int64_t row, F&& f) {
  const int64_t first = row * p.length(), first_channel = row % p.groups * p.channels_per_row;
  if (p.positions == 1) {
    f(first, p.length(), first_channel, 1);
  } else {
    for (int64_t c = 0; c < p.channels_per_row; ++c) f(first + c * p.positions, p.positions, first_channel + c, 0);
  }
}

template <class T>
void row_forward(const RowNormProblem& p, const T* x, const T* weight, const T* bias, T* y, T* mean, T* rstd) {
  parallel_for(p.rows, grain_for(p.length()), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (p.length() == 0) {
        mean[row] = rstd[row] = T(0);
        continue;
      }
      const Statistics s = statistics(x, {row * p.length(), 0, 1, p.length()});
      const double inverse = 1 / std::sqrt(s.variance + p.eps);
      mean[row] = static_cast<T>(s.mean);
      rstd[row] = static_cast<T>(inverse);
      for_each_run(p, row, [&](int64_t at, int64_t count, int64_t channel, int64_t step) {
        for (int64_t i = 0; i < count; ++i) {
          const double xhat = (static_cast<double>(x[at + i]) - s.mean) * inverse;
          y[at + i] =
              static_cast<T>(xhat * value_or(weight, channel + i * step, 1) + value_or(bias, channel + i * step, 0));
        }
      });
    }
  });
}

/// The mean of each row in float64: the rounded one plus what the row says it is off.
template <class T>
std::vector<double> exact_means(const RowNormProblem& p, const T* x, const T* mean) {
  std::vector<double> result(static_cast<std::size_t>(p.rows));
  parallel_for(p.rows, grain_for(p.length()), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const double center = static_cast<double>(mean[row]);
      double sum = 0;
      for (int64_t at = row * p.length(); at < (row + 1) * p.length(); ++at) sum += static_cast<double>(x[at]) - center;
      result[static_cast<std::size_t>(row)] = center + (p.length() > 0 ? sum / static_cast<double>(p.length()) : 0);
    }
  });
  return result;
}

template <class T>
void row_backward_input(const RowNormProblem& p, const T* g, const T* x, const T* weight,
                        const std::vector<double>& means, const T* rstd, T* dx) {
  parallel_for(p.rows, grain_for(p.length()), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const double n = static_cast<double>(p.length()), inverse = static_cast<double>(rstd[row]);
      const double center = means[static_cast<std::size_t>(row)];
      const auto for_each = [&](auto&& f) {
        for_each_run(p, row, [&](int64_t at, int64_t count, int64_t channel, int64_t step) {
          for (int64_t i = 0; i < count; ++i) {
            f(at + i, static_cast<double>(g[at + i]) * value_or(weight, channel + i * step, 1),
              static_cast<double>(x[at + i]) - center);
          }
        });
      };
      double sum_h = 0, sum_hx = 0;
      for_each([&](int64_t, double h, double difference) {
        sum_h += h;
        sum_hx += h * difference;
      });
      const double mean_h = sum_h / n, slope = sum_hx * inverse * inverse / n;
      for_each([&](int64_t at, double h, double difference) {
        dx[at] = static_cast<T>(inverse * (h - mean_h - difference * slope));
      });
    }
  });
}

/// Sums over the rows of a group, for a block of its channels at a time: with positions = 1 (layer norm) channels are
/// the contiguous axis.
template <class T>
void row_backward_parameters(const RowNormProblem& p, const T* g, const T* x, const std::vector<double>& means,
                             const T* rstd, T* dweight, T* dbias) {
  constexpr int64_t kBlock = 64;
  const int64_t blocks = (p.channels_per_row + kBlock - 1) / kBlock;
  parallel_for(p.groups * blocks, 1, [&](int64_t begin, int64_t end) {
    std::vector<double> sums(static_cast<std::size_t>(kBlock)), products(sums.size());
    for (int64_t task = begin; task < end; ++task) {
      const int64_t group = task / blocks, first = task % blocks * kBlock;
      const int64_t count = std::min(kBlock, p.channels_per_row - first);
      std::fill(sums.begin(), sums.end(), 0.0);
      std::fill(products.begin(), products.end(), 0.0);
      for (int64_t row = group; row < p.rows; row += p.groups) {
        const double center = means[static_cast<std::size_t>(row)], inverse = static_cast<double>(rstd[row]);
        const int64_t start = row * p.length() + first * p.positions;
        for (int64_t c = 0; c < count; ++c) {
          double sum = 0, product = 0;
          for (int64_t at = start + c * p.positions; at < start + (c + 1) * p.positions; ++at) {
            sum += static_cast<double>(g[at]);
            product += static_cast<double>(g[at]) * (static_cast<double>(x[at]) - center);
          }
          sums[static_cast<std::size_t>(c)] += sum;
          products[static_cast<std::size_t>(c)] += product * inverse;
        }
      }
      for (int64_t c = 0; c < count; ++c) {
        const int64_t to = group * p.channels_per_row + first + c;
        if (dbias != nullptr) dbias[to] = static_cast<T>(sums[static_cast<std::size_t>(c)]);
        if (dweight != nullptr) dweight[to] = static_cast<T>(products[static_cast<std::size_t>(c)]);
      }
    }
  });
}

}  // namespace

void batch_norm_forward(const BatchNormProblem& problem, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const Tensor& running_mean, const Tensor& running_var, const NormResult& result) {
  dispatch_float("batch_norm", x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    batch_forward<T>(problem, x.data<T>(), data_or_null<T>(weight), data_or_null<T>(bias),
                     data_or_null<T>(running_mean), data_or_null<T>(running_var), result.y.data<T>(),
                     result.mean.data<T>(), result.rstd.data<T>());
  });
}

void batch_norm_backward(const BatchNormProblem& problem, const Tensor& g, const Tensor& x, const Tensor& weight,
                         const Tensor& mean, const Tensor& rstd, const NormGrads& grads) {
  dispatch_float("batch_norm", x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    batch_backward<T>(problem, g.data<T>(), x.data<T>(), data_or_null<T>(weight), mean.data<T>(), rstd.data<T>(),
                      data_or_null<T>(grads.x), data_or_null<T>(grads.weight), data_or_null<T>(grads.bias));
  });
}

void row_norm_forward(const RowNormProblem& problem, const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const NormResult& result) {
  dispatch_float("row_norm", x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    row_forward<T>(problem, x.data<T>(), data_or_null<T>(weight), data_or_null<T>(bias), result.y.data<T>(),
                   result.mean.data<T>(), result.rstd.data<T>());
  });
}

void row_norm_backward(const RowNormProblem& problem, const Tensor& g, const Tensor& x, const Tensor& weight,
                       const Tensor& mean, const Tensor& rstd, const NormGrads& grads) {
  dispatch_float("row_norm", x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const std::vector<double> means = exact_means(problem, x.data<T>(), mean.data<T>());
    if (grads.x.defined()) {
      row_backward_input<T>(problem, g.data<T>(), x.data<T>(), data_or_null<T>(weight), means, rstd.data<T>(),
                            grads.x.data<T>());
    }
    if (grads.weight.defined() || grads.bias.defined()) {
      row_backward_parameters<T>(problem, g.data<T>(), x.data<T>(), means, rstd.data<T>(),
                                 data_or_null<T>(grads.weight), data_or_null<T>(grads.bias));
    }
  });
}

}  // namespace halo::cpu
