// Causal depthwise convolution on the CPU: the state and the inputs of a row are laid end to end, and each tap is one
// pass along them.
#include <halo/core/denormals.h>
#include <halo/core/parallel.h>
#include <halo/ops/causal_conv1d_backend.h>
#include <halo/ops/scalar_math.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace halo::cpu {
namespace {

using Problem = CausalConv1dProblem;

template <class T>
T* data_or_null(const Tensor& t) {
  return t.defined() ? t.data<T>() : nullptr;
}

template <class T>
struct Operands {
  explicit Operands(const CausalConv1dTensors& t)
      : x(data_or_null<T>(t.x)),
        weight(data_or_null<T>(t.weight)),
        bias(data_or_null<T>(t.bias)),
        state(data_or_null<T>(t.state)) {}
  T *x, *weight, *bias, *state;
};

/// v: the state and the inputs of row (b, c).
template <class T>
void lay_out(const Problem& p, const Operands<T>& in, int64_t row, std::vector<T>& v) {
  const int64_t before = p.state_length();
  if (in.state != nullptr) {
    std::copy_n(in.state + row * before, before, v.begin());
  } else {
    std::fill_n(v.begin(), before, T(0));
  }
  std::copy_n(in.x + row * p.length, p.length, v.begin() + before);
}

/// The sums before the activation.
template <class T>
void convolve(const Problem& p, const Operands<T>& in, int64_t channel, const T* v, T* sums) {
  std::fill_n(sums, p.length, in.bias != nullptr ? in.bias[channel] : T(0));
  for (int64_t k = 0; k < p.kernel; ++k) {
    const T weight = in.weight[channel * p.kernel + k];
    const T* const from = v + k * p.dilation;
    for (int64_t t = 0; t < p.length; ++t) sums[t] += weight * from[t];
  }
}

template <class T>
T silu_slope(T x) {
  const T s = math::sigmoid(x);
  return s * (T(1) + x * (T(1) - s));
}

template <class T>
void forward(const Problem& p, const Operands<T>& in, T* y, T* final_state) {
  const int64_t grain = std::max<int64_t>(1, 4096 / std::max<int64_t>(1, p.length * p.kernel));
  parallel_for(p.batch * p.channels, grain, [&](int64_t begin, int64_t end) {
    std::vector<T> v(static_cast<std::size_t>(p.state_length() + p.length));
    for (int64_t row = begin; row < end; ++row) {
      lay_out(p, in, row, v);
      T* const out = y + row * p.length;
      convolve(p, in, row % p.channels, v.data(), out);
      for (int64_t t = 0; p.silu && t < p.length; ++t) out[t] = math::silu(out[t]);
      if (final_state != nullptr) {
        std::copy_n(v.begin() + p.length, p.state_length(), final_state + row * p.state_length());
      }
    }
  });
}

/// A thread owns channels, so that the gradients of weight and bias are summed over the batch in order.
template <class T>
void backward(const Problem& p, const Operands<T>& in, const T* g, const T* g_final, const Operands<T>& out) {
  const int64_t before = p.state_length();
  parallel_for(p.channels, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> v(static_cast<std::size_t>(before + p.length)), dv(v.size());
    std::vector<T> up(static_cast<std::size_t>(p.length));
    std::vector<double> dw(static_cast<std::size_t>(p.kernel));
    for (int64_t c = begin; c < end; ++c) {
      double dbias = 0;
      std::fill(dw.begin(), dw.end(), 0.0);
      for (int64_t b = 0; b < p.batch; ++b) {
        const int64_t row = b * p.channels + c;
        lay_out(p, in, row, v);
        if (p.silu) {
          convolve(p, in, c, v.data(), up.data());
          for (T& value : up) value = silu_slope(value);
        } else {
          std::fill(up.begin(), up.end(), T(1));
        }
        for (int64_t t = 0; t < p.length; ++t) {
          up[static_cast<std::size_t>(t)] *= g != nullptr ? g[row * p.length + t] : T(0);
        }
        std::fill(dv.begin(), dv.end(), T(0));
        if (g_final != nullptr) std::copy_n(g_final + row * before, before, dv.begin() + p.length);
        for (int64_t k = 0; k < p.kernel; ++k) {
          const T weight = in.weight[c * p.kernel + k];
          const T* const from = v.data() + k * p.dilation;
          T* const to = dv.data() + k * p.dilation;
          double sum = 0;
          for (int64_t t = 0; t < p.length; ++t) {
            const T value = up[static_cast<std::size_t>(t)];
            to[t] += weight * value;
            sum += static_cast<double>(value) * static_cast<double>(from[t]);
          }
          dw[static_cast<std::size_t>(k)] += sum;
        }
        for (T value : up) dbias += static_cast<double>(value);
        if (out.state != nullptr) std::copy_n(dv.begin(), before, out.state + row * before);
        if (out.x != nullptr) std::copy_n(dv.begin() + before, p.length, out.x + row * p.length);
      }
      if (out.bias != nullptr) out.bias[c] = static_cast<T>(dbias);
      for (int64_t k = 0; out.weight != nullptr && k < p.kernel; ++k) {
        out.weight[c * p.kernel + k] = static_cast<T>(dw[static_cast<std::size_t>(k)]);
      }
    }
  });
}

}  // namespace

void causal_conv1d_forward(const CausalConv1dProblem& problem, const CausalConv1dTensors& operands,
                           const CausalConv1dResult& result) {
  const DenormalGuard denormals(flush_denormals());
  dispatch_float("causal_conv1d", operands.x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    forward<T>(problem, Operands<T>(operands), result.y.data<T>(), data_or_null<T>(result.final_state));
  });
}

void causal_conv1d_backward(const CausalConv1dProblem& problem, const CausalConv1dTensors& operands,
                            const CausalConv1dResult& grads, const CausalConv1dTensors& into) {
  const DenormalGuard denormals(flush_denormals());
  dispatch_float("causal_conv1d", operands.x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    backward<T>(problem, Operands<T>(operands), data_or_null<T>(grads.y), data_or_null<T>(grads.final_state),
                Operands<T>(into));
  });
}

}  // namespace halo::cpu
