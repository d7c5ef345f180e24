// Convolution on the CPU as matrix products over tiles of output positions: a tile of columns is gathered, never the
// whole batch. Tiles run across images, so that small planes still make large products. Tiny groups take
// conv_direct.cpp.
#include <halo/core/denormals.h>
#include <halo/core/parallel.h>
#include <halo/ops/conv_backend.h>
#include <halo/ops/scalar_math.h>

#include <vector>

#include "conv_direct.h"
#include "conv_gather.h"
#include "conv_tiles.h"
#include "gemm.h"

namespace halo::cpu {
namespace {

/// Positions in a tile: its gathered columns should stay in the L2 cache.
int64_t tile_positions(int64_t depth, std::size_t element) {
  constexpr int64_t kTileBytes = 512 * 1024;
  const int64_t fit = kTileBytes / std::max<int64_t>(1, depth * static_cast<int64_t>(element));
  return std::clamp<int64_t>(fit / 16 * 16, 48, 1024);
}

/// Columns [channels * taps, count] of the planes from `planes` on.
template <class T>
void gather(const ConvProblem& p, const T* planes, int64_t channels, int64_t first, int64_t count, T* columns) {
  const ConvSizes s(p);
  for (int64_t c = 0; c < channels; ++c) {
    for_each_tap(p, [&](const Tap& tap) {
      gather_tap(p, planes + c * s.in, p.in_channels * s.in, tap, first, count,
                 columns + (c * s.taps + tap.index) * count);
    });
  }
}

template <class T>
void forward(const ConvProblem& p, const T* x, const T* w, const T* bias, const Activation& activation, T* y) {
  const ConvSizes s(p);
  const int64_t positions = p.batch * s.out, tile = tile_positions(s.depth, sizeof(T));
  const int64_t tiles = (positions + tile - 1) / tile;
  parallel_for(p.groups * tiles, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> columns(static_cast<std::size_t>(s.depth * tile)), product(static_cast<std::size_t>(s.kg * tile));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t group = task / tiles, first = task % tiles * tile, count = std::min(tile, positions - first);
      gather(p, x + group * s.cg * s.in, s.cg, first, count, columns.data());
      gemm<T>(s.kg, count, s.depth, {w + group * s.kg * s.depth, s.depth, 1}, {columns.data(), count, 1},
              {product.data(), count, 1});
      for (int64_t at = first; at < first + count;) {
        const int64_t image = at / s.out, position = at % s.out,
                      length = std::min(s.out - position, first + count - at);
        for (int64_t k = 0; k < s.kg; ++k) {
          const int64_t channel = group * s.kg + k;
          const T* from = product.data() + k * count + (at - first);
          T* to = y + (image * p.out_channels + channel) * s.out + position;
          const T shift = bias != nullptr ? bias[channel] : T(0);
          for (int64_t i = 0; i < length; ++i) to[i] = from[i] + shift;
          if (activation.kind == ActivationKind::None) continue;
          for (int64_t i = 0; i < length; ++i) to[i] = math::activate(activation, to[i]);
        }
        at += length;
      }
    }
  });
}

template <class T>
void backward_input(const ConvProblem& p, const T* g, const T* w, const T* bias, T* x) {
  const ConvSizes s(p);
  // Windows overlap, so that a task owns whole planes: some images, and a block of the group's input channels.
  constexpr int64_t kEnoughPositions = 256;
  const int64_t images =
      std::clamp<int64_t>(kEnoughPositions / std::max<int64_t>(1, s.out), 1, std::max<int64_t>(1, p.batch / 4));
  const int64_t block = std::max<int64_t>(1, p.batch / images >= 8 ? s.cg : (s.cg + 3) / 4);
  const int64_t blocks = (s.cg + block - 1) / block, batches = (p.batch + images - 1) / images;
  const int64_t tile = tile_positions(block * s.taps, sizeof(T));
  parallel_for(batches * p.groups * blocks, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> columns(static_cast<std::size_t>(block * s.taps * tile)),
        upstream(static_cast<std::size_t>(s.kg * tile));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t c0 = task % blocks * block, group = task / blocks % p.groups,
                    n0 = task / blocks / p.groups * images;
      const int64_t channels = std::min(block, s.cg - c0), n1 = std::min(p.batch, n0 + images);
      T* const planes = x + (group * s.cg + c0) * s.in;
      for (int64_t n = n0; n < n1; ++n) {
        for (int64_t c = 0; c < channels; ++c) {
          std::fill_n(planes + n * p.in_channels * s.in + c * s.in, s.in,
                      bias != nullptr ? bias[group * s.cg + c0 + c] : T(0));
        }
      }
      for (int64_t first = n0 * s.out; first < n1 * s.out; first += tile) {
        const int64_t count = std::min(tile, n1 * s.out - first);
        gather_positions(g + group * s.kg * s.out, s.kg, s.out, p.out_channels * s.out, first, count, upstream.data());
        gemm<T>(channels * s.taps, count, s.kg, {w + group * s.kg * s.depth + c0 * s.taps, 1, s.depth},
                {upstream.data(), count, 1}, {columns.data(), count, 1});
        for (int64_t c = 0; c < channels; ++c) {
          for_each_tap(p, [&](const Tap& tap) {
            scatter_tap(p, columns.data() + (c * s.taps + tap.index) * count, tap, first, count, planes + c * s.in,
                        p.in_channels * s.in);
          });
        }
      }
    }
  });
}

/// Tile sums in T, sums over tiles in float64: the error does not grow with the number of positions. The positions are
/// split into parts that do not depend on the number of threads, and added up in order.
template <class T>
void backward_weight(const ConvProblem& p, const T* x, const T* g, T* w) {
  const ConvSizes s(p);
  const int64_t positions = p.batch * s.out, tile = tile_positions(s.depth, sizeof(T));
  const int64_t tiles = (positions + tile - 1) / tile, size = s.kg * s.depth;
  const int64_t parts = p.groups >= 8 ? 1 : std::clamp<int64_t>(tiles, 1, 8);
  const int64_t per_part = (tiles + parts - 1) / parts;
  std::vector<double> sums(static_cast<std::size_t>(parts * p.groups * size), 0.0);
  parallel_for(parts * p.groups, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> columns(static_cast<std::size_t>(s.depth * tile)), upstream(static_cast<std::size_t>(s.kg * tile));
    std::vector<T> product(static_cast<std::size_t>(size));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t group = task % p.groups, part = task / p.groups;
      double* const sum = sums.data() + task * size;
      for (int64_t t = part * per_part; t < std::min(tiles, (part + 1) * per_part); ++t) {
        const int64_t first = t * tile, count = std::min(tile, positions - first);
        gather(p, x + group * s.cg * s.in, s.cg, first, count, columns.data());
        gather_positions(g + group * s.kg * s.out, s.kg, s.out, p.out_channels * s.out, first, count, upstream.data());
        gemm<T>(s.kg, s.depth, count, {upstream.data(), count, 1}, {columns.data(), 1, count},
                {product.data(), s.depth, 1});
        for (int64_t i = 0; i < size; ++i) sum[i] += static_cast<double>(product[static_cast<std::size_t>(i)]);
      }
    }
  });
  for (int64_t i = 0; i < p.groups * size; ++i) {
    double total = 0;
    for (int64_t part = 0; part < parts; ++part) total += sums[static_cast<std::size_t>(part * p.groups * size + i)];
    w[i] = static_cast<T>(total);
  }
}

template <class T>
const T* data_or_null(const Tensor& t) {
  return t.defined() ? t.data<T>() : nullptr;
}

}  // namespace

void conv_forward(const ConvProblem& problem, const Tensor& x, const Tensor& w, const Tensor& bias,
                  const Activation& activation, const Tensor& y) {
  const DenormalGuard denormals(flush_denormals());
  dispatch_float("conv_forward", x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const bool tiles = fills_tiles<T>(problem.out_channels_per_group());
    const auto run = prefers_direct(problem) ? direct_forward<T> : tiles ? tile_forward<T> : forward<T>;
    run(problem, x.data<T>(), w.data<T>(), data_or_null<T>(bias), activation, y.data<T>());
  });
}

void conv_backward_input(const ConvProblem& problem, const Tensor& g, const Tensor& w, const Tensor& bias,
                         const Tensor& x) {
  const DenormalGuard denormals(flush_denormals());
  dispatch_float("conv_backward_input", g.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const bool tiles = fills_tiles<T>(problem.in_channels_per_group());
    const auto run = prefers_direct(problem) ? direct_backward_input<T>
                     : tiles                 ? tile_backward_input<T>
                                             : backward_input<T>;
    run(problem, g.data<T>(), w.data<T>(), data_or_null<T>(bias), x.data<T>());
  });
}

void conv_backward_weight(const ConvProblem& problem, const Tensor& x, const Tensor& g, const Tensor& w) {
  const DenormalGuard denormals(flush_denormals());
  dispatch_float("conv_backward_weight", x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const bool tiles = fills_tiles<T>(problem.out_channels_per_group());
    const auto run = prefers_direct(problem) ? direct_backward_weight<T>
                     : tiles                 ? tile_backward_weight<T>
                                             : backward_weight<T>;
    run(problem, x.data<T>(), g.data<T>(), w.data<T>());
  });
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
