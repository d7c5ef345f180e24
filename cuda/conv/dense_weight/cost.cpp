#include "cost.h"

#include <algorithm>
#include <array>

namespace halo::cuda::conv {
namespace {

using Geometry = DenseWeightGeometry;

int row_words(const Geometry& g, int row) {
  const int tap = row % g.taps;
  return g.gathered.channel_word(row / g.taps) + tap / (g.row_taps[2] * g.row_taps[1]) * g.tap_offset[0] +
         tap / g.row_taps[2] % g.row_taps[1] * g.tap_offset[1] + tap % g.row_taps[2] * g.tap_offset[2];
}

/// Multiprocessor cycles of one k8 step of one 64-row tile, as measured.
double tile_step_cycles(int columns, bool split) {
  if (split) return columns > 64 ? 1.4 * columns : std::max(1.5 * columns, 34 + 0.875 * columns);
  return std::max(0.555 * columns, 26.0);
}

/// Tiles that the time of a stage stands for: wide ones leave a warpgroup idle where there are fewer than three.
double tiles_in_time(int columns, int tiles, bool split) {
  return split || columns <= 64 || tiles > 2 ? tiles : tiles + 0.3 * (kConsumers - tiles);
}

/// Cycles that making one stage ready takes a converting warp, or both together: so much for a batch of three or four
/// pieces of 16 bytes a thread, and some for each stage and each line of each residue.
double convert_cycles(const Geometry& g, int tile_columns, bool split) {
  if (g.direct) return 900 + tile_columns * g.steps / 2.0 / g.converters() * (split ? 300 : 130);
  const int width = g.row_steps > 4 ? 16 : g.row_steps > 2 ? 8 : 2 * g.row_steps;
  const int batch = tile_columns % 3 == 0 ? 3 : 4, together = batch * g.converters() / width;
  const int batches = (g.streamed.box_channels + together - 1) / together;
  return 1000 + g.raw_lines() * g.streamed.period * (600 + double(batches) * batch * (split ? 145 : 70));
}

}  // namespace

int bank_cycles(const Geometry& g, int fragments) {
  int cycles = 0;
  const int rows = std::min(g.rows, g.channels * g.taps);
  for (int fragment = 0; fragment < fragments; ++fragment) {
    std::array<int, 32> words;
    std::array<int, 32> load{};
    int worst = 1;
    for (int i = 0; i < 32; ++i) {
      const int row = std::min(fragment * 8 + i / 4, rows - 1);
      const int word = (row_words(g, row) + i % 4 * g.position_words) * g.element() / 4;  // of a bank
      words[static_cast<std::size_t>(i)] = word;
      const auto seen = words.begin() + i;
      if (std::find(words.begin(), seen, word) == seen)
        worst = std::max(worst, ++load[static_cast<std::size_t>(word % 32)]);
    }
    cycles += worst;
  }
  return cycles;
}

double stage_cycles(const Geometry& g, int tile_columns, int tiles, bool split) {
  // What a stage costs whatever its size. Where multiplying takes long, both converting warps at one stage are a little
  // better; else turns are.
  const bool slow = split && tile_columns <= 64 && tiles > kConsumers;
  const double fixed = 900 + (slow ? (g.turns ? 100 : 0) : (g.turns ? 0 : 250));
  // Sums move to registers after 4 steps, or 2 or 1 at the end of a stage: short groups cost more.
  const int groups = g.steps / 4 + (g.steps & 2) / 2 + (g.steps & 1);
  const double halves = g.element() == 2 ? 1.35 : 1;  // are read one by one, two of a bank
  const double multiply = fixed + g.steps * tiles_in_time(tile_columns, tiles, split) *
                                      tile_step_cycles(tile_columns, split) * halves * (g.walks() ? 1.0 : 1.25) *
                                      (1 + 0.25 * (4.0 * groups / g.steps - 1));
  const double boxes = static_cast<double>(g.planes) * g.fresh * g.gathered.period;
  const double raw_boxes = static_cast<double>(g.raw_lines()) * (g.direct ? g.row_steps / 4 : g.streamed.period);
  const double convert = convert_cycles(g, tile_columns, split);
  const double ready = convert / (g.turns ? 2 : 1), pipe = 0.9 * (convert + multiply) / g.tiles;
  // A stage's copies take kLatency; `ahead` + 1 of them run at once, unless the one is awaited before it is converted.
  constexpr double kLatency = 2500;
  const double wait = g.ahead == 0 ? 2 * kLatency : kLatency / (g.ahead + 1);
  const double load =
      std::max({ready + (g.ahead == 0 ? 2 * kLatency : 0.0), pipe, wait, 600 + 60 * std::max(boxes, raw_boxes)});
  const double lines = boxes * g.gathered.box_channels, raw = raw_boxes * g.streamed.box_channels;
  const double elements = g.steps * 8.0 * tile_columns, line_bytes = g.gathered.box_words * g.element();
  const double shared = g.steps * tiles * (16.0 + (split ? 3 : 1) * tile_columns / 4.0) +
                        elements * (split ? 16 : 12) / 128 + lines * line_bytes / 128;
  // The copy engine takes a few cycles for each line of a box; the L2 cache reads sectors of 32 bytes, one more where a
  // line is not aligned; memory likes lines long. Row blocks share the streamed operand's reads from memory, and folded
  // taps read it again from the L2 cache.
  const double raw_bytes = raw * (g.streamed.box_words * g.element() + (g.streamed_shift ? 16 : 0));
  const double copy = std::max((lines + raw) * 4, (lines * (line_bytes + 32) + raw_bytes) / 24);
  const double memory = (lines * (line_bytes + 192) + raw_bytes / (g.m_blocks * g.fold_taps)) / 26;
  return std::max({multiply, load, shared, copy, memory}) + 0.1 * memory;
}

}  // namespace halo::cuda::conv
