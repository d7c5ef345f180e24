#include <halo/core/parallel.h>
#include <halo/ops/hyena_step_backend.h>

#include <vector>

namespace halo::cpu {
namespace {

/// The filtered projection `part` of channel d, and the window moved on.
template <class T>
T filtered(const HyenaStepProblem& p, const HyenaStepTensors& in, int64_t b, int64_t column) {
  const int64_t width = (p.order + 1) * p.channels;
  T* window = in.window.data<T>() + (b * width + column) * (p.kernel - 1);
  const T* weight = in.short_weight.data<T>() + column * p.kernel;
  const T now = in.projections.data<T>()[b * width + column] + in.projection_bias.data<T>()[column];
  T sum = in.short_bias.data<T>()[column] + weight[p.kernel - 1] * now;
  for (int64_t k = 0; k + 1 < p.kernel; ++k) {
    sum += weight[k] * window[k];
    window[k] = k + 2 < p.kernel ? window[k + 1] : now;
  }
  return sum;
}

template <class T>
void step(const HyenaStepProblem& p, const HyenaStepTensors& in, int64_t b, int64_t d, T* y) {
  const int64_t t = in.position.data<int64_t>()[0], begin = t - t % p.kBlock, taps = in.taps.size(-1);
  std::vector<T> x;
  for (int64_t part = 0; part <= p.order; ++part) x.push_back(filtered<T>(p, in, b, part * p.channels + d));
  T v = x.back();
  for (int64_t o = 0; o < p.convolutions(); ++o) {
    const int64_t channel = o * p.channels + d, row = (b * p.convolutions() * p.channels + channel) * p.capacity;
    T* u = in.inputs.data<T>() + row;
    u[t] = v * x[static_cast<std::size_t>(p.order - 1 - o)];
    const T* tap = in.taps.data<T>() + channel * taps;
    double sum = 0;
    for (int64_t s = begin; s <= t; ++s) sum += static_cast<double>(tap[t - s]) * static_cast<double>(u[s]);
    v = in.pending.data<T>()[row + t] + static_cast<T>(sum) + in.skip.data<T>()[channel] * u[t];
  }
  *y = v * x[0];
}

}  // namespace

void hyena_step(const HyenaStepProblem& p, const HyenaStepTensors& in, const Tensor& y) {
  dispatch_float("hyena_step", y.dtype(), [&]<class T>(std::type_identity<T>) {
    parallel_for(p.batch * p.channels, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) step<T>(p, in, i / p.channels, i % p.channels, y.data<T>() + i);
    });
  });
}

}  // namespace halo::cpu
