// Long convolution on the CPU, in float64 throughout. A thread works on one channel at a time: its filter is
// transformed once and meets the rows of the batch in order, each in a transform of its own.
#include <halo/core/denormals.h>
#include <halo/core/parallel.h>
#include <halo/ops/long_conv_backend.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "fft.h"

namespace halo::cpu {
namespace {

using Row = std::vector<double>;

/// The taps that reach the input, first ... first + count - 1, and where among them the center lies:
/// y[t] = sum_j w[first + j] u[t - j + center].
struct Taps {
  explicit Taps(const LongConvProblem& p) {
    if (p.length == 0) return;
    first = std::max<int64_t>(0, p.center() - p.length + 1);
    count = std::min(p.kernel, p.center() + p.length) - first;
    center = p.center() - first;
  }
  int64_t first = 0, count = 0, center = 0;

  /// Long enough that what wraps around lands outside what is kept, in all three contractions.
  int64_t transform_size(int64_t length) const { return length + std::max(center, count - 1 - center); }
};

/// The three contractions of one row by sums. Taps run outermost, so that the inner loops are contiguous.
class Direct {
 public:
  Direct(const Taps& taps, int64_t length) : taps_(taps), length_(length) {}

  void set_filter(const double* w) { filter_ = w; }
  void set_input(const double* u) { input_ = u; }
  void set_upstream(const double* v) { upstream_ = v; }

  /// y[t] = sum_j w[j] u[t - j + center]
  void convolve(double* y) const {
    std::fill_n(y, length_, 0.0);
    for_each_tap([&](int64_t j, int64_t shift, int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) y[t] += filter_[j] * input_[t + shift];
    });
  }
  /// d[s] = sum_j w[j] v[s + j - center]
  void correlate(double* d) const {
    std::fill_n(d, length_, 0.0);
    for_each_tap([&](int64_t j, int64_t shift, int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) d[t + shift] += filter_[j] * upstream_[t];
    });
  }
  /// dw[j] += sum_t v[t] u[t - j + center]
  void add_filter_gradient(double* dw) const {
    for_each_tap([&](int64_t j, int64_t shift, int64_t begin, int64_t end) {
      double sum = 0;
      for (int64_t t = begin; t < end; ++t) sum += upstream_[t] * input_[t + shift];
      dw[j] += sum;
    });
  }
  void finish_filter_gradient(double*) const {}

 private:
  /// Calls f(tap, shift, begin, end): outputs begin <= t < end meet input t + shift.
  template <class F>
  void for_each_tap(F&& f) const {
    for (int64_t j = 0; j < taps_.count; ++j) {
      const int64_t shift = taps_.center - j;
      f(j, shift, std::max<int64_t>(0, -shift), std::min(length_, length_ - shift));
    }
  }

  Taps taps_;
  int64_t length_;
  const double *filter_ = nullptr, *input_ = nullptr, *upstream_ = nullptr;
};

/// The same by transforms. Filter gradients are summed over the batch as spectra.
class Transformed {
 public:
  Transformed(const RealFft& fft, const Taps& taps, int64_t length)
      : fft_(fft), taps_(taps), length_(length), scratch_(fft.scratch()), row_(static_cast<std::size_t>(fft.size())) {
    for (auto* spectrum : {&filter_, &input_, &upstream_, &work_, &sum_}) {
      spectrum->resize(static_cast<std::size_t>(fft.bins()));
    }
  }

  void set_filter(const double* w) {
    fft_.forward(w, taps_.count, filter_.data(), scratch_);
    std::fill(sum_.begin(), sum_.end(), Complex{});
  }
  void set_input(const double* u) { fft_.forward(u, length_, input_.data(), scratch_); }
  void set_upstream(const double* v) { fft_.forward(v, length_, upstream_.data(), scratch_); }

  void convolve(double* y) {
    for (std::size_t k = 0; k < work_.size(); ++k) work_[k] = filter_[k] * input_[k];
    fft_.inverse(work_.data(), row_.data(), scratch_);
    std::copy_n(row_.begin() + taps_.center, length_, y);
  }
  void correlate(double* d) {
    for (std::size_t k = 0; k < work_.size(); ++k) work_[k] = conj(filter_[k]) * upstream_[k];
    fft_.inverse(work_.data(), row_.data(), scratch_);
    for (int64_t s = 0; s < length_; ++s) d[s] = row_[wrapped(s - taps_.center)];
  }
  void add_filter_gradient(double*) {
    for (std::size_t k = 0; k < sum_.size(); ++k) sum_[k] = sum_[k] + upstream_[k] * conj(input_[k]);
  }
  void finish_filter_gradient(double* dw) {
    fft_.inverse(sum_.data(), row_.data(), scratch_);
    for (int64_t j = 0; j < taps_.count; ++j) dw[j] = row_[wrapped(j - taps_.center)];
  }

 private:
  std::size_t wrapped(int64_t i) const { return static_cast<std::size_t>(i < 0 ? i + fft_.size() : i); }

  const RealFft& fft_;
  Taps taps_;
  int64_t length_;
  RealFft::Scratch scratch_;
  Row row_;
  std::vector<Complex> filter_, input_, upstream_, work_, sum_;
};

/// Sums cost a multiply-add a pair of tap and output, transforms a multiple of n log2(n). The factor is measured
/// (baseline x86-64): from 64 to 4096 outputs both took the same time at 6 to 10.
bool prefers_direct(const Taps& taps, int64_t length) {
  const double n = static_cast<double>(taps.transform_size(length));
  return static_cast<double>(taps.count) * static_cast<double>(length) <= 7 * n * std::log2(std::max(n, 2.0));
}

/// Calls f(make) where make() gives an engine for one thread.
template <class F>
void with_engine(const LongConvProblem& p, LongConvMethod method, F&& f) {
  const Taps taps(p);
  if (method == LongConvMethod::Direct || (method == LongConvMethod::Auto && prefers_direct(taps, p.length))) {
    f([&] { return Direct(taps, p.length); });
  } else {
    const RealFft fft(taps.transform_size(p.length));
    f([&] { return Transformed(fft, taps, p.length); });
  }
}

template <class T>
struct Pointers {
  explicit Pointers(const LongConvTensors& t)
      : x(get(t.x)), weight(get(t.weight)), skip(get(t.skip)), gate_in(get(t.gate_in)), gate_out(get(t.gate_out)) {}
  static T* get(const Tensor& t) { return t.defined() ? t.data<T>() : nullptr; }
  T *x, *weight, *skip, *gate_in, *gate_out;
};

/// to[i] = a[i] * b[i]; b may be null (1).
template <class A, class B, class To>
void multiply(const A* a, const B* b, int64_t count, To* to) {
  for (int64_t i = 0; i < count; ++i) {
    const double value = static_cast<double>(a[i]);
    to[i] = static_cast<To>(b == nullptr ? value : value * static_cast<double>(b[i]));
  }
}

template <class T>
const T* at(const T* base, int64_t offset) {
  return base == nullptr ? nullptr : base + offset;
}

template <class T>
Row filter_of(const LongConvProblem& p, const Taps& taps, const T* weight, int64_t channel) {
  Row filter(static_cast<std::size_t>(taps.count));
  for (int64_t j = 0; j < taps.count; ++j) {
    filter[static_cast<std::size_t>(j)] = static_cast<double>(weight[channel * p.kernel + taps.first + j]);
  }
  return filter;
}

template <class T>
void forward(const LongConvProblem& p, LongConvMethod method, const Pointers<T>& in, T* y) {
  const Taps taps(p);
  with_engine(p, method, [&](auto make) {
    parallel_for(p.channels, 1, [&](int64_t begin, int64_t end) {
      auto engine = make();
      Row u(static_cast<std::size_t>(p.length)), sums(u.size());
      for (int64_t h = begin; h < end; ++h) {
        const Row filter = filter_of(p, taps, in.weight, h);
        engine.set_filter(filter.data());
        for (int64_t b = 0; b < p.batch; ++b) {
          const int64_t row = (b * p.channels + h) * p.length;
          multiply(in.x + row, at(in.gate_in, row), p.length, u.data());
          engine.set_input(u.data());
          engine.convolve(sums.data());
          if (in.skip != nullptr) {
            const double skip = static_cast<double>(in.skip[h]);
            for (std::size_t t = 0; t < u.size(); ++t) sums[t] += skip * u[t];
          }
          multiply(sums.data(), at(in.gate_out, row), p.length, y + row);
        }
      }
    });
  });
}

/// With u = gate_in x and v = gate_out g: du = weight correlated with v + skip v; dx = gate_in du, dgate_in = x du,
/// dweight = v against u, dskip = <u, v>, dgate_out = g (weight conv u + skip u).
template <class T>
void backward(const LongConvProblem& p, LongConvMethod method, const Pointers<T>& in, const T* g,
              const Pointers<T>& out) {
  const Taps taps(p);
  with_engine(p, method, [&](auto make) {
    parallel_for(p.channels, 1, [&](int64_t begin, int64_t end) {
      auto engine = make();
      Row u(static_cast<std::size_t>(p.length)), v(u.size()), du(u.size());
      Row dw(static_cast<std::size_t>(taps.count));
      for (int64_t h = begin; h < end; ++h) {
        const Row filter = in.weight != nullptr ? filter_of(p, taps, in.weight, h) : Row(dw.size());
        engine.set_filter(filter.data());
        const double skip = in.skip != nullptr ? static_cast<double>(in.skip[h]) : 0;
        double dskip = 0;
        std::fill(dw.begin(), dw.end(), 0.0);
        for (int64_t b = 0; b < p.batch; ++b) {
          const int64_t row = (b * p.channels + h) * p.length;
          multiply(g + row, at(in.gate_out, row), p.length, v.data());
          if (in.x != nullptr) multiply(in.x + row, at(in.gate_in, row), p.length, u.data());
          const bool wants_du = out.x != nullptr || out.gate_in != nullptr;
          if (out.weight != nullptr || out.gate_out != nullptr) engine.set_input(u.data());
          if (out.weight != nullptr || wants_du) engine.set_upstream(v.data());
          if (out.weight != nullptr) engine.add_filter_gradient(dw.data());
          if (out.skip != nullptr) {
            for (std::size_t t = 0; t < u.size(); ++t) dskip += u[t] * v[t];
          }
          if (out.gate_out != nullptr) {
            engine.convolve(du.data());
            for (std::size_t t = 0; t < u.size(); ++t) du[t] += skip * u[t];
            multiply(du.data(), g + row, p.length, out.gate_out + row);
          }
          if (!wants_du) continue;
          engine.correlate(du.data());
          for (std::size_t t = 0; t < u.size(); ++t) du[t] += skip * v[t];
          if (out.x != nullptr) multiply(du.data(), at(in.gate_in, row), p.length, out.x + row);
          if (out.gate_in != nullptr) multiply(du.data(), in.x + row, p.length, out.gate_in + row);
        }
        if (out.skip != nullptr) out.skip[h] = static_cast<T>(dskip);
        if (out.weight == nullptr) continue;
        engine.finish_filter_gradient(dw.data());
        std::fill_n(out.weight + h * p.kernel, p.kernel, T(0));
        for (int64_t j = 0; j < taps.count; ++j) {
          out.weight[h * p.kernel + taps.first + j] = static_cast<T>(dw[static_cast<std::size_t>(j)]);
        }
      }
    });
  });
}

}  // namespace

void long_conv_forward(const LongConvProblem& problem, LongConvMethod method, const LongConvTensors& operands,
                       const Tensor& y) {
  const DenormalGuard denormals(flush_denormals());
  dispatch_float("long_conv", y.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    forward<T>(problem, method, Pointers<T>(operands), y.data<T>());
  });
}

void long_conv_backward(const LongConvProblem& problem, LongConvMethod method, const LongConvTensors& operands,
                        const Tensor& g, const LongConvTensors& grads) {
  const DenormalGuard denormals(flush_denormals());
  dispatch_float("long_conv", g.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    backward<T>(problem, method, Pointers<T>(operands), g.data<T>(), Pointers<T>(grads));
  });
}

}  // namespace halo::cpu
