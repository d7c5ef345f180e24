// Long convolution on the CPU, in float64 throughout: float64 tensors by Eigen's transforms, float32 by those of fft.h.
// A thread works on one channel at a time, or on as many as a vector has lanes: their filters are transformed once and
// meet the rows of the batch in order, each in a transform of its own. Lane l of value t of a row is at t * lanes + l.
#include <halo/core/denormals.h>
#include <halo/core/parallel.h>
#include <halo/ops/long_conv_backend.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "fft.h"
#include "oracle_fft.h"

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

/// The three contractions of one row (one lane) by sums. Taps run outermost, so that the inner loops are contiguous.
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

/// The same by the transforms of RealFft or OracleFft. Filter gradients are summed over the batch as spectra.
template <class Fft>
class Transformed {
 public:
  Transformed(const Fft& fft, const Taps& taps, int64_t length)
      : fft_(fft),
        taps_(taps),
        values_(length * fft.lanes()),
        scratch_(fft.scratch()),
        row_(static_cast<std::size_t>(fft.row_length())) {
    for (auto* spectrum : {&filter_, &input_, &upstream_, &work_, &sum_}) {
      spectrum->resize(static_cast<std::size_t>(fft.spectrum_length()));
    }
  }
  int64_t lanes() const { return fft_.lanes(); }

  void set_filter(const double* w) {
    fft_.forward(w, taps_.count, filter_.data(), scratch_);
    std::fill(sum_.begin(), sum_.end(), 0.0);
  }
  void set_input(const double* u) { fft_.forward(u, values_ / lanes(), input_.data(), scratch_); }
  void set_upstream(const double* v) { fft_.forward(v, values_ / lanes(), upstream_.data(), scratch_); }

  void convolve(double* y) {
    fft_.multiply(filter_.data(), input_.data(), false, work_.data());
    fft_.inverse(work_.data(), row_.data(), scratch_);
    std::copy_n(row_.begin() + taps_.center * lanes(), values_, y);
  }
  void correlate(double* d) {
    fft_.multiply(filter_.data(), upstream_.data(), true, work_.data());
    fft_.inverse(work_.data(), row_.data(), scratch_);
    copy_from(-taps_.center, values_, d);
  }
  void add_filter_gradient(double*) { fft_.add_product(input_.data(), upstream_.data(), sum_.data()); }
  void finish_filter_gradient(double* dw) {
    fft_.inverse(sum_.data(), row_.data(), scratch_);
    copy_from(-taps_.center, taps_.count * lanes(), dw);
  }

 private:
  /// `count` values of the row, which goes round, from value `first` on.
  void copy_from(int64_t first, int64_t count, double* to) const {
    const int64_t before = std::min(count, -first * lanes());
    std::copy_n(row_.end() + first * lanes(), before, to);
    std::copy_n(row_.begin(), count - before, to + before);
  }

  const Fft& fft_;
  Taps taps_;
  int64_t values_;  ///< of a row, all lanes
  typename Fft::Scratch scratch_;
  Row row_, filter_, input_, upstream_, work_, sum_;
};

/// Sums cost a multiply-add a pair of tap and output, transforms a multiple of n log2(n). The factor is measured
/// (baseline x86-64): from 64 to 4096 outputs both took the same time at 6 to 10.
bool prefers_direct(const Taps& taps, int64_t length) {
  const double n = static_cast<double>(taps.transform_size(length));
  return static_cast<double>(taps.count) * static_cast<double>(length) <= 7 * n * std::log2(std::max(n, 2.0));
}

/// Whether several rows side by side stay in the cache, and there are as many channels.
bool prefers_lanes(const LongConvProblem& p, const Taps& taps) {
  constexpr int64_t kLongest = 16384;
  return taps.transform_size(p.length) <= kLongest && p.channels >= isa_kernels().fft.lanes;
}

/// Calls f(make, lanes) where make() gives an engine for one thread; T is the tensors' type.
template <class T, class F>
void with_engine(const LongConvProblem& p, LongConvMethod method, F&& f) {
  const Taps taps(p);
  if (method == LongConvMethod::Direct || (method == LongConvMethod::Auto && prefers_direct(taps, p.length))) {
    f([&] { return Direct(taps, p.length); }, int64_t{1});
  } else if constexpr (std::is_same_v<T, double>) {
    const OracleFft fft(taps.transform_size(p.length));
    f([&] { return Transformed(fft, taps, p.length); }, fft.lanes());
  } else {
    const RealFft fft(taps.transform_size(p.length), !prefers_lanes(p, taps));
    f([&] { return Transformed(fft, taps, p.length); }, fft.lanes());
  }
}

template <class T>
struct Pointers {
  explicit Pointers(const LongConvTensors& t)
      : x(get(t.x)), weight(get(t.weight)), skip(get(t.skip)), gate_in(get(t.gate_in)), gate_out(get(t.gate_out)) {}
  static T* get(const Tensor& t) { return t.defined() ? t.data<T>() : nullptr; }
  T *x, *weight, *skip, *gate_in, *gate_out;
};

/// The channels that an engine works on, as rows of a tensor [batch, channels, length] and as lanes.
struct Lanes {
  int64_t first, count, lanes;  ///< channels, and the lanes of a row; lanes without a channel hold zeros

  /// Calls f(channel - first, index of its value t, index of the lane's) for all, in an order that keeps lines in the
  /// cache.
  template <class F>
  void for_each(const LongConvProblem& p, int64_t batch, F&& f) const {
    constexpr int64_t kBlock = 64;
    for (int64_t t0 = 0; t0 < p.length; t0 += kBlock) {
      for (int64_t lane = 0; lane < count; ++lane) {
        const int64_t row = (batch * p.channels + first + lane) * p.length;
        for (int64_t t = t0; t < std::min(p.length, t0 + kBlock); ++t) f(lane, row + t, t * lanes + lane);
      }
    }
  }
};

/// Calls f(engine, lanes) for all channels, on several threads.
template <class Make, class F>
void for_each_lanes(const LongConvProblem& p, int64_t lanes, Make&& make, F&& f) {
  const int64_t blocks = (p.channels + lanes - 1) / lanes;
  parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
    auto engine = make();
    for (int64_t block = begin; block < end; ++block) {
      f(engine, Lanes{block * lanes, std::min(lanes, p.channels - block * lanes), lanes});
    }
  });
}

/// values = a (b or 1), from rows to lanes; null b: 1.
template <class T>
void load(const LongConvProblem& p, const Lanes& at, int64_t batch, const T* a, const T* b, Row& values) {
  at.for_each(p, batch, [&](int64_t, int64_t i, int64_t to) {
    const double value = static_cast<double>(a[i]);
    values[static_cast<std::size_t>(to)] = b == nullptr ? value : value * static_cast<double>(b[i]);
  });
}

/// to = values (b or 1), from lanes to rows.
template <class T>
void store(const LongConvProblem& p, const Lanes& at, int64_t batch, const Row& values, const T* b, T* to) {
  at.for_each(p, batch, [&](int64_t, int64_t i, int64_t from) {
    const double value = values[static_cast<std::size_t>(from)];
    to[i] = static_cast<T>(b == nullptr ? value : value * static_cast<double>(b[i]));
  });
}

/// The taps that matter of each channel; weight null: zeros.
template <class T>
Row filters(const LongConvProblem& p, const Taps& taps, const Lanes& at, const T* weight) {
  Row filter(static_cast<std::size_t>(taps.count * at.lanes));
  for (int64_t lane = 0; weight != nullptr && lane < at.count; ++lane) {
    const T* from = weight + (at.first + lane) * p.kernel + taps.first;
    for (int64_t j = 0; j < taps.count; ++j) {
      filter[static_cast<std::size_t>(j * at.lanes + lane)] = static_cast<double>(from[j]);
    }
  }
  return filter;
}

/// The skip weight of each lane; skip null: zeros.
template <class T>
Row skips(const Lanes& at, const T* skip) {
  Row values(static_cast<std::size_t>(at.lanes));
  for (int64_t lane = 0; skip != nullptr && lane < at.count; ++lane) {
    values[static_cast<std::size_t>(lane)] = static_cast<double>(skip[at.first + lane]);
  }
  return values;
}

/// sums += skip values, lane by lane.
void add_skip(const Row& skip, const Row& values, Row& sums) {
  for (std::size_t i = 0; i < values.size(); i += skip.size()) {
    for (std::size_t lane = 0; lane < skip.size(); ++lane) sums[i + lane] += skip[lane] * values[i + lane];
  }
}

template <class T>
void forward(const LongConvProblem& p, LongConvMethod method, const Pointers<T>& in, T* y) {
  const Taps taps(p);
  with_engine<T>(p, method, [&](auto make, int64_t lanes) {
    for_each_lanes(p, lanes, make, [&](auto& engine, const Lanes& at) {
      Row u(static_cast<std::size_t>(p.length * at.lanes)), sums(u.size());
      const Row filter = filters(p, taps, at, in.weight), skip = skips(at, in.skip);
      engine.set_filter(filter.data());
      for (int64_t b = 0; b < p.batch; ++b) {
        load(p, at, b, in.x, in.gate_in, u);
        engine.set_input(u.data());
        engine.convolve(sums.data());
        if (in.skip != nullptr) add_skip(skip, u, sums);
        store(p, at, b, sums, in.gate_out, y);
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
  with_engine<T>(p, method, [&](auto make, int64_t lanes) {
    for_each_lanes(p, lanes, make, [&](auto& engine, const Lanes& at) {
      Row u(static_cast<std::size_t>(p.length * at.lanes)), v(u.size()), du(u.size());
      const Row filter = filters(p, taps, at, in.weight), skip = skips(at, in.skip);
      Row dw(filter.size()), dskip(skip.size());
      engine.set_filter(filter.data());
      for (int64_t b = 0; b < p.batch; ++b) {
        load(p, at, b, g, in.gate_out, v);
        if (in.x != nullptr) load(p, at, b, in.x, in.gate_in, u);
        const bool wants_du = out.x != nullptr || out.gate_in != nullptr;
        if (out.weight != nullptr || out.gate_out != nullptr) engine.set_input(u.data());
        if (out.weight != nullptr || wants_du) engine.set_upstream(v.data());
        if (out.weight != nullptr) engine.add_filter_gradient(dw.data());
        if (out.skip != nullptr) {
          for (std::size_t i = 0; i < u.size(); i += dskip.size()) {
            for (std::size_t lane = 0; lane < dskip.size(); ++lane) dskip[lane] += u[i + lane] * v[i + lane];
          }
        }
        if (out.gate_out != nullptr) {
          engine.convolve(du.data());
          add_skip(skip, u, du);
          store(p, at, b, du, g, out.gate_out);
        }
        if (!wants_du) continue;
        engine.correlate(du.data());
        add_skip(skip, v, du);
        if (out.x != nullptr) store(p, at, b, du, in.gate_in, out.x);
        if (out.gate_in != nullptr) store(p, at, b, du, in.x, out.gate_in);
      }
      if (out.weight != nullptr) engine.finish_filter_gradient(dw.data());
      for (int64_t lane = 0; lane < at.count; ++lane) {
        const int64_t h = at.first + lane;
        if (out.skip != nullptr) out.skip[h] = static_cast<T>(dskip[static_cast<std::size_t>(lane)]);
        if (out.weight == nullptr) continue;
        std::fill_n(out.weight + h * p.kernel, p.kernel, T(0));
        for (int64_t j = 0; j < taps.count; ++j) {
          out.weight[h * p.kernel + taps.first + j] = static_cast<T>(dw[static_cast<std::size_t>(j * at.lanes + lane)]);
        }
      }
    });
  });
}

}  // namespace

void long_conv_forward(const LongConvProblem& problem, LongConvMethod method, const LongConvTensors& operands,
                       WeightUse, const Tensor& y) {
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
