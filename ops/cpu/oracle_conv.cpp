// The three contractions of convolution. For a block of output positions of one image the inputs that they meet are
// gathered as columns [channels * taps, positions]; then, group by group,
//   y = w columns,   gradient of w = g columns^T,   gradient of the columns = w^T g, added to where they came from.
#include <halo/core/parallel.h>
#include <halo/ops/scalar_math.h>

#include <algorithm>
#include <vector>

#include "oracle.h"
#include <Eigen/Core>

namespace halo::cpu::oracle {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Rows = Eigen::Map<const Matrix, 0, Eigen::OuterStride<>>;

struct Sizes {
  explicit Sizes(const ConvProblem& p)
      : cg(p.in_channels_per_group()),
        kg(p.out_channels_per_group()),
        in(p.input_positions()),
        out(p.output_positions()),
        taps(p.taps()),
        depth(cg * taps),
        block(std::clamp<int64_t>(64 * 1024 / std::max<int64_t>(1, depth), 16, 1024)),
        blocks((out + block - 1) / block) {}
  int64_t cg, kg;   ///< channels a group
  int64_t in, out;  ///< positions a plane
  int64_t taps, depth;
  int64_t block, blocks;  ///< positions in a block, blocks in a plane
};

/// Output positions [first, first + count) of a plane, and which element of an input plane each tap meets there.
class Block {
 public:
  Block(const ConvProblem& p, const Sizes& s, int64_t index)
      : first(index * s.block), count(std::min(s.block, s.out - first)) {
    inputs_.reserve(static_cast<std::size_t>(s.taps * count));
    for (int64_t tap = 0; tap < s.taps; ++tap) {
      const auto k = coordinates(tap, p.kernel);
      for (int64_t position = first; position < first + count; ++position) {
        const auto o = coordinates(position, p.output);
        int64_t input = 0;
        bool inside = true;
        for (std::size_t axis = 0; axis < 3; ++axis) {
          const int64_t i = o[axis] * p.stride[axis] + k[axis] * p.dilation[axis] - p.padding_before[axis];
          inside = inside && i >= 0 && i < p.input[axis];
          input = input * p.input[axis] + i;
        }
        inputs_.push_back(inside ? input : kPadding);
      }
    }
  }

  /// The columns of `channels` planes.
  void gather(const double* planes, int64_t channels, int64_t plane_size, Matrix& columns) const {
    const auto size = static_cast<int64_t>(inputs_.size());
    columns.resize(size == 0 ? 0 : channels * (size / count), count);
    for (int64_t c = 0; c < channels; ++c, planes += plane_size) {
      double* const to = columns.data() + c * size;
      for (int64_t i = 0; i < size; ++i) to[i] = input(i) == kPadding ? 0 : planes[input(i)];
    }
  }
  /// Adds columns to the elements that they were gathered from.
  void scatter(const Matrix& columns, int64_t channels, int64_t plane_size, double* planes) const {
    const auto size = static_cast<int64_t>(inputs_.size());
    for (int64_t c = 0; c < channels; ++c, planes += plane_size) {
      const double* const from = columns.data() + c * size;
      for (int64_t i = 0; i < size; ++i) {
        if (input(i) != kPadding) planes[input(i)] += from[i];
      }
    }
  }

  const int64_t first, count;

 private:
  static constexpr int64_t kPadding = -1;
  static ConvProblem::Extents coordinates(int64_t i, const ConvProblem::Extents& extents) {
    return {i / extents[2] / extents[1], i / extents[2] % extents[1], i % extents[2]};
  }
  int64_t input(int64_t i) const { return inputs_[static_cast<std::size_t>(i)]; }

  std::vector<int64_t> inputs_;  ///< [taps, count]
};

}  // namespace

void conv_forward(const ConvProblem& p, const Tensor& x, const Tensor& w, const Tensor& bias,
                  const Activation& activation, const Tensor& y) {
  const Sizes s(p);
  parallel_for(p.batch * p.groups * s.blocks, 1, [&](int64_t begin, int64_t end) {
    Matrix columns, product;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t image_group = task / s.blocks, group = image_group % p.groups;
      const Block block(p, s, task % s.blocks);
      block.gather(x.data<double>() + image_group * s.cg * s.in, s.cg, s.in, columns);
      product.noalias() = Rows(w.data<double>() + group * s.kg * s.depth, s.kg, s.depth, {s.depth}) * columns;
      for (int64_t k = 0; k < s.kg; ++k) {
        const double shift = bias.defined() ? bias.data<double>()[group * s.kg + k] : 0;
        double* const to = y.data<double>() + (image_group * s.kg + k) * s.out + block.first;
        for (int64_t i = 0; i < block.count; ++i) to[i] = math::activate(activation, product(k, i) + shift);
      }
    }
  });
}

/// Windows overlap, so that a task owns the planes of some channels of an image.
void conv_backward_input(const ConvProblem& p, const Tensor& g, const Tensor& w, const Tensor& bias, const Tensor& x) {
  constexpr int64_t kChannels = 16;
  const Sizes s(p);
  const int64_t parts = (s.cg + kChannels - 1) / kChannels;
  parallel_for(p.batch * p.groups * parts, 1, [&](int64_t begin, int64_t end) {
    Matrix columns;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t image_group = task / parts, group = image_group % p.groups, c0 = task % parts * kChannels;
      const int64_t channels = std::min(kChannels, s.cg - c0);
      const Rows weight(w.data<double>() + group * s.kg * s.depth, s.kg, s.depth, {s.depth});
      double* const planes = x.data<double>() + (image_group * s.cg + c0) * s.in;
      for (int64_t c = 0; c < channels; ++c) {
        const double shift = bias.defined() ? bias.data<double>()[group * s.cg + c0 + c] : 0;
        std::fill_n(planes + c * s.in, s.in, shift);
      }
      for (int64_t index = 0; index < s.blocks; ++index) {
        const Block block(p, s, index);
        const Rows upstream(g.data<double>() + image_group * s.kg * s.out + block.first, s.kg, block.count, {s.out});
        columns.noalias() = weight.middleCols(c0 * s.taps, channels * s.taps).transpose() * upstream;
        block.scatter(columns, channels, s.in, planes);
      }
    }
  });
}

/// The blocks of all images are summed in parts that the problem alone determines, and these in order.
void conv_backward_weight(const ConvProblem& p, const Tensor& x, const Tensor& g, const Tensor& w) {
  constexpr int64_t kMostParts = 8;
  const Sizes s(p);
  const int64_t blocks = p.batch * s.blocks, parts = std::clamp<int64_t>(blocks, 1, kMostParts);
  std::vector<Matrix> sums(static_cast<std::size_t>(p.groups * parts));
  parallel_for(p.groups * parts, 1, [&](int64_t begin, int64_t end) {
    Matrix columns;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t group = task / parts, part = task % parts;
      Matrix& sum = sums[static_cast<std::size_t>(task)];
      sum.setZero(s.kg, s.depth);
      for (int64_t i = part * blocks / parts; i < (part + 1) * blocks / parts; ++i) {
        const int64_t image_group = i / s.blocks * p.groups + group;
        const Block block(p, s, i % s.blocks);
        block.gather(x.data<double>() + image_group * s.cg * s.in, s.cg, s.in, columns);
        const Rows upstream(g.data<double>() + image_group * s.kg * s.out + block.first, s.kg, block.count, {s.out});
        sum.noalias() += upstream * columns.transpose();
      }
    }
  });
  for (int64_t group = 0; group < p.groups; ++group) {
    const Matrix* const part = sums.data() + group * parts;
    Eigen::Map<Matrix> total(w.data<double>() + group * s.kg * s.depth, s.kg, s.depth);
    total = part[0];
    for (int64_t i = 1; i < parts; ++i) total += part[i];
  }
}

}  // namespace halo::cpu::oracle
