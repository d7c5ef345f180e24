// Convolution on the CPU. Groups with several channels go through matrix products over tiles of output positions (a
// tile of columns is gathered, never the whole batch); tiny groups and depthwise go tap by tap along rows.
#include <halo/core/error.h>
#include <halo/core/parallel.h>
#include <halo/ops/conv_backend.h>
#include <halo/ops/scalar_math.h>

#include <algorithm>
#include <vector>

#include "isa.h"

namespace halo::cpu {
namespace {

/// Positions in a tile: the gathered columns of a tile should stay in the L2 cache.
int64_t tile_positions(int64_t depth, std::size_t element) {
  constexpr int64_t kTileBytes = 256 * 1024;
  const int64_t fit = kTileBytes / std::max<int64_t>(1, depth * static_cast<int64_t>(element));
  return std::clamp<int64_t>(fit / 16 * 16, 16, 1024);
}

bool prefers_direct(const ConvProblem& p) { return p.in_channels_per_group() * p.out_channels_per_group() <= 8; }

/// Output coordinates o in [begin, end) for which o * stride + offset lies inside [0, extent).
struct Range {
  int64_t begin, end;
};
Range valid_range(int64_t outputs, int64_t stride, int64_t offset, int64_t extent) {
  const int64_t begin = offset >= 0 ? 0 : (-offset + stride - 1) / stride;
  const int64_t last = extent - 1 - offset;  // largest allowed o * stride
  const int64_t end = last < 0 ? 0 : last / stride + 1;
  return {std::min(begin, outputs), std::clamp(end, std::min(begin, outputs), outputs)};
}

/// Calls f(row, tap_offset) for runs of output positions along the width: what both im2col and the direct loops walk.
/// Position `first` .. `first + count` of the flattened output is cut at row ends.
template <class F>
void for_each_row(const ConvProblem& p, int64_t first, int64_t count, F&& f) {
  const int64_t width = p.output[2];
  for (int64_t at = first; at < first + count;) {
    const int64_t row = at / width, ow = at % width;
    const int64_t length = std::min(width - ow, first + count - at);
    f(row / p.output[1], row % p.output[1], ow, length, at - first);
    at += length;
  }
}

/// Where tap coordinate t of output coordinate o lands on an input axis.
int64_t input_at(const ConvProblem& p, std::size_t axis, int64_t o, int64_t t) {
  return o * p.stride[axis] - p.padding_before[axis] + t * p.dilation[axis];
}

/// One row of the gathered matrix: for channel plane `x` and tap (kd, kh, kw), the inputs under `count` positions.
template <class T>
void gather_tap(const ConvProblem& p, const T* x, int64_t kd, int64_t kh, int64_t kw, int64_t first, int64_t count,
                T* columns) {
  for_each_row(p, first, count, [&](int64_t od, int64_t oh, int64_t ow, int64_t length, int64_t at) {
    T* out = columns + at;
    const int64_t id = input_at(p, 0, od, kd), ih = input_at(p, 1, oh, kh), iw = input_at(p, 2, ow, kw);
    if (id < 0 || id >= p.input[0] || ih < 0 || ih >= p.input[1]) {
      std::fill_n(out, length, T(0));
      return;
    }
    const T* in = x + (id * p.input[1] + ih) * p.input[2];
    const Range valid = valid_range(length, p.stride[2], iw, p.input[2]);
    std::fill_n(out, valid.begin, T(0));
    if (p.stride[2] == 1) {
      std::copy_n(in + iw + valid.begin, valid.end - valid.begin, out + valid.begin);
    } else {
      for (int64_t i = valid.begin; i < valid.end; ++i) out[i] = in[iw + i * p.stride[2]];
    }
    std::fill(out + valid.end, out + length, T(0));
  });
}

/// The adjoint of gather_tap: adds a row of columns back onto the plane.
template <class T>
void scatter_tap(const ConvProblem& p, const T* columns, int64_t kd, int64_t kh, int64_t kw, int64_t first,
                 int64_t count, T* x) {
  for_each_row(p, first, count, [&](int64_t od, int64_t oh, int64_t ow, int64_t length, int64_t at) {
    const T* in = columns + at;
    const int64_t id = input_at(p, 0, od, kd), ih = input_at(p, 1, oh, kh), iw = input_at(p, 2, ow, kw);
    if (id < 0 || id >= p.input[0] || ih < 0 || ih >= p.input[1]) return;
    T* out = x + (id * p.input[1] + ih) * p.input[2];
    const Range valid = valid_range(length, p.stride[2], iw, p.input[2]);
    if (p.stride[2] == 1) {
      for (int64_t i = valid.begin; i < valid.end; ++i) out[iw + i] += in[i];
    } else {
      for (int64_t i = valid.begin; i < valid.end; ++i) out[iw + i * p.stride[2]] += in[i];
    }
  });
}

template <class F>
void for_each_tap(const ConvProblem& p, F&& f) {
  int64_t index = 0;
  for (int64_t kd = 0; kd < p.kernel[0]; ++kd) {
    for (int64_t kh = 0; kh < p.kernel[1]; ++kh) {
      for (int64_t kw = 0; kw < p.kernel[2]; ++kw) f(kd, kh, kw, index++);
    }
  }
}

/// Columns [channels * taps, count] of `channels` planes from `x` on.
template <class T>
void gather(const ConvProblem& p, const T* x, int64_t channels, int64_t first, int64_t count, T* columns) {
  for (int64_t c = 0; c < channels; ++c) {
    for_each_tap(p, [&](int64_t kd, int64_t kh, int64_t kw, int64_t tap) {
      gather_tap(p, x + c * p.input_positions(), kd, kh, kw, first, count, columns + (c * p.taps() + tap) * count);
    });
  }
}

/// Offsets of the parts of a dense operand.
struct Layout {
  explicit Layout(const ConvProblem& p)
      : cg(p.in_channels_per_group()),
        kg(p.out_channels_per_group()),
        in(p.input_positions()),
        out(p.output_positions()),
        depth(cg * p.taps()) {}
  int64_t cg, kg, in, out, depth;
};

template <class T>
void finish_row(T* row, int64_t count, T bias, const Activation& activation) {
  for (int64_t i = 0; i < count; ++i) row[i] = math::activate(activation, row[i] + bias);
}

template <class T>
void forward(const ConvProblem& p, const T* x, const T* w, const T* bias, const Activation& activation, T* y) {
  const Layout l(p);
  const bool direct = prefers_direct(p);
  const int64_t tile = direct ? l.out : tile_positions(l.depth, sizeof(T));
  const int64_t tiles = l.out == 0 ? 0 : (l.out + tile - 1) / tile;
  parallel_for(p.batch * p.groups * tiles, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> columns(static_cast<std::size_t>(direct ? l.out : l.depth * tile));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = (task % tiles) * tile, group = task / tiles % p.groups, n = task / tiles / p.groups;
      const int64_t count = std::min(tile, l.out - first);
      const T* planes = x + (n * p.in_channels + group * l.cg) * l.in;
      const T* weights = w + group * l.kg * l.depth;
      T* out = y + (n * p.out_channels + group * l.kg) * l.out + first;
      if (direct) {
        std::fill_n(out, l.kg * l.out, T(0));
        for (int64_t c = 0; c < l.cg; ++c) {
          for_each_tap(p, [&](int64_t kd, int64_t kh, int64_t kw, int64_t tap) {
            gather_tap(p, planes + c * l.in, kd, kh, kw, 0, l.out, columns.data());
            for (int64_t k = 0; k < l.kg; ++k) {
              const T weight = weights[k * l.depth + c * p.taps() + tap];
              for (int64_t i = 0; i < l.out; ++i) out[k * l.out + i] += weight * columns[static_cast<std::size_t>(i)];
            }
          });
        }
      } else {
        gather(p, planes, l.cg, first, count, columns.data());
        gemm<T>(false, false, l.kg, count, l.depth, T(1), weights, l.depth, columns.data(), count, T(0), out, l.out);
      }
      for (int64_t k = 0; k < l.kg; ++k) {
        finish_row(out + k * l.out, count, bias != nullptr ? bias[group * l.kg + k] : T(0), activation);
      }
    }
  });
}

template <class T>
void backward_input(const ConvProblem& p, const T* g, const T* w, const T* bias, T* x) {
  const Layout l(p);
  const bool direct = prefers_direct(p);
  // Tiles of one plane overlap, so that a task owns whole planes: a block of the group's input channels.
  const int64_t block = direct ? l.cg : std::max<int64_t>(1, (l.cg + 3) / 4);
  const int64_t blocks = l.cg == 0 ? 0 : (l.cg + block - 1) / block;
  const int64_t tile = direct ? l.out : tile_positions(block * p.taps(), sizeof(T));
  parallel_for(p.batch * p.groups * blocks, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> columns(static_cast<std::size_t>(direct ? l.out : block * p.taps() * std::min(tile, l.out)));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t c0 = (task % blocks) * block, group = task / blocks % p.groups, n = task / blocks / p.groups;
      const int64_t channels = std::min(block, l.cg - c0);
      const T* upstream = g + (n * p.out_channels + group * l.kg) * l.out;
      const T* weights = w + group * l.kg * l.depth + c0 * p.taps();
      T* planes = x + (n * p.in_channels + group * l.cg + c0) * l.in;
      for (int64_t c = 0; c < channels; ++c) {
        std::fill_n(planes + c * l.in, l.in, bias != nullptr ? bias[group * l.cg + c0 + c] : T(0));
      }
      for (int64_t first = 0; first < l.out; first += tile) {
        const int64_t count = std::min(tile, l.out - first);
        if (!direct) {
          gemm<T>(true, false, channels * p.taps(), count, l.kg, T(1), weights, l.depth, upstream + first, l.out, T(0),
                  columns.data(), count);
        }
        for (int64_t c = 0; c < channels; ++c) {
          for_each_tap(p, [&](int64_t kd, int64_t kh, int64_t kw, int64_t tap) {
            const T* row = columns.data() + (c * p.taps() + tap) * count;
            if (direct) {
              std::fill(columns.begin(), columns.end(), T(0));
              for (int64_t k = 0; k < l.kg; ++k) {
                const T weight = weights[k * l.depth + c * p.taps() + tap];
                for (int64_t i = 0; i < l.out; ++i)
                  columns[static_cast<std::size_t>(i)] += weight * upstream[k * l.out + i];
              }
              row = columns.data();
            }
            scatter_tap(p, row, kd, kh, kw, first, count, planes + c * l.in);
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
  const Layout l(p);
  const int64_t tile = tile_positions(l.depth, sizeof(T));
  const int64_t tiles = l.out == 0 ? 0 : (l.out + tile - 1) / tile;
  const int64_t steps = p.batch * tiles, size = l.kg * l.depth;
  const int64_t parts = std::clamp<int64_t>(p.groups >= 8 ? 1 : 8, 1, std::max<int64_t>(1, steps));
  const int64_t per_part = (steps + parts - 1) / parts;
  std::vector<double> sums(static_cast<std::size_t>(parts * p.groups * size), 0.0);
  parallel_for(parts * p.groups, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> columns(static_cast<std::size_t>(l.depth * std::min(tile, l.out))),
        product(static_cast<std::size_t>(size));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t group = task % p.groups, part = task / p.groups;
      double* sum = sums.data() + task * size;
      for (int64_t step = part * per_part; step < std::min(steps, (part + 1) * per_part); ++step) {
        const int64_t n = step / tiles, first = step % tiles * tile, count = std::min(tile, l.out - first);
        gather(p, x + (n * p.in_channels + group * l.cg) * l.in, l.cg, first, count, columns.data());
        gemm<T>(false, true, l.kg, l.depth, count, T(1), g + (n * p.out_channels + group * l.kg) * l.out + first, l.out,
                columns.data(), count, T(0), product.data(), l.depth);
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
  dispatch_float("conv_forward", x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    forward<T>(problem, x.data<T>(), w.data<T>(), data_or_null<T>(bias), activation, y.data<T>());
  });
}

void conv_backward_input(const ConvProblem& problem, const Tensor& g, const Tensor& w, const Tensor& bias,
                         const Tensor& x) {
  dispatch_float("conv_backward_input", g.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    backward_input<T>(problem, g.data<T>(), w.data<T>(), data_or_null<T>(bias), x.data<T>());
  });
}

void conv_backward_weight(const ConvProblem& problem, const Tensor& x, const Tensor& g, const Tensor& w) {
  dispatch_float("conv_backward_weight", x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    backward_weight<T>(problem, x.data<T>(), g.data<T>(), w.data<T>());
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
