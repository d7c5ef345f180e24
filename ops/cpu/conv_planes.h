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

/// Inputs that a position of a box brings with it, of `channels` planes, as a measure of memory: the product of the
/// strides, where strides beyond any box count as its end.
inline int64_t inputs_a_position(int64_t channels, const Window::Extents& step) {
  constexpr int64_t kMost = int64_t{1} << 20;
  return channels * std::min(step[1], kMost) * std::min(step[2], kMost);
}

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

/// How one axis of the source is laid out for `count` neighbouring positions: in parts whose elements are `step` apart
/// in the source, so that neighbouring positions are neighbours in memory. Either a part for each residue of the step,
/// where taps share elements, or one for each offset of a tap, whichever is smaller (for one position always the
/// latter).
class AxisLayout {
 public:
  AxisLayout(const Window& window, std::size_t axis, int64_t count) : step_(window.step[axis]), length_(count) {
    for (const auto& tap : window.taps) {
      if (part_of(tap[axis]) == parts()) origins_.push_back(tap[axis]);
    }
    const int64_t shared_length = count + window.reach[axis] / step_;
    if (step_ > parts() || shared_length >= (parts() * count + step_ - 1) / step_) return;
    shared_ = true;
    length_ = shared_length;
    origins_.clear();
    for (int64_t residue = 0; residue < step_; ++residue) origins_.push_back(residue);
  }

  int64_t parts() const { return static_cast<int64_t>(origins_.size()); }
  int64_t length() const { return length_; }  ///< of a part
  int64_t step() const { return step_; }
  /// The source coordinate of a part's first element, from that of position and offset 0.
  int64_t origin(int64_t part) const { return origins_[static_cast<std::size_t>(part)]; }
  /// Where a tap of this offset reads: in which part, and how far in it.
  int64_t part(int64_t offset) const { return shared_ ? offset % step_ : part_of(offset); }
  int64_t shift(int64_t offset) const { return shared_ ? offset / step_ : 0; }

 private:
  int64_t part_of(int64_t offset) const { return std::ranges::find(origins_, offset) - origins_.begin(); }

  int64_t step_, length_;
  bool shared_ = false;
  std::vector<int64_t> origins_;
};

/// The source planes of some channels that a box sees, with their padding:
/// [slice][channel][part of the depth, of the rows, of the columns][row][column].
class Planes {
 public:
  Planes(const Window& window, const Box& box)
      : window_(window),
        box_(box),
        depth_(window, 0, 1),
        rows_(window, 1, box.rows),
        columns_(window, 2, box.columns) {}

  /// Copies `channels` planes of each slice. `source` is channel 0's plane of image 0. `slack` more elements can be
  /// read.
  void fill(const float* source, int64_t image_pitch, int64_t channels, int64_t slack,
            std::vector<float>& memory) const {
    memory.resize(static_cast<std::size_t>(box_.slices * channels * channel_pitch() + slack));
    float* to = memory.data();
    const auto& extent = window_.source;
    for (int64_t slice = box_.slice; slice < box_.slice + box_.slices; ++slice) {
      const float* image = source + slice / window_.outputs[0] * image_pitch;
      const int64_t first = slice % window_.outputs[0] * window_.step[0] + window_.start[0];
      for (int64_t c = 0; c < channels; ++c, image += extent[0] * extent[1] * extent[2]) {
        for (int64_t part = 0; part < depth_.parts(); ++part, to += channel_pitch() / depth_.parts()) {
          const int64_t d = first + depth_.origin(part);
          copy_plane(d >= 0 && d < extent[0] ? image + d * extent[1] * extent[2] : nullptr, to);
        }
      }
    }
  }

  int64_t width() const { return columns_.length(); }  ///< from row to row
  int64_t channel_pitch() const {
    return depth_.parts() * rows_.parts() * columns_.parts() * rows_.length() * columns_.length();
  }

  /// Where the tap at offset 0 of each position reads, `channels` planes a slice.
  std::vector<int64_t> positions(int64_t channels) const {
    std::vector<int64_t> offsets;
    offsets.reserve(static_cast<std::size_t>(box_.positions()));
    for (int64_t slice = 0; slice < box_.slices; ++slice) {
      for (int64_t row = 0; row < box_.rows; ++row) {
        const int64_t first = slice * channels * channel_pitch() + row * width();
        for (int64_t column = 0; column < box_.columns; ++column) offsets.push_back(first + column);
      }
    }
    return offsets;
  }
  /// How far from there the taps of each channel read: channel by channel, tap by tap.
  std::vector<int64_t> products(int64_t channels) const {
    std::vector<int64_t> offsets;
    offsets.reserve(static_cast<std::size_t>(channels) * window_.taps.size());
    for (const auto& tap : window_.taps) {
      const int64_t part =
          (depth_.part(tap[0]) * rows_.parts() + rows_.part(tap[1])) * columns_.parts() + columns_.part(tap[2]);
      offsets.push_back((part * rows_.length() + rows_.shift(tap[1])) * width() + columns_.shift(tap[2]));
    }
    for (std::size_t i = 0; offsets.size() < static_cast<std::size_t>(channels) * window_.taps.size(); ++i) {
      offsets.push_back(offsets[i] + channel_pitch());
    }
    return offsets;
  }

 private:
  /// One plane, or zeros where `plane` is null.
  void copy_plane(const float* plane, float* to) const {
    const int64_t first_row = box_.row * window_.step[1] + window_.start[1];
    const int64_t first_column = box_.column * window_.step[2] + window_.start[2];
    for (int64_t h = 0; h < rows_.parts(); ++h) {
      for (int64_t w = 0; w < columns_.parts(); ++w) {
        for (int64_t i = 0; i < rows_.length(); ++i, to += width()) {
          const int64_t row = first_row + rows_.origin(h) + i * rows_.step();
          const bool inside = plane != nullptr && row >= 0 && row < window_.source[1];
          copy_row(inside ? plane + row * window_.source[2] : nullptr, first_column + columns_.origin(w), to);
        }
      }
    }
  }

  /// Every step-th element of a row from `first` on, or zeros where `row` is null.
  void copy_row(const float* row, int64_t first, float* to) const {
    const int64_t step = columns_.step(), last = window_.source[2] - 1 - first;
    const int64_t before = row == nullptr ? width() : first < 0 ? (step - 1 - first) / step : 0;
    const int64_t begin = std::min(before, width());
    const int64_t end = std::clamp<int64_t>(last < 0 ? 0 : last / step + 1, begin, width());
    constexpr int64_t kLong = 32;  // what is shorter is not worth the call of a copy
    if (begin > 0) std::fill(to, to + begin, 0.0F);
    if (step == 1 && end - begin >= kLong) {
      std::copy(row + first + begin, row + first + end, to + begin);
    } else {
      for (int64_t i = begin; i < end; ++i) to[i] = row[first + i * step];
    }
    if (end < width()) std::fill(to + end, to + width(), 0.0F);
  }

  const Window& window_;
  Box box_;
  AxisLayout depth_, rows_, columns_;
};

}  // namespace halo::cpu
