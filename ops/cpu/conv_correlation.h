// The passes of a convolution that give an activation, as correlations: what conv_tiles.h and conv_lines.h compute.
#pragma once

#include <halo/ops/activation.h>
#include <halo/ops/conv_problem.h>

#include <cstdint>
#include <vector>

#include "conv_planes.h"

namespace halo::cpu {

/// Sizes that the CPU kernels use over and over.
struct ConvSizes {
  explicit ConvSizes(const ConvProblem& p)
      : cg(p.in_channels_per_group()),
        kg(p.out_channels_per_group()),
        in(p.input_positions()),
        out(p.output_positions()),
        taps(p.taps()),
        depth(cg * taps) {}
  int64_t cg, kg;   ///< channels a group
  int64_t in, out;  ///< positions a plane
  int64_t taps;
  int64_t depth;  ///< products an output
};

/// result[m][o] = bias[m] + sum over channels c and taps t of w[m][c][t] source[c][o and t as Window says], for each
/// image and group. Result o stands at o * to_step + to_start of a plane with the extents `to`.
struct Correlation {
  Window window;
  int64_t batch, groups;
  int64_t channels, results;                         ///< a group
  std::vector<int64_t> tap_numbers;                  ///< of window.taps among the weight's taps
  int64_t group_pitch, result_pitch, channel_pitch;  ///< of the weight
  ConvProblem::Extents to, to_step, to_start;

  int64_t taps() const { return static_cast<int64_t>(tap_numbers.size()); }
  int64_t depth() const { return channels * taps(); }
  int64_t source_size() const { return window.source[0] * window.source[1] * window.source[2]; }
  int64_t result_size() const { return to[0] * to[1] * to[2]; }
  /// Where row `line` of a box (slice by slice) begins: an offset from the plane of its result in image 0.
  int64_t line_start(const Box& box, int64_t line) const {
    const int64_t slice = box.slice + line / box.rows, row = box.row + line % box.rows;
    const int64_t d = slice % window.outputs[0] * to_step[0] + to_start[0], h = row * to_step[1] + to_start[1];
    return slice / window.outputs[0] * groups * results * result_size() + (d * to[1] + h) * to[2] +
           box.column * to_step[2] + to_start[2];
  }
};

/// The forward pass.
Correlation forward_correlation(const ConvProblem& p);
/// The gradient of the input: one correlation for each residue of (input + padding) by the strides, empty ones left
/// out.
std::vector<Correlation> backward_correlations(const ConvProblem& p);

/// Operands of a correlation. `bias` may be null.
struct CorrelationData {
  const float *source, *weight, *bias;
  Activation activation;
  float* result;
};

}  // namespace halo::cpu
