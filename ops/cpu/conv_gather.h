// Walking the input of a convolution tap by tap: what the matrix road gathers from and scatters to.
#pragma once

#include <halo/ops/conv_problem.h>

#include <algorithm>
#include <cstdint>

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
  int64_t depth;  ///< products an output: rows of the gathered matrix
};

/// Output coordinates o in [begin, end) for which o * stride + offset lies inside [0, extent).
struct Range {
  int64_t begin, end;
};
inline Range valid_range(int64_t outputs, int64_t stride, int64_t offset, int64_t extent) {
  const int64_t begin = std::min(outputs, offset >= 0 ? 0 : (-offset + stride - 1) / stride);
  const int64_t last = extent - 1 - offset;  // largest allowed o * stride
  const int64_t end = last < 0 ? 0 : last / stride + 1;
  return {begin, std::clamp(end, begin, outputs)};
}

/// A run of output positions along the width, and where it stands.
struct Run {
  int64_t image, od, oh, ow, length;
  int64_t at;  ///< positions before it in the tile
};

/// Calls f(run) for the positions [first, first + count) of the batch's output planes laid end to end, cut at row ends.
template <class F>
void for_each_run(const ConvProblem& p, int64_t first, int64_t count, F&& f) {
  const int64_t width = p.output[2];
  for (int64_t at = first; at < first + count;) {
    const int64_t row = at / width, ow = at % width, plane = row / p.output[1];
    const int64_t length = std::min(width - ow, first + count - at);
    f(Run{plane / p.output[0], plane % p.output[0], row % p.output[1], ow, length, at - first});
    at += length;
  }
}

struct Tap {
  int64_t d, h, w;
  int64_t index;
};

template <class F>
void for_each_tap(const ConvProblem& p, F&& f) {
  int64_t index = 0;
  for (int64_t d = 0; d < p.kernel[0]; ++d) {
    for (int64_t h = 0; h < p.kernel[1]; ++h) {
      for (int64_t w = 0; w < p.kernel[2]; ++w) f(Tap{d, h, w, index++});
    }
  }
}

/// Where a tap of a run lies in an input plane: `row` is the offset of the input row, or -1 where it is padding; output
/// i of the run reads column first + i * stride, which is inside for i in `valid`.
struct Reach {
  int64_t row, first;
  Range valid;
};
inline Reach reach(const ConvProblem& p, const Run& run, const Tap& tap) {
  const auto at = [&](std::size_t axis, int64_t o, int64_t t) {
    return o * p.stride[axis] - p.padding_before[axis] + t * p.dilation[axis];
  };
  const int64_t id = at(0, run.od, tap.d), ih = at(1, run.oh, tap.h), iw = at(2, run.ow, tap.w);
  if (id < 0 || id >= p.input[0] || ih < 0 || ih >= p.input[1]) return {-1, iw, {0, 0}};
  return {(id * p.input[1] + ih) * p.input[2], iw, valid_range(run.length, p.stride[2], iw, p.input[2])};
}

/// The inputs under a tap: `plane` is image 0's channel plane, images are `image_pitch` elements apart.
template <class T>
void gather_tap(const ConvProblem& p, const T* plane, int64_t image_pitch, const Tap& tap, int64_t first, int64_t count,
                T* columns) {
  for_each_run(p, first, count, [&](const Run& run) {
    T* out = columns + run.at;
    const Reach r = reach(p, run, tap);
    if (r.row < 0) {
      std::fill_n(out, run.length, T(0));
      return;
    }
    const T* in = plane + run.image * image_pitch + r.row;
    std::fill_n(out, r.valid.begin, T(0));
    if (p.stride[2] == 1) {
      std::copy_n(in + r.first + r.valid.begin, r.valid.end - r.valid.begin, out + r.valid.begin);
    } else {
      for (int64_t i = r.valid.begin; i < r.valid.end; ++i) out[i] = in[r.first + i * p.stride[2]];
    }
    std::fill(out + r.valid.end, out + run.length, T(0));
  });
}

/// The adjoint of gather_tap: adds a row of columns back onto the planes.
template <class T>
void scatter_tap(const ConvProblem& p, const T* columns, const Tap& tap, int64_t first, int64_t count, T* plane,
                 int64_t image_pitch) {
  for_each_run(p, first, count, [&](const Run& run) {
    const Reach r = reach(p, run, tap);
    if (r.row < 0) return;
    const T* in = columns + run.at;
    T* out = plane + run.image * image_pitch + r.row;
    for (int64_t i = r.valid.begin; i < r.valid.end; ++i) out[r.first + i * p.stride[2]] += in[i];
  });
}

/// Rows [channels, count] of planes at positions [first, first + count): a tile of an output-sized operand, made dense.
template <class T>
void gather_positions(const T* planes, int64_t channels, int64_t plane, int64_t image_pitch, int64_t first,
                      int64_t count, T* tile) {
  for (int64_t at = first; at < first + count;) {
    const int64_t image = at / plane, position = at % plane, length = std::min(plane - position, first + count - at);
    for (int64_t c = 0; c < channels; ++c) {
      std::copy_n(planes + image * image_pitch + c * plane + position, length, tile + c * count + (at - first));
    }
    at += length;
  }
}

}  // namespace halo::cpu
