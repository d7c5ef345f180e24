// Boxes of positions, and the part of the input that a box sees, copied with its padding.
#pragma once

#include <halo/ops/conv_problem.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace halo::cpu {

/// Which inputs an output position meets: position o and a tap of offset t meet source coordinate
/// o * step + start + t on each axis; what lies outside the source is 0.
struct Window {
  using Extents = ConvProblem::Extents;
  Extents outputs;            ///< positions
  Extents source;             ///< extents of a source plane
  Extents step, start;        ///< in source coordinates
  Extents reach;              ///< the largest offset of a tap
  std::vector<Extents> taps;  ///< their offsets
};

/// Some slices (depths of all images, laid end to end), and in each the same rows and columns.
struct Box {
  int64_t slice, slices, row, rows, column, columns;
  int64_t positions() const { return slices * rows * columns; }
};

/// All positions of a batch, cut into boxes of about `target` positions.
class Boxes {
 public:
  Boxes(const Window& window, int64_t batch, int64_t target)
      : slices_(batch * window.outputs[0]), rows_(window.outputs[1]), columns_(window.outputs[2]) {
    columns_a_box_ = at_most(target, columns_);
    rows_a_box_ = at_most(target / columns_a_box_, rows_);
    const bool whole = rows_a_box_ >= rows_ && columns_a_box_ >= columns_;
    slices_a_box_ = whole ? at_most(target / (rows_a_box_ * columns_a_box_), slices_) : 1;
  }
  int64_t count() const { return pieces(slices_, slices_a_box_) * row_boxes() * column_boxes(); }
  Box operator[](int64_t i) const {
    const int64_t column = i % column_boxes() * columns_a_box_, row = i / column_boxes() % row_boxes() * rows_a_box_;
    const int64_t slice = i / column_boxes() / row_boxes() * slices_a_box_;
    return {slice,  std::min(slices_a_box_, slices_ - slice),   row, std::min(rows_a_box_, rows_ - row),
            column, std::min(columns_a_box_, columns_ - column)};
  }
  int64_t most_positions() const { return slices_a_box_ * rows_a_box_ * columns_a_box_; }

 private:
  static int64_t at_most(int64_t n, int64_t limit) { return std::max<int64_t>(1, std::min(n, limit)); }
  static int64_t pieces(int64_t n, int64_t piece) { return (n + piece - 1) / piece; }
  int64_t row_boxes() const { return pieces(rows_, rows_a_box_); }
  int64_t column_boxes() const { return pieces(columns_, columns_a_box_); }

  int64_t slices_, rows_, columns_;
  int64_t slices_a_box_, rows_a_box_, columns_a_box_;
};

/// The source planes of some channels that a box sees, with their padding. Rows and columns that the step keeps apart
/// lie apart, so that neighbouring positions are neighbours in memory whatever the step: [slice][channel][depth][row %
/// step][column % step][row / step][column / step].
template <class T>
class Planes {
 public:
  Planes(const Window& window, const Box& box) : window_(window), box_(box) {
    depth_ = window.reach[0] + 1;
    height_ = box.rows + window.reach[1] / window.step[1];
    width_ = box.columns + window.reach[2] / window.step[2];
  }

  /// Copies `channels` planes of each slice. `source` is channel 0's plane of image 0. `slack` more elements can be
  /// read.
  void fill(const T* source, int64_t image_pitch, int64_t channels, int64_t slack, std::vector<T>& memory) const {
    memory.resize(static_cast<std::size_t>(box_.slices * channels * channel_pitch() + slack));
    T* to = memory.data();
    const auto& extent = window_.source;
    for (int64_t slice = box_.slice; slice < box_.slice + box_.slices; ++slice) {
      const T* image = source + slice / window_.outputs[0] * image_pitch;
      const int64_t first_depth = slice % window_.outputs[0] * window_.step[0] + window_.start[0];
      for (int64_t c = 0; c < channels; ++c, image += extent[0] * extent[1] * extent[2]) {
        for (int64_t d = first_depth; d < first_depth + depth_; ++d, to += channel_pitch() / depth_) {
          copy_plane(d >= 0 && d < extent[0] ? image + d * extent[1] * extent[2] : nullptr, to);
        }
      }
    }
  }

  int64_t width() const { return width_; }  ///< of a row
  int64_t channel_pitch() const { return depth_ * window_.step[1] * window_.step[2] * height_ * width_; }

  /// Where the tap at offset 0 of each position reads, `channels` planes a slice.
  std::vector<int64_t> positions(int64_t channels) const {
    std::vector<int64_t> offsets;
    offsets.reserve(static_cast<std::size_t>(box_.positions()));
    for (int64_t slice = 0; slice < box_.slices; ++slice) {
      for (int64_t row = 0; row < box_.rows; ++row) {
        const int64_t first = slice * channels * channel_pitch() + row * width_;
        for (int64_t column = 0; column < box_.columns; ++column) offsets.push_back(first + column);
      }
    }
    return offsets;
  }
  /// How far from there the taps of each channel read: channel by channel, tap by tap.
  std::vector<int64_t> products(int64_t channels) const {
    std::vector<int64_t> offsets;
    offsets.reserve(static_cast<std::size_t>(channels) * window_.taps.size());
    const auto& step = window_.step;
    for (int64_t c = 0; c < channels; ++c) {
      for (const auto& tap : window_.taps) {
        const int64_t part = (tap[0] * step[1] + tap[1] % step[1]) * step[2] + tap[2] % step[2];
        offsets.push_back(c * channel_pitch() + (part * height_ + tap[1] / step[1]) * width_ + tap[2] / step[2]);
      }
    }
    return offsets;
  }

 private:
  /// One plane, or zeros where `plane` is null.
  void copy_plane(const T* plane, T* to) const {
    const int64_t first_row = box_.row * window_.step[1] + window_.start[1];
    const int64_t first_column = box_.column * window_.step[2] + window_.start[2];
    for (int64_t h = 0; h < window_.step[1]; ++h) {
      for (int64_t w = 0; w < window_.step[2]; ++w) {
        for (int64_t i = 0; i < height_; ++i, to += width_) {
          const int64_t row = first_row + h + i * window_.step[1];
          const bool inside = plane != nullptr && row >= 0 && row < window_.source[1];
          copy_row(inside ? plane + row * window_.source[2] : nullptr, first_column + w, to);
        }
      }
    }
  }

  /// Every step-th element of a row from `first` on, or zeros where `row` is null.
  void copy_row(const T* row, int64_t first, T* to) const {
    const int64_t step = window_.step[2], last = window_.source[2] - 1 - first;
    const int64_t begin =
        row == nullptr ? width_ : std::clamp<int64_t>(first < 0 ? (step - 1 - first) / step : 0, 0, width_);
    const int64_t end = std::clamp<int64_t>(last < 0 ? 0 : last / step + 1, begin, width_);
    std::fill(to, to + begin, T(0));
    if (step == 1 && begin < end) {
      std::copy(row + first + begin, row + first + end, to + begin);
    } else {
      for (int64_t i = begin; i < end; ++i) to[i] = row[first + i * step];
    }
    std::fill(to + end, to + width_, T(0));
  }

  const Window& window_;
  Box box_;
  int64_t depth_, height_, width_;
};

}  // namespace halo::cpu
