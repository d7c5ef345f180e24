#include "conv_lines.h"

#include <halo/core/parallel.h>
#include <halo/ops/scalar_math.h>

#include "isa.h"

namespace halo::cpu {
namespace {

/// Weights of a group in blocks of kLines results: [block][channel, tap][result of the block].
void pack_weights(const Correlation& q, const float* w, float* packed) {
  for (int64_t m0 = 0; m0 < q.results; m0 += Kernels::kLines) {
    const int64_t m1 = std::min<int64_t>(q.results, m0 + Kernels::kLines);
    for (int64_t c = 0; c < q.channels; ++c) {
      for (const int64_t tap : q.tap_numbers) {
        for (int64_t m = m0; m < m1; ++m) *packed++ = w[m * q.result_pitch + c * q.channel_pitch + tap];
      }
    }
  }
}
int64_t vectors_of(int64_t columns) { return (columns + kernels().lanes - 1) / kernels().lanes; }

/// Result m's rows of a box: `from` has rows of `width`, slices of `pitch`.
void write_rows(const Correlation& q, const CorrelationData& data, const Box& box, int64_t channel, const float* from,
                int64_t width, int64_t pitch) {
  const float shift = data.bias != nullptr ? data.bias[channel] : 0.0F;
  const int64_t step = q.to_step[2];
  for (int64_t line = 0; line < box.slices * box.rows; ++line) {
    const float* row = from + line / box.rows * pitch + line % box.rows * width;
    float* const to = data.result + channel * q.result_size() + q.line_start(box, line);
    if (step == 1) {
      for (int64_t i = 0; i < box.columns; ++i) to[i] = row[i] + shift;
    } else {
      for (int64_t i = 0; i < box.columns; ++i) to[i * step] = row[i] + shift;
    }
    if (data.activation.kind == ActivationKind::None) continue;
    for (int64_t i = 0; i < box.columns; ++i) to[i * step] = math::activate(data.activation, to[i * step]);
  }
}

}  // namespace

/// A slice of a box is computed as one line: its rows lie one behind the other in the planes, and what comes out
/// between them is not used.
void correlate_lines(const Correlation& q, const CorrelationData& data) {
  constexpr int64_t kBlockDepth = 256, kResultElements = 32 * 1024, kPlaneElements = 64 * 1024;
  const Kernels& isa = kernels();
  const int64_t taps = std::max<int64_t>(1, q.taps()), depth = q.depth();
  const int64_t block = std::clamp<int64_t>(kBlockDepth / taps, 1, std::max<int64_t>(1, q.channels));
  const int64_t inputs = inputs_a_position(block, q.window.step);
  const Boxes boxes(
      q.window, q.batch,
      std::max<int64_t>(256, std::min(kResultElements / std::max<int64_t>(1, q.results), kPlaneElements / inputs)));
  std::vector<float> packed(static_cast<std::size_t>(q.groups * q.results * depth));
  for (int64_t group = 0; group < q.groups; ++group) {
    pack_weights(q, data.weight + group * q.group_pitch, packed.data() + group * q.results * depth);
  }
  parallel_for(boxes.count() * q.groups, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> memory, results;
    for (int64_t task = begin; task < end; ++task) {
      const Box box = boxes[task / q.groups];
      const int64_t group = task % q.groups;
      const Planes planes(q.window, box);
      const int64_t vectors = vectors_of((box.rows - 1) * planes.width() + box.columns), pitch = vectors * isa.lanes;
      if (q.channels == 0) results.assign(static_cast<std::size_t>(q.results * box.slices * pitch), 0.0F);
      results.resize(static_cast<std::size_t>(q.results * box.slices * pitch));
      for (int64_t c0 = 0; c0 < q.channels; c0 += block) {
        const int64_t channels = std::min(block, q.channels - c0), slice_size = channels * planes.channel_pitch();
        planes.fill(data.source + (group * q.channels + c0) * q.source_size(), q.groups * q.channels * q.source_size(),
                    channels, isa.lanes, memory);
        const std::vector<int64_t> products = planes.products(channels);
        for (int64_t m = 0; m < q.results; m += Kernels::kLines) {
          const int64_t count = std::min<int64_t>(Kernels::kLines, q.results - m);
          const float* w = packed.data() + (group * q.results + m) * depth + c0 * q.taps() * count;
          for (int64_t slice = 0; slice < box.slices; ++slice) {
            isa.lines[count - 1](channels * q.taps(), w, memory.data() + slice * slice_size, products.data(), vectors,
                                 results.data() + (m * box.slices + slice) * pitch, box.slices * pitch, c0 > 0);
          }
        }
      }
      for (int64_t m = 0; m < q.results; ++m) {
        write_rows(q, data, box, group * q.results + m, results.data() + m * box.slices * pitch, planes.width(), pitch);
      }
    }
  });
}

/// Sums over a box in float32, over boxes in float64: the error does not grow with the number of positions. A task has
/// some input channels of a group.
void weight_gradient_lines(const ConvProblem& p, const float* x, const float* g, float* w) {
  constexpr int64_t kBlockProducts = 288, kPositions = 4096, kPlaneElements = 64 * 1024;
  const Kernels& isa = kernels();
  const ConvSizes s(p);
  const Window window = forward_correlation(p).window;
  const int64_t block = std::clamp<int64_t>(kBlockProducts / s.taps, 1, s.cg), blocks = (s.cg + block - 1) / block;
  const Boxes boxes(window, p.batch,
                    std::clamp<int64_t>(kPlaneElements / inputs_a_position(block, p.stride), 256, kPositions));
  parallel_for(p.groups * blocks, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> memory, upstream;
    std::vector<double> sums(static_cast<std::size_t>(s.kg * block * s.taps));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t group = task / blocks, c0 = task % blocks * block;
      const int64_t channels = std::min(block, s.cg - c0), products = channels * s.taps;
      std::fill(sums.begin(), sums.end(), 0.0);
      for (int64_t i = 0; i < boxes.count(); ++i) {
        const Box box = boxes[i];
        const Planes planes(window, box);
        planes.fill(x + (group * s.cg + c0) * s.in, p.in_channels * s.in, channels, isa.lanes, memory);
        const std::vector<int64_t> steps = planes.products(channels);
        const int64_t pitch = vectors_of(box.columns) * isa.lanes;
        upstream.assign(static_cast<std::size_t>(box.slices * box.rows * pitch), 0.0F);
        for (int64_t k = 0; k < s.kg; ++k) {
          for (int64_t line = 0; line < box.slices * box.rows; ++line) {
            const int64_t slice = box.slice + line / box.rows, row = box.row + line % box.rows;
            const float* from = g + (slice / p.output[0] * p.out_channels + group * s.kg + k) * s.out +
                                (slice % p.output[0] * p.output[1] + row) * p.output[2] + box.column;
            std::copy_n(from, box.columns, upstream.data() + line * pitch);
          }
          for (int64_t slice = 0; slice < box.slices; ++slice) {
            const float* in = memory.data() + slice * channels * planes.channel_pitch();
            for (int64_t n = 0; n < products; n += Kernels::kDots) {
              const int64_t count = std::min<int64_t>(Kernels::kDots, products - n);
              float found[Kernels::kDots];
              isa.dots[count - 1](box.rows, box.columns, upstream.data() + slice * box.rows * pitch, in, planes.width(),
                                  steps.data() + n, found);
              double* const to = sums.data() + k * products + n;
              for (int64_t j = 0; j < count; ++j) to[j] += static_cast<double>(found[j]);
            }
          }
        }
      }
      for (int64_t k = 0; k < s.kg; ++k) {
        float* const to = w + (group * s.kg + k) * s.depth + c0 * s.taps;
        for (int64_t n = 0; n < products; ++n)
          to[n] = static_cast<float>(sums[static_cast<std::size_t>(k * products + n)]);
      }
    }
  });
}

}  // namespace halo::cpu
