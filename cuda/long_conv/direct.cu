#include <halo/core/copy.h>

#include "../device/map.cuh"
#include "../reduce/fold_runs.cuh"
#include "../runtime/data.h"
#include "direct.h"

namespace halo::cuda {
namespace {

/// The operands of both passes; u = gate_in x, and upstream gradient h = gate_out g of the sum.
template <class T>
struct Operands {
  int64_t length, taps, center;
  Divide time, channels;
  const T *x, *weight, *skip, *gate_in, *gate_out, *g;

  Operands(const LongConvProblem& p, const LongConvTensors& t, const Tensor& up)
      : length(p.length),
        taps(p.kernel),
        center(p.center()),
        time(p.length, p.x_numel()),
        channels(p.channels, p.x_numel()),
        x(data_or_null<T>(t.x)),
        weight(data_or_null<T>(t.weight)),
        skip(data_or_null<T>(t.skip)),
        gate_in(data_or_null<T>(t.gate_in)),
        gate_out(data_or_null<T>(t.gate_out)),
        g(data_or_null<T>(up)) {}

  __device__ double u(int64_t i) const {
    const double value = static_cast<double>(x[i]);
    return gate_in == nullptr ? value : value * static_cast<double>(gate_in[i]);
  }
  __device__ double h(int64_t i) const {
    const double value = static_cast<double>(g[i]);
    return gate_out == nullptr ? value : value * static_cast<double>(gate_out[i]);
  }
  /// The convolution's sum at i, skip included.
  __device__ double sum(int64_t i) const {
    int64_t row = i;
    const int64_t t = time.split(row), first = i - t, channel = channels.split(row);
    const T* const w = weight + channel * taps;
    double sum = skip == nullptr ? 0 : static_cast<double>(skip[channel]) * u(i);
    const int64_t low = max(int64_t{0}, t + center - length + 1), high = min(taps - 1, t + center);
    for (int64_t k = low; k <= high; ++k) sum += static_cast<double>(w[k]) * u(first + t - k + center);
    return sum;
  }
  /// The gradient of u at i.
  __device__ double input_gradient(int64_t i) const {
    int64_t row = i;
    const int64_t t = time.split(row), first = i - t, channel = channels.split(row);
    const T* const w = weight + channel * taps;
    double sum = skip == nullptr ? 0 : static_cast<double>(skip[channel]) * h(i);
    const int64_t low = max(int64_t{0}, center - t), high = min(taps - 1, length - 1 - t + center);
    for (int64_t k = low; k <= high; ++k) sum += static_cast<double>(w[k]) * h(first + t + k - center);
    return sum;
  }
};

template <class T>
struct Forward {
  Operands<T> p;
  __device__ T operator()(int64_t i) const {
    const double sum = p.sum(i);
    return static_cast<T>(p.gate_out == nullptr ? sum : sum * static_cast<double>(p.gate_out[i]));
  }
};
template <class T>
struct OutputGateGradient {
  Operands<T> p;
  __device__ T operator()(int64_t i) const { return static_cast<T>(p.sum(i) * static_cast<double>(p.g[i])); }
};
/// The gradient of x (factor gate_in) or of gate_in (factor x).
template <class T>
struct InputGradient {
  Operands<T> p;
  const T* factor;
  __device__ T operator()(int64_t i) const {
    const double gradient = p.input_gradient(i);
    return static_cast<T>(factor == nullptr ? gradient : gradient * static_cast<double>(factor[i]));
  }
};

/// dw[h, k] = sum of h[b, t] u[b, t - k + center] over b and t; taps that reach no input add zeros. Output o is tap
/// o % taps of a channel. The skip weight is a filter of one tap with center 0.
template <class T>
struct WeightGradient {
  struct Acc {
    double sum;
    int64_t back;  ///< from the position of h to that of u
  };
  const T* x;  ///< the upstream gradient
  Operands<T> p;
  int64_t taps, center;
  T* out;
  __device__ Acc start(int64_t o, int64_t) const { return {0, center - o % taps}; }
  __device__ void add(Acc& acc, int64_t at, T) const {
    int64_t row = at;
    const int64_t from = p.time.split(row) + acc.back;
    if (from >= 0 && from < p.length) acc.sum += p.h(at) * p.u(at + acc.back);
  }
  __device__ Acc operator()(const Acc& a, const Acc& b) const { return {a.sum + b.sum, a.back}; }
  __device__ void write(int64_t o, const Acc& acc) const { out[o] = static_cast<T>(acc.sum); }
};

}  // namespace

void direct_long_conv(const LongConvProblem& problem, const LongConvTensors& operands, const Tensor& y) {
  dispatch_float("long_conv", y.dtype(), [&]<class T>(std::type_identity<T>) {
    generate<true>("long_conv direct", Forward<T>{Operands<T>(problem, operands, {})}, Elements<T>{y});
  });
}

void direct_long_conv_backward(const LongConvProblem& problem, const LongConvTensors& operands, const Tensor& g,
                               const LongConvTensors& grads) {
  constexpr const char* kName = "long_conv direct backward";
  dispatch_float("long_conv", g.dtype(), [&]<class T>(std::type_identity<T>) {
    const Operands<T> p(problem, operands, g);
    if (grads.x.defined()) generate<true>(kName, InputGradient<T>{p, p.gate_in}, Elements<T>{grads.x});
    if (grads.gate_in.defined()) generate<true>(kName, InputGradient<T>{p, p.x}, Elements<T>{grads.gate_in});
    if (grads.gate_out.defined()) generate<true>(kName, OutputGateGradient<T>{p}, Elements<T>{grads.gate_out});
    const int64_t batch = problem.batch, channels = problem.channels, length = problem.length;
    // A tap's sum: (channel, tap) kept, (batch, time) folded.
    const auto fold_taps = [&](const Tensor& out, int64_t taps, int64_t center) {
      if (!out.defined() || out.numel() == 0) return;
      if (g.numel() == 0) return halo::fill(out, 0);
      fold_runs(kName, g.device(), {channels, taps, batch, length}, {length, 0, channels * length, 1}, 2,
                WeightGradient<T>{p.g, p, taps, center, out.data<T>()});
    };
    fold_taps(grads.weight, problem.kernel, problem.center());
    fold_taps(grads.skip, 1, 0);
  });
}

}  // namespace halo::cuda
