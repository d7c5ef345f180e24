#include "geometry.h"

#include <algorithm>

#include "../counts.h"

namespace halo::cuda::conv::depthwise {
namespace {

constexpr int64_t kLargest = int64_t{1} << 30;  // room for the halo and one block beyond the last column

constexpr int64_t kLongRowBytes = 512;  // of rows that are worth space between them

/// A number that is too large for the kernels stays so large that `tiles` tells.
FastDivide divider(int64_t by) {
  constexpr int64_t kMost = (int64_t{1} << 31) - 1;
  return FastDivide(static_cast<uint32_t>(std::min(by, kMost)));
}

bool passes_through(const ConvProblem& p, std::size_t axis) {
  return p.kernel[axis] == 1 && p.padding_before[axis] == 0 && p.input[axis] == p.output[axis];
}

MarchSide side(const ConvProblem::Extents& extents, const MarchShape& shape, bool depth_marches) {
  MarchSide out;
  const int64_t depth = extents[0], height = extents[1], width = extents[2];
  out.rows.width = to_int(width);
  out.slice = width;
  if (depth_marches) {
    out.rows.outer = to_int(depth);
    out.rows.inner = to_int(height);
    out.rows.outer_pitch = height * width;
    out.rows.inner_pitch = width;
    out.slice = depth * height * width;
  } else if (shape.march > 1) {
    out.rows.outer = to_int(height);
    out.rows.outer_pitch = width;
    out.slice = height * width;
  }
  return out;
}

/// Divides `g` into boxes of about `bytes`.
void fill_box(MarchGeometry& g, const MarchShape& shape, int64_t bytes, int size, bool weight, bool many_planes) {
  constexpr int64_t kRowBytes = 2304;
  const auto evenly = [](int64_t extent, int64_t most) { return divide_up(extent, divide_up(extent, most)); };
  const int64_t word = 4 / size, per_thread = weight ? 2 : 2 * word;  // columns
  int64_t words, inner = 1, strip = 1;                                // words: threads along the width
  if (shape.march == 1) {
    const int64_t tile = evenly(g.result.rows.width, std::max<int64_t>(1024, bytes / (weight ? 2 : 1) / size));
    strip = divide_up(divide_up(tile, per_thread * kMarchThreads), 4) * 4;  // whole rounds of the kernel
    words = divide_up(tile, per_thread * strip);
    if (words > 64) words = divide_up(words, 32) * 32;
    g.column_step = to_int(per_thread * words);
    g.column_tiles = divider(divide_up(g.result.rows.width, strip * per_thread * words));
  } else {
    words = divide_up(evenly(g.result.rows.width, kRowBytes / size), per_thread);
    g.column_tiles = divider(divide_up(g.result.rows.width, per_thread * words));
    // The rows that bring most results for each row copied.
    double best = 0;
    for (int64_t i = 1; i <= std::min(g.result.rows.inner, 16); ++i) {
      for (int64_t s = 1;; s += shape.march) {  // a whole number of unrolled steps
        const int64_t rows = (s + shape.march - 1) * (i + shape.inner - 1) + (weight ? s * i : 0);
        if (rows * (per_thread * words + shape.width - 1) * size > bytes && s * i > 1) break;
        const double strips = double(divide_up(g.result.rows.outer, s)) * double(divide_up(g.result.rows.inner, i));
        const double value = 1 / (strips * double(rows));
        if (value >= best) best = value, strip = s, inner = i;
        if (s >= g.result.rows.outer) break;
      }
    }
  }
  g.strip = to_int(strip);
  g.words = divider(words);
  g.step_columns = to_int(per_thread * words);
  g.inner = divider(inner);
  g.strips = divider(shape.march == 1 ? 1 : divide_up(g.result.rows.outer, strip));
  g.inner_tiles = divider(divide_up(g.result.rows.inner, inner));

  // Worth the space between rows if these are long, and if what is left of the box for them matters little.
  const bool few_taps = !weight || shape.march == 1 || shape.width <= 3;
  if (size == 4 && shape.inner == 1 && few_taps && g.result.rows.width * size >= kLongRowBytes) g.line = kBoxLine;
  const int64_t march_rows = shape.march == 1 ? 1 : strip + shape.march - 1;
  const int64_t result_rows = shape.march == 1 ? 1 : strip;
  const int64_t columns = (shape.march == 1 ? strip : 1) * per_thread * words;
  const auto boxes = [&](int64_t planes) {
    g.source_box = row_box(g.source.rows, planes, march_rows, inner + shape.inner - 1, columns + shape.width - 1, size,
                           -1, g.line);
    if (weight) g.result_box = row_box(g.result.rows, planes, result_rows, inner, columns, size, -1, g.line);
    return g.source_box.bytes + g.result_box.bytes;
  };
  const bool whole = g.strips.divisor * g.inner_tiles.divisor * g.column_tiles.divisor == 1;
  const int64_t planes = whole && many_planes ? std::clamp<int64_t>(bytes / boxes(1), 1, g.plane_count) : 1;
  boxes(planes);
  g.planes = to_int(planes);
  g.threads = planes * inner * words > 3 * kMarchThreads / 4 ? kMarchThreads : kMarchThreads / 2;
  g.plane_tiles = divider(divide_up(g.plane_count, planes));
  g.tiles = int64_t{g.column_tiles.divisor} * g.inner_tiles.divisor * g.strips.divisor * g.plane_tiles.divisor *
            g.outer_count;
}

}  // namespace

MarchShape march_shape(const ConvProblem& p) {
  for (std::size_t axis = 0; axis < 3; ++axis) {
    const bool unit = p.stride[axis] == 1 && (p.dilation[axis] == 1 || p.kernel[axis] == 1);
    if (!unit) return {0, 0, 0};
  }
  const int depth = to_int(p.kernel[0]), height = to_int(p.kernel[1]), width = to_int(p.kernel[2]);
  if (depth > 1) return {depth, height, width};
  if (!passes_through(p, 0)) return {0, 0, 0};
  if (height > 1) return {height, 1, width};
  if (!passes_through(p, 1)) return {0, 0, 0};
  return {1, 1, width};
}

ConvProblem depth_as_height(const ConvProblem& p) {
  if (p.kernel[0] == 1 || !passes_through(p, 1) || !passes_through(p, 2)) return p;
  ConvProblem flat = p;
  for (auto* of : {&flat.input, &flat.output}) *of = {1, (*of)[0], (*of)[1] * (*of)[2]};
  for (auto* of : {&flat.kernel, &flat.stride, &flat.dilation}) std::swap((*of)[0], (*of)[1]);
  for (auto* of : {&flat.padding_before, &flat.padding_after}) std::swap((*of)[0], (*of)[1]);
  return flat;
}

bool march_fits(const ConvProblem& p) {
  for (std::size_t axis = 0; axis < 3; ++axis) {
    if (std::max(p.input[axis], p.output[axis]) >= kLargest) return false;
  }
  return true;
}

namespace {

/// The geometry of `pass` but for how it is cut into blocks.
MarchGeometry whole_geometry(const ConvProblem& p, ConvPass pass) {
  const bool flipped = pass == ConvPass::BackwardInput, weight = pass == ConvPass::BackwardWeight;
  const MarchShape shape = march_shape(p);
  const bool depth_marches = p.kernel[0] > 1;
  MarchGeometry g;
  g.source = side(flipped ? p.output : p.input, shape, depth_marches);
  g.result = side(flipped ? p.input : p.output, shape, depth_marches);
  g.source.rows.elements = flipped ? p.y_numel() : p.x_numel();
  g.result.rows.elements = flipped ? p.x_numel() : p.y_numel();
  const auto pad = [&](std::size_t axis) {
    return to_int(flipped ? p.kernel[axis] - 1 - p.padding_before[axis] : p.padding_before[axis]);
  };
  g.pad_width = pad(2);
  g.pad_march = shape.march == 1 ? 0 : depth_marches ? pad(0) : pad(1);
  g.pad_inner = depth_marches ? pad(1) : 0;

  const int64_t fold = depth_marches ? 1 : shape.march > 1 ? p.output[0] : p.output[0] * p.output[1];
  g.fold = divider(fold);
  g.plane_count = p.batch * p.out_channels * fold;
  g.source.rows.plane_pitch = g.source.slice;
  g.result.rows.plane_pitch = g.result.slice;
  if (weight) {
    g.plane_count = fold > 1 ? fold : p.batch;
    g.outer_count = fold > 1 ? p.batch : 1;
    g.source.outer_pitch = p.in_channels * fold * g.source.slice;
    g.result.outer_pitch = p.out_channels * fold * g.result.slice;
    if (fold == 1) g.source.rows.plane_pitch = g.source.outer_pitch;
    if (fold == 1) g.result.rows.plane_pitch = g.result.outer_pitch;
  }
  return g;
}

}  // namespace

MarchGeometry march_geometry(const ConvProblem& p, ConvPass pass, int size) {
  const bool weight = pass == ConvPass::BackwardWeight;
  const MarchShape shape = march_shape(p);
  MarchGeometry g = whole_geometry(p, pass);
  // Shrinks boxes until there are enough blocks for every multiprocessor.
  constexpr int64_t kBlocksWanted = 132 * 8;
  const int64_t most = weight ? 72 << 10 : 44 << 10;  // three or five blocks of a multiprocessor
  for (int64_t bytes = most;; bytes /= 2) {
    fill_box(g, shape, bytes, size, weight, weight || p.out_channels == p.in_channels);
    const int64_t blocks = g.tiles * (weight ? p.out_channels : 1);
    if (blocks >= kBlocksWanted || bytes <= most / 8) return g;
  }
}

BandGeometry band_geometry(const ConvProblem& p, ConvPass pass) {
  constexpr int64_t kSize = 2, kRows = 16, kMostColumns = 1024, kBytes = 44 << 10;  // five blocks of a multiprocessor
  const MarchShape shape = march_shape(p);
  BandGeometry bands;
  bands.march = whole_geometry(p, pass);
  bands.width = shape.width;
  MarchGeometry& g = bands.march;
  const auto evenly = [](int64_t extent, int64_t most) { return divide_up(extent, divide_up(extent, most)); };
  const int64_t height = g.result.rows.outer, halo = shape.march - 1;
  const int64_t groups = divide_up(evenly(g.result.rows.width, kMostColumns), kBandColumns);
  const int64_t row_bytes = (groups * kBandColumns + kBandReach) * kSize + 32;
  const int64_t most_rows = std::max<int64_t>((kBytes / row_bytes - halo) / kRows * kRows, kRows);
  int64_t strip = evenly(height, most_rows);
  if (strip > kRows) strip = divide_up(strip, kRows) * kRows;
  bands.rows = to_int(std::min(strip, kRows));
  const int64_t parts = divide_up(strip, bands.rows), columns = groups * kBandColumns;
  g.strip = to_int(strip);
  g.step_columns = to_int(columns);
  g.inner = g.inner_tiles = divider(1);
  g.strips = divider(divide_up(height, strip));
  g.column_tiles = divider(divide_up(g.result.rows.width, columns));
  // Rows of whole lines: at whole or half lines of the box, without space between them.
  const int64_t source_bytes = g.source.rows.width * kSize;
  if (source_bytes >= kLongRowBytes) g.line = source_bytes % kBoxLine == 0 ? kBoxLine / 2 : kBoxLine;
  const auto box = [&](int64_t planes) {
    g.source_box = row_box(g.source.rows, planes, strip + halo, 1, columns + kBandReach, kSize, -1, g.line);
    return g.source_box.bytes;
  };
  const bool whole = g.strips.divisor * g.column_tiles.divisor == 1 && p.out_channels == p.in_channels;
  // Few enough slices that there are blocks for every multiprocessor.
  const int64_t planes =
      whole ? std::clamp<int64_t>(std::min<int64_t>(kBytes / box(1), g.plane_count / 1024), 1, g.plane_count) : 1;
  box(planes);
  g.planes = to_int(planes);
  g.threads = planes * groups * parts > 4 ? kMarchThreads : kMarchThreads / 2;
  g.plane_tiles = divider(divide_up(g.plane_count, planes));
  g.tiles = divide_up(g.plane_count, planes) * divide_up(height, strip) * divide_up(g.result.rows.width, columns);
  bands.groups = divider(groups);
  bands.parts = divider(parts);
  return bands;
}

namespace {

/// Elements of the widest copy, up to 16 bytes, that suits rows of `width` elements.
int copy_elements(int64_t width, int alignment) {
  int elements = alignment / 2;
  while (elements > 1 && width % elements != 0) elements /= 2;
  return elements;
}

}  // namespace

HalfWeightGeometry half_weight_geometry(const ConvProblem& p, int alignment) {
  constexpr int64_t kGroup = 8, kBlockRows = 16, kLongRow = 4096, kMostColumns = 1024, kBytes = 72 << 10;
  const MarchGeometry m = whole_geometry(p, ConvPass::BackwardWeight);
  HalfWeightGeometry g;
  g.width = to_int(p.kernel[2]);
  const bool pieces = m.result.rows.width >= kLongRow;
  const auto fill = [&](HalfWeightGeometry::Side& side, const MarchSide& from, int64_t channels) {
    side.row_pitch = from.rows.plane_pitch;
    side.plane_pitch = from.rows.plane_pitch;
    side.outer_pitch = from.outer_pitch;
    side.channel_pitch = from.outer_pitch / channels;
    side.height = pieces ? 1 : to_int(m.plane_count);
    side.width = from.rows.width;
    side.vector = copy_elements(side.width, alignment);
  };
  fill(g.x, m.source, p.in_channels);
  fill(g.y, m.result, p.out_channels);
  const auto before = [&] { return to_int(divide_up(m.pad_width + kLargest, g.x.vector) * g.x.vector - kLargest); };
  while (g.x.vector > 1 && before() - m.pad_width + p.kernel[2] > kGroup + 1) g.x.vector /= 2;
  if (g.x.vector < 2 || g.y.vector < 2) return g;  // no asynchronous copies of two bytes
  g.pad_columns = before();
  g.shift = g.pad_columns - m.pad_width;

  const auto evenly = [](int64_t extent, int64_t most) { return divide_up(extent, divide_up(extent, most)); };
  const int64_t width = g.y.width;
  const auto odd = [](int64_t groups) { return groups + 1 - groups % 2; };
  const int64_t slices = pieces ? m.plane_count * m.outer_count : m.outer_count;
  if (pieces) {
    const int64_t groups = odd(divide_up(evenly(width, 2 * kLongRow), kGroup * kBlockRows));
    const int64_t elements = kBlockRows * groups * kGroup;
    g.pitch = to_int(groups * kGroup * 2);
    g.column_blocks = to_int(groups);
    g.columns = to_int(elements);
    g.piece = to_int(groups * kGroup);
    g.x.row_pitch = g.y.row_pitch = g.piece;
    g.x.rows = g.y.rows = kBlockRows;
    g.y.bytes = to_int(elements * 2);
    g.x.bytes = to_int((elements + kGroup) * 2);
  } else {
    if (g.y.height < kBlockRows / 2) return g;
    const int64_t groups = divide_up(evenly(width, kMostColumns), kGroup);
    g.pitch = to_int(odd(groups + 1) * kGroup * 2);
    g.column_blocks = to_int(groups);
    g.columns = to_int(groups * kGroup);
    int64_t blocks = 8;
    const auto enough = [&] {
      const int64_t tiles = divide_up(g.y.height, blocks * kBlockRows) * divide_up(width, g.columns);
      return p.out_channels * slices * tiles >= 132 * 8;
    };
    while (blocks > 1 &&
           (2 * blocks * kBlockRows * g.pitch > kBytes || (blocks - 1) * kBlockRows >= g.y.height || !enough()))
      blocks /= 2;
    g.row_blocks = to_int(blocks);
    g.strip = g.x.rows = g.y.rows = to_int(blocks * kBlockRows);
    g.x.bytes = g.y.bytes = g.strip * g.pitch;
  }
  g.y.vectors = to_int(g.column_blocks * kGroup / g.y.vector);
  g.x.vectors = to_int((g.column_blocks + 1) * kGroup / g.x.vector);
  const int64_t column_tiles = divide_up(width, g.columns), strips = divide_up(g.y.height, g.strip);
  g.column_tiles = divider(column_tiles);
  g.strips = divider(strips);
  g.planes = divider(pieces ? m.plane_count : 1);
  g.splits = column_tiles * strips * slices;
  return g;
}

}  // namespace halo::cuda::conv::depthwise
