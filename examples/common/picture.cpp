// Small pictures without a plotting library: a raster, a 5x7 font, lines.
#include <halo/core/tensor.h>
#include <halo/data/images.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "run_folder.h"

namespace example {
namespace {

struct Colour {
  uint8_t r, g, b;
};
constexpr Colour kInk{40, 44, 52}, kGrid{225, 228, 232};
constexpr std::array<Colour, 6> kPalette{
    {{31, 119, 180}, {214, 96, 34}, {44, 140, 60}, {150, 60, 160}, {190, 40, 60}, {90, 90, 90}}};

/// Rows of five bits, top to bottom, for the characters that labels use.
struct Glyph {
  char c;
  std::array<uint8_t, 7> rows;
};
constexpr Glyph kFont[] = {
    {'0', {14, 17, 19, 21, 25, 17, 14}}, {'1', {4, 12, 4, 4, 4, 4, 14}},    {'2', {14, 17, 1, 6, 8, 16, 31}},
    {'3', {31, 2, 4, 2, 1, 17, 14}},     {'4', {2, 6, 10, 18, 31, 2, 2}},   {'5', {31, 16, 30, 1, 1, 17, 14}},
    {'6', {6, 8, 16, 30, 17, 17, 14}},   {'7', {31, 1, 2, 4, 8, 8, 8}},     {'8', {14, 17, 17, 14, 17, 17, 14}},
    {'9', {14, 17, 17, 15, 1, 2, 12}},   {'a', {0, 0, 14, 1, 15, 17, 15}},  {'b', {16, 16, 30, 17, 17, 17, 30}},
    {'c', {0, 0, 14, 16, 16, 17, 14}},   {'d', {1, 1, 15, 17, 17, 17, 15}}, {'e', {0, 0, 14, 17, 31, 16, 14}},
    {'f', {6, 9, 8, 28, 8, 8, 8}},       {'g', {0, 15, 17, 17, 15, 1, 14}}, {'h', {16, 16, 22, 25, 17, 17, 17}},
    {'i', {4, 0, 12, 4, 4, 4, 14}},      {'j', {2, 0, 6, 2, 2, 18, 12}},    {'k', {16, 16, 18, 20, 24, 20, 18}},
    {'l', {12, 4, 4, 4, 4, 4, 14}},      {'m', {0, 0, 26, 21, 21, 17, 17}}, {'n', {0, 0, 22, 25, 17, 17, 17}},
    {'o', {0, 0, 14, 17, 17, 17, 14}},   {'p', {0, 0, 30, 17, 30, 16, 16}}, {'q', {0, 0, 15, 17, 15, 1, 1}},
    {'r', {0, 0, 22, 25, 16, 16, 16}},   {'s', {0, 0, 14, 16, 14, 1, 30}},  {'t', {8, 8, 28, 8, 8, 9, 6}},
    {'u', {0, 0, 17, 17, 17, 19, 13}},   {'v', {0, 0, 17, 17, 17, 10, 4}},  {'w', {0, 0, 17, 17, 21, 21, 10}},
    {'x', {0, 0, 17, 10, 4, 10, 17}},    {'y', {0, 0, 17, 17, 15, 1, 14}},  {'z', {0, 0, 31, 2, 4, 8, 31}},
    {'.', {0, 0, 0, 0, 0, 12, 12}},      {'-', {0, 0, 0, 31, 0, 0, 0}},     {'+', {0, 4, 4, 31, 4, 4, 0}},
    {'(', {2, 4, 8, 8, 8, 4, 2}},        {')', {8, 4, 2, 2, 2, 4, 8}},      {'/', {1, 1, 2, 4, 8, 16, 16}},
    {',', {0, 0, 0, 0, 12, 4, 8}},       {'%', {24, 25, 2, 4, 8, 19, 3}},   {':', {0, 12, 12, 0, 12, 12, 0}},
};

class Raster {
 public:
  Raster(int64_t width, int64_t height)
      : width_(width), height_(height), image_(halo::full({3, height, width}, 255, {.dtype = halo::uint8})) {}

  void dot(int64_t x, int64_t y, Colour c) {
    if (x < 0 || x >= width_ || y < 0 || y >= height_) return;
    uint8_t* at = image_.data<uint8_t>() + y * width_ + x;
    at[0] = c.r;
    at[width_ * height_] = c.g;
    at[2 * width_ * height_] = c.b;
  }

  void line(double x0, double y0, double x1, double y1, Colour c, int thickness) {
    const int steps = std::max(1, static_cast<int>(std::ceil(std::max(std::abs(x1 - x0), std::abs(y1 - y0)))));
    for (int i = 0; i <= steps; ++i) {
      const double t = static_cast<double>(i) / steps;
      for (int dy = 0; dy < thickness; ++dy) {
        for (int dx = 0; dx < thickness; ++dx)
          dot(std::lround(x0 + t * (x1 - x0)) + dx, std::lround(y0 + t * (y1 - y0)) + dy, c);
      }
    }
  }

  /// Lower case only; 12 pixels a character at scale 2.
  void text(int64_t x, int64_t y, std::string_view s, Colour c) {
    constexpr int64_t kScale = 2;
    for (char ch : s) {
      for (const Glyph& g : kFont) {
        if (g.c != static_cast<char>(std::tolower(static_cast<unsigned char>(ch)))) continue;
        for (int64_t row = 0; row < 7 * kScale; ++row) {
          for (int64_t column = 0; column < 5 * kScale; ++column) {
            if (((g.rows[static_cast<std::size_t>(row / kScale)] >> (4 - column / kScale)) & 1) != 0)
              dot(x + column, y + row, c);
          }
        }
      }
      x += 6 * kScale;
    }
  }

  const halo::Tensor& image() const { return image_; }

 private:
  int64_t width_, height_;
  halo::Tensor image_;
};

struct Range {
  double low = INFINITY, high = -INFINITY;
  void add(double v) {
    low = std::min(low, v);
    high = std::max(high, v);
  }
  double place(double v) const { return high > low ? (v - low) / (high - low) : 0.5; }
};

std::string number(double v) {
  char text[32];
  std::snprintf(text, sizeof text, std::abs(v) >= 100 ? "%.0f" : "%.3g", v);
  return text;
}

/// A centred running mean over a fiftieth of the points.
std::vector<std::pair<double, double>> smooth(const std::vector<std::pair<double, double>>& points) {
  const auto n = static_cast<int64_t>(points.size()), half = n / 100;
  std::vector<std::pair<double, double>> result;
  for (int64_t i = 0; i < n; ++i) {
    double sum = 0;
    const int64_t begin = std::max<int64_t>(0, i - half), end = std::min(n, i + half + 1);
    for (int64_t k = begin; k < end; ++k) sum += points[static_cast<std::size_t>(k)].second;
    result.emplace_back(points[static_cast<std::size_t>(i)].first, sum / static_cast<double>(end - begin));
  }
  return result;
}

Colour lighter(Colour c) {
  const auto mix = [](uint8_t v) { return static_cast<uint8_t>(v + (255 - v) * 7 / 10); };
  return {mix(c.r), mix(c.g), mix(c.b)};
}

}  // namespace

void write_chart(const std::string& path, const std::string& title, const std::string& x_label,
                 const std::vector<Curve>& curves) {
  constexpr int64_t kWidth = 960, kHeight = 540, kLeft = 90, kRight = 30, kTop = 50, kBottom = 60;
  Range xs, ys;
  for (const Curve& curve : curves) {
    for (const auto& [x, y] : curve.points) {
      xs.add(x);
      ys.add(y);
    }
  }
  Raster raster(kWidth, kHeight);
  if (!(xs.low <= xs.high)) xs = ys = {0, 1};
  const auto px = [&](double x) { return kLeft + xs.place(x) * (kWidth - kLeft - kRight); };
  const auto py = [&](double y) { return kHeight - kBottom - ys.place(y) * (kHeight - kTop - kBottom); };
  raster.text(kLeft, 16, title, kInk);
  constexpr int kTicks = 5;
  for (int i = 0; i <= kTicks; ++i) {
    const double x = xs.low + (xs.high - xs.low) * i / kTicks, y = ys.low + (ys.high - ys.low) * i / kTicks;
    raster.line(kLeft, py(y), kWidth - kRight, py(y), kGrid, 1);
    raster.text(8, static_cast<int64_t>(py(y)) - 7, number(y), kInk);
    raster.text(static_cast<int64_t>(px(x)) - 20, kHeight - kBottom + 10, number(x), kInk);
  }
  raster.text(kWidth / 2 - 6 * static_cast<int64_t>(x_label.size()), kHeight - 24, x_label, kInk);
  int64_t legend = kTop;
  for (std::size_t k = 0; k < curves.size(); ++k) {
    const Colour colour = kPalette[k % kPalette.size()];
    const auto draw = [&](const std::vector<std::pair<double, double>>& points, Colour c, int thickness) {
      for (std::size_t i = 1; i < points.size(); ++i) {
        raster.line(px(points[i - 1].first), py(points[i - 1].second), px(points[i].first), py(points[i].second), c,
                    thickness);
      }
    };
    draw(curves[k].points, lighter(colour), 1);
    draw(smooth(curves[k].points), colour, 2);
    raster.line(kWidth - 260, static_cast<double>(legend) + 7, kWidth - 230, static_cast<double>(legend) + 7, colour,
                3);
    raster.text(kWidth - 220, legend, curves[k].label, kInk);
    legend += 24;
  }
  raster.line(kLeft, kTop, kLeft, kHeight - kBottom, kInk, 1);
  raster.line(kLeft, kHeight - kBottom, kWidth - kRight, kHeight - kBottom, kInk, 1);
  halo::data::write_png(path, raster.image());
}

void write_filters(const std::string& path, const halo::Tensor& weight, int64_t zoom) {
  const int64_t filters = weight.size(0), channels = weight.size(1), height = weight.size(2), width = weight.size(3);
  const auto columns = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(filters) * 1.5)));
  const int64_t rows = (filters + columns - 1) / columns, cell_h = height * zoom + zoom, cell_w = width * zoom + zoom;
  Raster raster(columns * cell_w + zoom, rows * cell_h + zoom);
  const auto values = weight.to_vector<float>();
  const auto at = [&](int64_t k, int64_t c, int64_t y, int64_t x) {
    return values[static_cast<std::size_t>(((k * channels + c) * height + y) * width + x)];
  };
  for (int64_t k = 0; k < filters; ++k) {
    Range range;
    for (int64_t i = 0; i < channels * height * width; ++i)
      range.add(values[static_cast<std::size_t>(k * channels * height * width + i)]);
    for (int64_t y = 0; y < height * zoom; ++y) {
      for (int64_t x = 0; x < width * zoom; ++x) {
        std::array<double, 3> rgb{};
        for (int64_t c = 0; c < 3; ++c) {
          double v = 0;
          if (channels == 3) {
            v = at(k, c, y / zoom, x / zoom);
          } else {
            for (int64_t all = 0; all < channels; ++all)
              v += at(k, all, y / zoom, x / zoom) / static_cast<double>(channels);
          }
          rgb[static_cast<std::size_t>(c)] = 255 * std::clamp(range.place(v), 0.0, 1.0);
        }
        raster.dot(zoom + k % columns * cell_w + x, zoom + k / columns * cell_h + y,
                   {static_cast<uint8_t>(rgb[0]), static_cast<uint8_t>(rgb[1]), static_cast<uint8_t>(rgb[2])});
      }
    }
  }
  halo::data::write_png(path, raster.image());
}

}  // namespace example
