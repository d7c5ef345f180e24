#include "conv_tiles.h"

#include <halo/core/parallel.h>
#include <halo/ops/scalar_math.h>

#include <vector>

#include "conv_gather.h"
#include "conv_planes.h"
#include "tiles.h"

namespace halo::cpu {
namespace {

using Extents = ConvProblem::Extents;

/// A correlation: result[m][o] = bias[m] + sum over channels c and taps t of w[m][c][t] source[c][...] (Window), which
/// stands at o * to_step + to_start of a plane of `to` extents.
struct Correlation {
  Window window;
  int64_t channels, results;            ///< a group
  std::vector<int64_t> tap_numbers;     ///< of window.taps among the weight's
  int64_t result_pitch, channel_pitch;  ///< of the weight
  Extents to, to_step, to_start;
};

/// The weights of one group as panels whose columns are results.
template <class T>
void pack_weights(const Correlation& q, const T* w, const Panels<T>& panels, int64_t first, T* panel) {
  const int64_t width = panels.width(first), taps = static_cast<int64_t>(q.tap_numbers.size());
  for (int64_t c = 0; c < q.channels; ++c) {
    for (int64_t t = 0; t < taps; ++t, panel += width) {
      const T* from = w + first * q.result_pitch + c * q.channel_pitch + q.tap_numbers[static_cast<std::size_t>(t)];
      const int64_t real = std::min(width, q.results - first);
      for (int64_t m = 0; m < real; ++m) panel[m] = from[m * q.result_pitch];
      std::fill(panel + real, panel + width, T(0));
    }
  }
}

/// Writes results [position][m] of a box, m in [0, count), to their planes. `plane` is the first one's in image 0.
template <class T>
void write_results(const Correlation& q, const Box& box, const T* results, int64_t pitch, int64_t count, const T* bias,
                   const Activation& activation, T* plane, int64_t image_pitch) {
  constexpr int64_t kBlock = 16;  // results of neighbouring m share lines
  const int64_t plane_size = q.to[0] * q.to[1] * q.to[2], step = q.to_step[2];
  for (int64_t line = 0; line < box.slices * box.rows; ++line) {
    const int64_t slice = box.slice + line / box.rows, row = box.row + line % box.rows;
    const int64_t d = slice % q.window.outputs[0] * q.to_step[0] + q.to_start[0];
    const int64_t h = row * q.to_step[1] + q.to_start[1], w = box.column * step + q.to_start[2];
    T* const first = plane + slice / q.window.outputs[0] * image_pitch + (d * q.to[1] + h) * q.to[2] + w;
    for (int64_t m0 = 0; m0 < count; m0 += kBlock) {
      for (int64_t m = m0; m < std::min(count, m0 + kBlock); ++m) {
        const T* from = results + line * box.columns * pitch + m;
        T* to = first + m * plane_size;
        const T shift = bias != nullptr ? bias[m] : T(0);
        for (int64_t i = 0; i < box.columns; ++i) to[i * step] = from[i * pitch] + shift;
        if (activation.kind == ActivationKind::None) continue;
        for (int64_t i = 0; i < box.columns; ++i) to[i * step] = math::activate(activation, to[i * step]);
      }
    }
  }
}

/// All images and groups. A task computes some results of a box: for a block of channels at a time, whose products with
/// a panel of weights stay in the first-level cache.
template <class T>
void correlate(const Correlation& q, int64_t batch, int64_t groups, const T* source, const T* w, int64_t group_weights,
               const T* bias, const Activation& activation, T* result) {
  constexpr int64_t kBlockDepth = 192, kResultElements = 64 * 1024, kPlaneElements = 96 * 1024, kEnoughTasks = 16;
  const int64_t taps = static_cast<int64_t>(q.tap_numbers.size()), depth = q.channels * taps;
  const int64_t source_size = q.window.source[0] * q.window.source[1] * q.window.source[2];
  const int64_t result_size = q.to[0] * q.to[1] * q.to[2];
  const Panels<T> panels(q.results);
  const int64_t block =
      std::clamp<int64_t>(kBlockDepth / std::max<int64_t>(1, taps), 1, std::max<int64_t>(1, q.channels));
  const int64_t inputs_a_position = block * q.window.step[1] * q.window.step[2];
  const Boxes boxes(
      q.window, batch,
      std::clamp<int64_t>(std::min(kResultElements / panels.padded, kPlaneElements / inputs_a_position), 96, 1024));
  const int64_t panel_count = panels.count();
  std::vector<T> packed(static_cast<std::size_t>(groups * depth * panels.padded));
  parallel_for(groups * panel_count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t group = i / panel_count, first = i % panel_count * panels.widest;
      pack_weights(q, w + group * group_weights, panels, first,
                   packed.data() + (group * panels.padded + first) * depth);
    }
  });
  // Few boxes: results are split among tasks too, in whole panels.
  const int64_t splits = std::clamp<int64_t>(kEnoughTasks / std::max<int64_t>(1, groups * boxes.count()), 1,
                                             std::max<int64_t>(1, panel_count / 2));
  const int64_t results_a_task = (panel_count + splits - 1) / splits * panels.widest;
  parallel_for(groups * boxes.count() * splits, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> memory,
        results(static_cast<std::size_t>(boxes.most_positions() * std::min(panels.padded, results_a_task)));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t split = task % splits, group = task / splits % groups;
      const int64_t m0 = split * results_a_task, m1 = std::min(panels.padded, m0 + results_a_task), pitch = m1 - m0;
      if (m0 >= m1) continue;
      const Box box = boxes[task / splits / groups];
      const Planes<T> planes(q.window, box);
      for (int64_t c0 = 0; c0 < q.channels; c0 += block) {
        const int64_t channels = std::min(block, q.channels - c0);
        planes.fill(source + (group * q.channels + c0) * source_size, groups * q.channels * source_size, channels,
                    memory);
        const std::vector<int64_t> positions = planes.positions(channels), products = planes.products(channels);
        panels.for_each(m0, m1, [&](int64_t first, int64_t width) {
          const T* panel = packed.data() + (group * panels.padded + first) * depth + c0 * taps * width;
          multiply_panel(box.positions(), channels * taps, memory.data(), positions.data(), products.data(), panel,
                         width, results.data() + (first - m0), pitch, c0 > 0);
        });
      }
      const int64_t channel = group * q.results + m0;
      write_results(q, box, results.data(), pitch, std::min(m1, q.results) - m0,
                    bias != nullptr ? bias + channel : nullptr, activation, result + channel * result_size,
                    groups * q.results * result_size);
    }
  });
}

/// The forward pass reads the input at o * stride - padding + tap * dilation.
Window forward_window(const ConvProblem& p) {
  Window window{.outputs = p.output, .source = p.input, .step = p.stride, .start = {}, .reach = {}, .taps = {}};
  for (std::size_t axis = 0; axis < 3; ++axis) {
    window.start[axis] = -p.padding_before[axis];
    window.reach[axis] = (p.kernel[axis] - 1) * p.dilation[axis];
  }
  for_each_tap(p, [&](const Tap& tap) {
    window.taps.push_back({tap.d * p.dilation[0], tap.h * p.dilation[1], tap.w * p.dilation[2]});
  });
  return window;
}

/// The inputs i with (i + padding) % stride == residue on every axis: i + padding = stride q + residue meets output
/// q - (tap * dilation - residue) / stride for the taps with that residue. Positions are these q.
Correlation backward_phase(const ConvProblem& p, const Extents& residue) {
  const ConvSizes s(p);
  Correlation q{.window = {.outputs = {}, .source = p.output, .step = {1, 1, 1}, .start = {}, .reach = {}, .taps = {}},
                .channels = s.kg,
                .results = s.cg,
                .tap_numbers = {},
                .result_pitch = s.taps,
                .channel_pitch = s.depth,
                .to = p.input,
                .to_step = p.stride,
                .to_start = {}};
  for (std::size_t axis = 0; axis < 3; ++axis) {
    const int64_t stride = p.stride[axis], offset = residue[axis] - p.padding_before[axis];
    const int64_t first = offset >= 0 ? 0 : (-offset + stride - 1) / stride;  // the smallest q with i >= 0
    const int64_t last = p.input[axis] - 1 - offset;
    q.window.outputs[axis] = last < 0 ? 0 : std::max<int64_t>(0, last / stride - first + 1);
    q.window.reach[axis] = (p.kernel[axis] - 1) * p.dilation[axis] / stride;
    q.window.start[axis] = first - q.window.reach[axis];
    q.to_start[axis] = first * stride + offset;
  }
  for_each_tap(p, [&](const Tap& tap) {
    const Extents at{tap.d * p.dilation[0], tap.h * p.dilation[1], tap.w * p.dilation[2]};
    Extents offset;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      if (at[axis] % p.stride[axis] != residue[axis]) return;
      offset[axis] = q.window.reach[axis] - at[axis] / p.stride[axis];
    }
    q.window.taps.push_back(offset);
    q.tap_numbers.push_back(tap.index);
  });
  return q;
}

/// A box of the upstream gradient as panels whose columns are output channels.
template <class T>
void pack_gradients(const ConvProblem& p, const T* g, const Box& box, const Panels<T>& panels, T* packed) {
  const ConvSizes s(p);
  panels.for_each(0, panels.padded, [&](int64_t first, int64_t width) {
    T* panel = packed + first * box.positions();
    for (int64_t line = 0; line < box.slices * box.rows; ++line, panel += box.columns * width) {
      const int64_t slice = box.slice + line / box.rows, row = box.row + line % box.rows;
      const T* from = g + (slice / p.output[0] * p.out_channels + first) * s.out +
                      (slice % p.output[0] * p.output[1] + row) * p.output[2] + box.column;
      pack_panel(from, 1, s.out, box.columns, std::min(width, s.kg - first), width, panel);
    }
  });
}

}  // namespace

template <class T>
void tile_forward(const ConvProblem& p, const T* x, const T* w, const T* bias, const Activation& activation, T* y) {
  const ConvSizes s(p);
  Correlation q{.window = forward_window(p),
                .channels = s.cg,
                .results = s.kg,
                .tap_numbers = {},
                .result_pitch = s.depth,
                .channel_pitch = s.taps,
                .to = p.output,
                .to_step = {1, 1, 1},
                .to_start = {}};
  for (int64_t tap = 0; tap < s.taps; ++tap) q.tap_numbers.push_back(tap);
  correlate(q, p.batch, p.groups, x, w, s.kg * s.depth, bias, activation, y);
}

template <class T>
void tile_backward_input(const ConvProblem& p, const T* g, const T* w, const T* bias, T* x) {
  const ConvSizes s(p);
  for (int64_t d = 0; d < p.stride[0]; ++d) {
    for (int64_t h = 0; h < p.stride[1]; ++h) {
      for (int64_t c = 0; c < p.stride[2]; ++c) {
        const Correlation q = backward_phase(p, {d, h, c});
        if (q.window.outputs[0] * q.window.outputs[1] * q.window.outputs[2] == 0) continue;
        correlate(q, p.batch, p.groups, g, w, s.kg * s.depth, bias, Activation{}, x);
      }
    }
  }
}

/// Sums over a box in T, over boxes in float64: the error does not grow with the number of positions. A task has some
/// input channels of a group and, where those are few, a part of the boxes; parts are added up in order.
template <class T>
void tile_backward_weight(const ConvProblem& p, const T* x, const T* g, T* w) {
  constexpr int64_t kBlockProducts = 288, kPlaneElements = 96 * 1024, kEnoughTasks = 8;
  const ConvSizes s(p);
  const Window window = forward_window(p);
  const Panels<T> panels(s.kg);
  const int64_t block = std::clamp<int64_t>(kBlockProducts / s.taps, 1, s.cg), blocks = (s.cg + block - 1) / block;
  const Boxes boxes(window, p.batch,
                    std::clamp<int64_t>(kPlaneElements / (block * p.stride[1] * p.stride[2]), 128, 512));
  const int64_t tasks = p.groups * blocks;
  const int64_t parts = std::clamp<int64_t>((kEnoughTasks + tasks - 1) / tasks, 1, std::max<int64_t>(1, boxes.count()));
  const int64_t size = block * s.taps * panels.padded;
  std::vector<double> sums(static_cast<std::size_t>(parts * tasks * size), 0.0);
  parallel_for(parts * tasks, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> memory, upstream(static_cast<std::size_t>(boxes.most_positions() * panels.padded));
    std::vector<T> product(static_cast<std::size_t>(size));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t part = task / tasks, group = task % tasks / blocks, c0 = task % blocks * block;
      const int64_t channels = std::min(block, s.cg - c0), rows = channels * s.taps;
      double* const sum = sums.data() + task * size;
      for (int64_t i = part * boxes.count() / parts; i < (part + 1) * boxes.count() / parts; ++i) {
        const Box box = boxes[i];
        const Planes<T> planes(window, box);
        planes.fill(x + (group * s.cg + c0) * s.in, p.in_channels * s.in, channels, memory);
        pack_gradients(p, g + group * s.kg * s.out, box, panels, upstream.data());
        const std::vector<int64_t> positions = planes.positions(channels), products = planes.products(channels);
        panels.for_each(0, panels.padded, [&](int64_t first, int64_t width) {
          multiply_panel(rows, box.positions(), memory.data(), products.data(), positions.data(),
                         upstream.data() + first * box.positions(), width, product.data() + first, panels.padded,
                         false);
        });
        for (int64_t e = 0; e < rows * panels.padded; ++e)
          sum[e] += static_cast<double>(product[static_cast<std::size_t>(e)]);
      }
    }
  });
  parallel_for(p.out_channels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      for (int64_t i = 0; i < s.depth; ++i) {
        const int64_t c0 = i / s.taps / block, at = (i - c0 * block * s.taps) * panels.padded + k % s.kg;
        double total = 0;
        for (int64_t part = 0; part < parts; ++part) {
          total += sums[static_cast<std::size_t>((part * tasks + k / s.kg * blocks + c0) * size + at)];
        }
        w[k * s.depth + i] = static_cast<T>(total);
      }
    }
  });
}

template void tile_forward(const ConvProblem&, const float*, const float*, const float*, const Activation&, float*);
template void tile_forward(const ConvProblem&, const double*, const double*, const double*, const Activation&, double*);
template void tile_backward_input(const ConvProblem&, const float*, const float*, const float*, float*);
template void tile_backward_input(const ConvProblem&, const double*, const double*, const double*, double*);
template void tile_backward_weight(const ConvProblem&, const float*, const float*, float*);
template void tile_backward_weight(const ConvProblem&, const double*, const double*, double*);

}  // namespace halo::cpu
