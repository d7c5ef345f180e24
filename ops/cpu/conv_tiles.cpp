#include "conv_tiles.h"

#include <halo/core/parallel.h>
#include <halo/ops/scalar_math.h>

#include "tiles.h"

namespace halo::cpu {
namespace {

/// A panel of weights of one group: columns are results from `first` on.
void pack_weights(const Correlation& q, const float* w, int64_t first, int64_t width, float* panel) {
  const int64_t real = std::min(width, q.results - first);
  for (int64_t c = 0; c < q.channels; ++c) {
    for (const int64_t tap : q.tap_numbers) {
      const float* from = w + first * q.result_pitch + c * q.channel_pitch + tap;
      for (int64_t m = 0; m < real; ++m) panel[m] = from[m * q.result_pitch];
      std::fill(panel + real, panel + width, 0.0F);
      panel += width;
    }
  }
}

/// Writes results [position][m] of a box, m in [0, count), to the planes of channels from `channel` on.
void write_results(const Correlation& q, const CorrelationData& data, const Box& box, int64_t channel, int64_t count,
                   const float* results, int64_t pitch) {
  constexpr int64_t kBlock = 16;  // results of neighbouring m share lines
  const int64_t step = q.to_step[2];
  for (int64_t line = 0; line < box.slices * box.rows; ++line) {
    float* const first = data.result + channel * q.result_size() + q.line_start(box, line);
    for (int64_t m0 = 0; m0 < count; m0 += kBlock) {
      for (int64_t m = m0; m < std::min(count, m0 + kBlock); ++m) {
        const float* from = results + line * box.columns * pitch + m;
        float* const to = first + m * q.result_size();
        const float shift = data.bias != nullptr ? data.bias[channel + m] : 0.0F;
        for (int64_t i = 0; i < box.columns; ++i) to[i * step] = from[i * pitch] + shift;
        if (data.activation.kind == ActivationKind::None) continue;
        for (int64_t i = 0; i < box.columns; ++i) to[i * step] = math::activate(data.activation, to[i * step]);
      }
    }
  }
}

/// A box of the upstream gradient as panels whose columns are output channels.
void pack_gradients(const ConvProblem& p, const float* g, const Box& box, const Panels& panels, float* packed) {
  const ConvSizes s(p);
  panels.for_each(0, panels.padded, [&](int64_t first, int64_t width) {
    float* panel = packed + first * box.positions();
    for (int64_t line = 0; line < box.slices * box.rows; ++line, panel += box.columns * width) {
      const int64_t slice = box.slice + line / box.rows, row = box.row + line % box.rows;
      const float* from = g + (slice / p.output[0] * p.out_channels + first) * s.out +
                          (slice % p.output[0] * p.output[1] + row) * p.output[2] + box.column;
      pack_panel(from, 1, s.out, box.columns, std::min(width, s.kg - first), width, panel);
    }
  });
}

}  // namespace

/// A task computes some results of a box: for a block of channels at a time, whose products with a panel of weights
/// stay in the first-level cache.
void correlate_tiles(const Correlation& q, const CorrelationData& data) {
  constexpr int64_t kBlockDepth = 192, kResultElements = 64 * 1024, kPlaneElements = 96 * 1024, kEnoughTasks = 16;
  const int64_t taps = q.taps(), depth = q.depth();
  const Panels panels(q.results);
  const int64_t block =
      std::clamp<int64_t>(kBlockDepth / std::max<int64_t>(1, taps), 1, std::max<int64_t>(1, q.channels));
  const int64_t inputs = inputs_a_position(block, q.window.step);
  const Boxes boxes(q.window, q.batch,
                    std::clamp<int64_t>(std::min(kResultElements / panels.padded, kPlaneElements / inputs), 96, 1024));
  std::vector<float> packed(static_cast<std::size_t>(q.groups * depth * panels.padded));
  parallel_for(q.groups * panels.count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t group = i / panels.count(), first = i % panels.count() * panels.widest;
      pack_weights(q, data.weight + group * q.group_pitch, first, panels.width(first),
                   packed.data() + (group * panels.padded + first) * depth);
    }
  });
  // Where boxes are few, results are split among tasks too, in whole panels.
  const int64_t splits = std::clamp<int64_t>(kEnoughTasks / std::max<int64_t>(1, q.groups * boxes.count()), 1,
                                             std::max<int64_t>(1, panels.count() / 2));
  const int64_t share = (panels.count() + splits - 1) / splits * panels.widest;
  parallel_for(boxes.count() * q.groups * splits, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> memory,
        results(static_cast<std::size_t>(boxes.most_positions() * std::min(panels.padded, share)));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t group = task / splits % q.groups;
      const int64_t m0 = task % splits * share, m1 = std::min(panels.padded, m0 + share), pitch = m1 - m0;
      if (m0 >= m1) continue;
      const Box box = boxes[task / splits / q.groups];
      const Planes planes(q.window, box);
      for (int64_t c0 = 0; c0 < q.channels; c0 += block) {
        const int64_t channels = std::min(block, q.channels - c0);
        planes.fill(data.source + (group * q.channels + c0) * q.source_size(), q.groups * q.channels * q.source_size(),
                    channels, 0, memory);
        const std::vector<int64_t> positions = planes.positions(channels), products = planes.products(channels);
        panels.for_each(m0, m1, [&](int64_t first, int64_t width) {
          const float* panel = packed.data() + (group * panels.padded + first) * depth + c0 * taps * width;
          multiply_panel(box.positions(), channels * taps, memory.data(), positions.data(), products.data(), panel,
                         width, results.data() + (first - m0), pitch, c0 > 0);
        });
      }
      write_results(q, data, box, group * q.results + m0, std::min(m1, q.results) - m0, results.data(), pitch);
    }
  });
}

/// Sums over two boxes in float32, over more in float64: the error does not grow with the number of positions. A task
/// has some input channels of a group and, where those are few, a part of the boxes; parts are added up in order.
void weight_gradient_tiles(const ConvProblem& p, const float* x, const float* g, float* w) {
  constexpr int64_t kBlockProducts = 288, kPlaneElements = 96 * 1024, kEnoughTasks = 8;
  const ConvSizes s(p);
  const Window window = forward_correlation(p).window;
  const Panels panels(s.kg);
  const int64_t block = std::clamp<int64_t>(kBlockProducts / s.taps, 1, s.cg), blocks = (s.cg + block - 1) / block;
  const Boxes boxes(window, p.batch,
                    std::clamp<int64_t>(kPlaneElements / inputs_a_position(block, p.stride), 128, 512));
  const int64_t tasks = p.groups * blocks, size = block * s.taps * panels.padded;
  const int64_t parts = std::clamp<int64_t>((kEnoughTasks + tasks - 1) / tasks, 1, std::max<int64_t>(1, boxes.count()));
  // Where several tasks meet the same gradients, these are packed once for all.
  const bool shared = blocks > 1;
  const int64_t packed_size = boxes.most_positions() * panels.padded;
  std::vector<float> packed(static_cast<std::size_t>(shared ? p.groups * boxes.count() * packed_size : 0));
  parallel_for(shared ? p.groups * boxes.count() : 0, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t group = i / boxes.count();
      pack_gradients(p, g + group * s.kg * s.out, boxes[i % boxes.count()], panels, packed.data() + i * packed_size);
    }
  });
  constexpr int64_t kBoxesAChain = 2;
  std::vector<double> sums(static_cast<std::size_t>(parts * tasks * size), 0.0);
  parallel_for(parts * tasks, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> memory, own(static_cast<std::size_t>(shared ? 0 : packed_size));
    std::vector<float> product(static_cast<std::size_t>(size));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t part = task / tasks, group = task % tasks / blocks, c0 = task % blocks * block;
      const int64_t channels = std::min(block, s.cg - c0), rows = channels * s.taps;
      double* const sum = sums.data() + task * size;
      const int64_t first_box = part * boxes.count() / parts, last_box = (part + 1) * boxes.count() / parts;
      for (int64_t i = first_box; i < last_box; ++i) {
        const Box box = boxes[i];
        const Planes planes(window, box);
        planes.fill(x + (group * s.cg + c0) * s.in, p.in_channels * s.in, channels, 0, memory);
        const float* upstream = shared ? packed.data() + (group * boxes.count() + i) * packed_size : own.data();
        if (!shared) pack_gradients(p, g + group * s.kg * s.out, box, panels, own.data());
        const std::vector<int64_t> positions = planes.positions(channels), products = planes.products(channels);
        const bool goes_on = (i - first_box) % kBoxesAChain > 0;
        panels.for_each(0, panels.padded, [&](int64_t first, int64_t width) {
          multiply_panel(rows, box.positions(), memory.data(), products.data(), positions.data(),
                         upstream + first * box.positions(), width, product.data() + first, panels.padded, goes_on);
        });
        if ((i - first_box) % kBoxesAChain + 1 < kBoxesAChain && i + 1 < last_box) continue;
        for (int64_t e = 0; e < rows * panels.padded; ++e) {
          sum[e] += static_cast<double>(product[static_cast<std::size_t>(e)]);
        }
      }
    }
  });
  // From sums [products, channels] to weights [channels, products], some channels at a time.
  constexpr int64_t kChannels = 16;
  const int64_t channel_blocks = (s.kg + kChannels - 1) / kChannels;
  parallel_for(p.groups * channel_blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t group = i / channel_blocks, k0 = i % channel_blocks * kChannels,
                    k1 = std::min(s.kg, k0 + kChannels);
      for (int64_t n = 0; n < s.depth; ++n) {
        const int64_t c0 = n / s.taps / block, at = (n - c0 * block * s.taps) * panels.padded;
        for (int64_t k = k0; k < k1; ++k) {
          double total = 0;
          for (int64_t part = 0; part < parts; ++part) {
            total += sums[static_cast<std::size_t>((part * tasks + group * blocks + c0) * size + at + k)];
          }
          w[(group * s.kg + k) * s.depth + n] = static_cast<float>(total);
        }
      }
    }
  });
}

}  // namespace halo::cpu
