// Convolution on the CPU: float64 with Eigen (oracle.h), float32 in register tiles. What gives an activation is a
// correlation there (conv_correlation.h); the lanes of a vector run along channels where there are enough
// (conv_tiles.h), else along positions (conv_lines.h).
#include <halo/core/denormals.h>
#include <halo/core/parallel.h>
#include <halo/ops/conv_backend.h>

#include "conv_lines.h"
#include "conv_tiles.h"
#include "oracle.h"

namespace halo::cpu {
namespace {

const float* data_or_null(const Tensor& t) { return t.defined() ? t.data<float>() : nullptr; }

void correlate(const Correlation& q, const Tensor& source, const Tensor& w, const Tensor& bias,
               const Activation& activation, const Tensor& result) {
  const auto run = fills_tiles(q.results) ? correlate_tiles : correlate_lines;
  run(q, {source.data<float>(), w.data<float>(), data_or_null(bias), activation, result.data<float>()});
}

}  // namespace

void conv_forward(const ConvProblem& problem, const Tensor& x, const Tensor& w, const Tensor& bias,
                  const Activation& activation, WeightUse, const Tensor& y) {
  if (y.numel() == 0) return;
  const DenormalGuard denormals(flush_denormals());
  if (x.dtype() == float64) return oracle::conv_forward(problem, x, w, bias, activation, y);
  correlate(forward_correlation(problem), x, w, bias, activation, y);
}

void conv_backward_input(const ConvProblem& problem, const Tensor& g, const Tensor& w, const Tensor& bias, WeightUse,
                         const Tensor& x) {
  if (x.numel() == 0) return;
  const DenormalGuard denormals(flush_denormals());
  if (g.dtype() == float64) return oracle::conv_backward_input(problem, g, w, bias, x);
  for (const Correlation& q : backward_correlations(problem)) correlate(q, g, w, bias, Activation{}, x);
}

void conv_backward_weight(const ConvProblem& problem, const Tensor& x, const Tensor& g, const Tensor& w) {
  if (w.numel() == 0) return;
  const DenormalGuard denormals(flush_denormals());
  if (x.dtype() == float64) return oracle::conv_backward_weight(problem, x, g, w);
  const auto run = fills_tiles(problem.out_channels_per_group()) ? weight_gradient_tiles : weight_gradient_lines;
  run(problem, x.data<float>(), g.data<float>(), w.data<float>());
}

void sum_per_channel(const Tensor& g, const Tensor& sum) {
  dispatch_float("sum_per_channel", g.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const int64_t batch = g.size(0), channels = g.size(1);
    const int64_t positions = batch * channels == 0 ? 0 : g.numel() / (batch * channels);
    const T* in = g.data<T>();
    T* out = sum.data<T>();
    parallel_for(channels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        double total = 0;
        for (int64_t n = 0; n < batch; ++n) {
          const T* row = in + (n * channels + c) * positions;
          for (int64_t i = 0; i < positions; ++i) total += static_cast<double>(row[i]);
        }
        out[c] = static_cast<T>(total);
      }
    });
  });
}

}  // namespace halo::cpu
