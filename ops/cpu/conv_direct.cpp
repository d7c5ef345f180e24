#include "conv_direct.h"

#include <halo/core/parallel.h>
#include <halo/ops/scalar_math.h>

#include <vector>

#include "conv_gather.h"

namespace halo::cpu {
namespace {

/// Calls f(run, tap, reach) for every row of one output plane and every tap that touches the input.
template <class F>
void for_each_reach(const ConvProblem& p, F&& f) {
  for_each_run(p, 0, p.output_positions(), [&](const Run& run) {
    for_each_tap(p, [&](const Tap& tap) {
      const Reach r = reach(p, run, tap);
      if (r.row >= 0) f(run, tap, r);
    });
  });
}

}  // namespace

template <class T>
void direct_forward(const ConvProblem& p, const T* x, const T* w, const T* bias, const Activation& activation, T* y) {
  const ConvSizes s(p);
  parallel_for(p.batch * p.out_channels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      const int64_t k = plane % p.out_channels, n = plane / p.out_channels;
      T* out = y + plane * s.out;
      std::fill_n(out, s.out, bias != nullptr ? bias[k] : T(0));
      for (int64_t c = 0; c < s.cg; ++c) {
        const T* in = x + (n * p.in_channels + k / s.kg * s.cg + c) * s.in;
        const T* weights = w + (k * s.cg + c) * s.taps;
        for_each_reach(p, [&](const Run& run, const Tap& tap, const Reach& r) {
          const T weight = weights[tap.index];
          T* to = out + run.at;
          const T* from = in + r.row + r.first;
          if (p.stride[2] == 1) {
            for (int64_t i = r.valid.begin; i < r.valid.end; ++i) to[i] += weight * from[i];
          } else {
            for (int64_t i = r.valid.begin; i < r.valid.end; ++i) to[i] += weight * from[i * p.stride[2]];
          }
        });
      }
      if (activation.kind == ActivationKind::None) continue;
      for (int64_t i = 0; i < s.out; ++i) out[i] = math::activate(activation, out[i]);
    }
  });
}

template <class T>
void direct_backward_input(const ConvProblem& p, const T* g, const T* w, const T* bias, T* x) {
  const ConvSizes s(p);
  parallel_for(p.batch * p.in_channels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      const int64_t channel = plane % p.in_channels, n = plane / p.in_channels;
      const int64_t group = channel / s.cg, c = channel % s.cg;
      T* out = x + plane * s.in;
      std::fill_n(out, s.in, bias != nullptr ? bias[channel] : T(0));
      for (int64_t k = group * s.kg; k < (group + 1) * s.kg; ++k) {
        const T* in = g + (n * p.out_channels + k) * s.out;
        const T* weights = w + (k * s.cg + c) * s.taps;
        for_each_reach(p, [&](const Run& run, const Tap& tap, const Reach& r) {
          const T weight = weights[tap.index];
          T* to = out + r.row + r.first;
          const T* from = in + run.at;
          if (p.stride[2] == 1) {
            for (int64_t i = r.valid.begin; i < r.valid.end; ++i) to[i] += weight * from[i];
          } else {
            for (int64_t i = r.valid.begin; i < r.valid.end; ++i) to[i * p.stride[2]] += weight * from[i];
          }
        });
      }
    }
  });
}

/// Sums along a row in T (eight at a time, in a fixed order), over rows and images in float64.
template <class T>
void direct_backward_weight(const ConvProblem& p, const T* x, const T* g, T* w) {
  const ConvSizes s(p);
  parallel_for(p.out_channels * s.cg, 1, [&](int64_t begin, int64_t end) {
    std::vector<double> sums(static_cast<std::size_t>(s.taps));
    for (int64_t pair = begin; pair < end; ++pair) {
      const int64_t k = pair / s.cg, c = pair % s.cg;
      std::fill(sums.begin(), sums.end(), 0.0);
      for (int64_t n = 0; n < p.batch; ++n) {
        const T* in = x + (n * p.in_channels + k / s.kg * s.cg + c) * s.in;
        const T* upstream = g + (n * p.out_channels + k) * s.out;
        for_each_reach(p, [&](const Run& run, const Tap& tap, const Reach& r) {
          constexpr int64_t kLanes = 8;
          T lanes[kLanes] = {};
          const T* a = upstream + run.at;
          const T* b = in + r.row + r.first;
          int64_t i = r.valid.begin;
          for (; i + kLanes <= r.valid.end; i += kLanes) {
            for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[(i + lane) * p.stride[2]];
          }
          for (; i < r.valid.end; ++i) lanes[0] += a[i] * b[i * p.stride[2]];
          double sum = 0;
          for (T lane : lanes) sum += static_cast<double>(lane);
          sums[static_cast<std::size_t>(tap.index)] += sum;
        });
      }
      for (int64_t t = 0; t < s.taps; ++t) w[pair * s.taps + t] = static_cast<T>(sums[static_cast<std::size_t>(t)]);
    }
  });
}

template void direct_forward(const ConvProblem&, const float*, const float*, const float*, const Activation&, float*);
template void direct_forward(const ConvProblem&, const double*, const double*, const double*, const Activation&,
                             double*);
template void direct_backward_input(const ConvProblem&, const float*, const float*, const float*, float*);
template void direct_backward_input(const ConvProblem&, const double*, const double*, const double*, double*);
template void direct_backward_weight(const ConvProblem&, const float*, const float*, float*);
template void direct_backward_weight(const ConvProblem&, const double*, const double*, double*);

}  // namespace halo::cpu
