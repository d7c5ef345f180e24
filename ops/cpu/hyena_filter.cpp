#include <halo/core/parallel.h>
#include <halo/ops/hyena_filter_backend.h>

#include <cmath>

namespace halo::cpu {

void bias_sine_forward(const Tensor& x, const Tensor& bias, const Tensor& frequency, const Tensor& y) {
  dispatch_float("bias_sine", x.dtype(), [&]<class T>(std::type_identity<T>) {
    const int64_t columns = x.size(1);
    const T *in = x.data<T>(), *b = bias.data<T>(), *f = frequency.data<T>();
    T* out = y.data<T>();
    parallel_for(x.size(0), 64, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t c = 0; c < columns; ++c) {
          out[row * columns + c] = std::sin(f[c] * (in[row * columns + c] + b[c]));
        }
      }
    });
  });
}

void bias_sine_backward(const Tensor& g, const Tensor& x, const Tensor& bias, const Tensor& frequency,
                        const BiasSineGrads& grads) {
  dispatch_float("bias_sine_backward", x.dtype(), [&]<class T>(std::type_identity<T>) {
    const int64_t rows = x.size(0), columns = x.size(1);
    parallel_for(columns, 1, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const T b = bias.data<T>()[c], f = frequency.data<T>()[c];
        double bias_sum = 0, frequency_sum = 0;
        for (int64_t row = 0; row < rows; ++row) {
          const T sum = x.data<T>()[row * columns + c] + b;
          const T slope = g.data<T>()[row * columns + c] * std::cos(f * sum);
          grads.x.data<T>()[row * columns + c] = f * slope;
          bias_sum += static_cast<double>(f * slope);
          frequency_sum += static_cast<double>(sum * slope);
        }
        grads.bias.data<T>()[c] = static_cast<T>(bias_sum);
        grads.frequency.data<T>()[c] = static_cast<T>(frequency_sum);
      }
    });
  });
}

void decay_window(const DecayWindow& window, bool backward, const Tensor& x, const Tensor& y) {
  dispatch_float("decay_window", x.dtype(), [&]<class T>(std::type_identity<T>) {
    const int64_t length = window.time.numel(), channels = window.decay.numel();
    const T *time = window.time.data<T>(), *decay = window.decay.data<T>(), *in = x.data<T>();
    T* out = y.data<T>();
    parallel_for(channels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const T rate = std::abs(decay[c]);
        for (int64_t l = 0; l < length; ++l) {
          const T factor = std::exp(-(time[l] * rate)) + static_cast<T>(window.shift);
          const int64_t token = l * channels + c, filter = c * length + l;
          if (backward) {
            out[token] = in[filter] * factor;
          } else {
            out[filter] = in[token] * factor;
          }
        }
      }
    });
  });
}

}  // namespace halo::cpu
