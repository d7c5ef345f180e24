#include <halo/core/parallel.h>
#include <halo/ops/hyena_filter_backend.h>

#include <cmath>

namespace halo::cpu {

void bias_sine_forward(const Tensor& x, const Tensor& bias, const Tensor& frequency, const Tensor& y) {
  dispatch_float("bias_sine", x.dtype(), [&]<class T>(std::type_identity<T>) {
    const int64_t length = x.size(-1);
    parallel_for(bias.numel(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const T b = bias.data<T>()[c], f = frequency.data<T>()[c];
        const T* const in = x.data<T>() + c * length;
        T* const out = y.data<T>() + c * length;
        for (int64_t l = 0; l < length; ++l) out[l] = std::sin(f * (in[l] + b));
      }
    });
  });
}

void bias_sine_backward(const Tensor& g, const Tensor& x, const Tensor& bias, const Tensor& frequency,
                        const BiasSineGrads& grads) {
  dispatch_float("bias_sine_backward", x.dtype(), [&]<class T>(std::type_identity<T>) {
    const int64_t length = x.size(-1);
    parallel_for(bias.numel(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const T b = bias.data<T>()[c], f = frequency.data<T>()[c];
        const T *const in = x.data<T>() + c * length, *const up = g.data<T>() + c * length;
        T* const out = grads.x.data<T>() + c * length;
        double bias_sum = 0, frequency_sum = 0;
        for (int64_t l = 0; l < length; ++l) {
          const T sum = in[l] + b, slope = up[l] * std::cos(f * sum);
          out[l] = f * slope;
          bias_sum += static_cast<double>(out[l]);
          frequency_sum += static_cast<double>(sum * slope);
        }
        grads.bias.data<T>()[c] = static_cast<T>(bias_sum);
        grads.frequency.data<T>()[c] = static_cast<T>(frequency_sum);
      }
    });
  });
}

void decay_window(const DecayWindow& window, const Tensor& x, const Tensor& y) {
  dispatch_float("decay_window", x.dtype(), [&]<class T>(std::type_identity<T>) {
    const int64_t length = window.time.numel();
    const T* const time = window.time.data<T>();
    parallel_for(window.decay.numel(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const T rate = std::abs(window.decay.data<T>()[c]);
        const T* const in = x.data<T>() + c * length;
        T* const out = y.data<T>() + c * length;
        for (int64_t l = 0; l < length; ++l) {
          out[l] = in[l] * (std::exp(-(time[l] * rate)) + static_cast<T>(window.shift));
        }
      }
    });
  });
}

}  // namespace halo::cpu
