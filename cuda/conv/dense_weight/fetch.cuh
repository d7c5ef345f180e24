// The warps of the dense weight gradient's kernel that keep the copy engine busy: one fetches the gathered operand's
// lines, one the streamed operand's boxes. Each runs as far ahead as its ring allows.
#pragma once

#include "common.cuh"

namespace halo::cuda::conv::dense_weight {

/// What the loading warps know of a stage.
template <class Tile>
struct Loader {
  static constexpr int kElement = Tile::kElement, kGranule = Tile::kGranule, kBankRow = 8 * kGranule;
  const DenseWeightParams& p;
  const DenseWeightGeometry& g;
  const Block& block;
  const Shared& shared;

  __device__ __forceinline__ Loader(const DenseWeightParams& params, const Block& b, const Shared& s)
      : p(params), g(params.geometry), block(b), shared(s) {}

  /// Flat channel of the block's first one in a batch.
  __device__ __forceinline__ int first_gathered(const Cursor& at) const {
    return (at.batch * g.groups + block.group) * g.group_channels + block.first_channel;
  }
  __device__ __forceinline__ int first_streamed(const Cursor& at) const {
    return (at.batch * g.groups + block.group) * g.streamed_channels + block.first_column;
  }
  __device__ __forceinline__ int left_edge(const Cursor& at) const {
    return (at.column_block * g.row_steps * 8 - g.lead) * g.stride[2] - g.pad[2];
  }
  /// Position in its plane of a stored line's first word, and whether the line (not the word) is inside the tensor.
  __device__ __forceinline__ bool gathered_line(const Cursor& at, int plane, int row, int& flat) const {
    const int z = at.depth * g.stride[0] - g.pad[0] + plane * g.line_step[0];
    const int y = at.row_block * g.step_rows * g.stride[1] - g.pad[1] + row * g.line_step[1];
    flat = (z * g.extent[1] + y) * g.extent[2] + left_edge(at);
    return static_cast<unsigned>(z) < static_cast<unsigned>(g.extent[0]) &&
           static_cast<unsigned>(y) < static_cast<unsigned>(g.extent[1]);
  }
  __device__ __forceinline__ bool streamed_line(const Cursor& at, int row, int tap, int& flat) const {
    const int shift = g.fold_pad - tap * g.fold_dilation;
    const int h = at.row_block * g.step_rows + row;
    const int z = at.depth + (g.fold_axis == 0 ? shift : 0), y = h + (g.fold_axis == 1 ? shift : 0);
    flat = (z * g.streamed_extent[1] + y) * g.streamed_extent[2] + at.column_block * g.row_steps * 8;
    return row < g.step_rows && h < g.positions[1] &&
           static_cast<unsigned>(z) < static_cast<unsigned>(g.streamed_extent[0]) &&
           static_cast<unsigned>(y) < static_cast<unsigned>(g.streamed_extent[1]);
  }
  /// Index in the tensor, modulo a granule, of position `flat` of a channel; `base` is the tensor's own, from its map's
  /// base.
  static __device__ __forceinline__ int shift(const PlaneMatrix& m, int channel, int flat, int base) {
    constexpr int kMask = kGranule - 1;
    return ((channel & kMask) * static_cast<int>(m.plane & kMask) + flat + base) & kMask;
  }
  __device__ __forceinline__ int wrapped(int ring_line) const {
    return ring_line >= g.ring_lines ? ring_line - g.ring_lines : ring_line;
  }

  static __device__ __forceinline__ void fetch_box(uint32_t to, const CUtensorMap* map, const PlaneMatrix& m,
                                                   int channel, bool inside, int at, int early, uint32_t barrier) {
    constexpr int kOutside = (1 << 30) + 256;  // a coordinate beyond any row: the box is all zeros
    const int residue = channel & (m.period - 1);
    const int corner = ((residue * static_cast<int>(m.plane) + at) & -kGranule) - early;
    copy_box(to, map, inside ? corner : kOutside, channel >> m.period_log, barrier);
  }
};

/// One warp: a box a lane.
template <class Tile>
struct LineFetcher : Loader<Tile> {
  using Base = Loader<Tile>;
  using Base::Base, Base::block, Base::g, Base::kBankRow, Base::kElement, Base::p, Base::shared;

  __device__ __forceinline__ void run(int lane) {
    const PlaneMatrix& m = g.gathered;
    Cursor at(g, block.first_stage);
    Slot ready, emptied;
    int done = 0, done_row = at.row_block;  // stages done, and the row block of the one after them
    int free = g.ring_lines, next_line = 0;
    const int first_own_line = (lane >> m.period_log) / g.planes;
    for (int stage = 0; stage < block.stages; ++stage, at.next(g), ready.next(g.tiles + g.ahead)) {
      const int lines = stage == 0 || at.row_block == 0 ? g.lines : g.fresh;
      while (done <= stage - (g.tiles + g.ahead) || free < lines) {
        barrier_wait(shared.empty(emptied.index), emptied.parity);
        emptied.next(g.tiles + g.ahead);
        ++done;
        if (++done_row == g.row_blocks) done_row = 0;
        free += done_row == 0 ? g.lines : g.fresh;  // what no later stage needs
      }
      const uint32_t barrier = shared.lines_ready(ready.index);
      const int boxes = g.planes * lines * m.period, first = this->first_gathered(at);
      if (lane == 0) barrier_expect(barrier, boxes * m.box_channels * m.box_words * kElement);
      __syncwarp();
      int own_line = first_own_line;
      for (int i = lane; i < boxes; i += 32) {
        const int residue = i & (m.period - 1), box = i >> m.period_log;
        if (i >= 32) own_line = box / g.planes;
        const int plane = box - own_line * g.planes;
        int flat;
        const bool inside = this->gathered_line(at, plane, g.lines - lines + own_line, flat);
        const int begin = (this->wrapped(next_line + own_line) * g.planes + plane) * g.line_pitch,
                  early = begin % kBankRow;
        const uint32_t to = shared.gathered() + (begin - early + residue * m.box_pitch) * kElement;
        this->fetch_box(to, &p.gathered_map, m, first + residue, inside, flat + p.gathered_shift, early, barrier);
      }
      next_line = this->wrapped(next_line + lines);
      free -= lines;
    }
  }
};

/// One warp: a box a lane.
template <class Tile>
struct BoxFetcher : Loader<Tile> {
  using Base = Loader<Tile>;
  using Base::Base, Base::block, Base::g, Base::kElement, Base::p, Base::shared;

  /// Which streamed box that is: of which line of the stage and folded tap, and which of theirs.
  struct Place {
    int line, tap, box;
    __device__ __forceinline__ Place(const DenseWeightGeometry& g, int i, int of_line) {
      const int row = i / of_line;
      line = row / g.fold_taps;
      tap = row - line * g.fold_taps;
      box = i - row * of_line;
    }
  };

  __device__ __forceinline__ void run(int lane) {
    const PlaneMatrix& m = g.streamed;
    Cursor at(g, block.first_stage);
    Slot slot, emptied;
    slot.parity = 1;  // a fresh barrier counts as emptied
    // Boxes of a line: of 32 positions each, or of the channels of one residue.
    const int of_line = g.direct ? g.row_steps / 4 : m.period, boxes = g.raw_lines() * of_line;
    const int bytes = boxes * m.box_channels * m.box_words * kElement;
    const Place own(g, lane, of_line);  // most stages have no more boxes than lanes
    for (int stage = 0; stage < block.stages; ++stage, at.next(g), slot.next(g.box_slots())) {
      if (!g.direct) {
        barrier_wait(shared.raw_empty(slot.index), slot.parity);
      } else if (stage >= g.high_slots) {  // the consumers are done with the stage that had this tile
        barrier_wait(shared.empty(emptied.index), emptied.parity);
        emptied.next(g.tiles + g.ahead);
      }
      const uint32_t barrier = shared.boxes_ready(slot.index);
      if (lane == 0) barrier_expect(barrier, bytes);
      __syncwarp();
      const int first = this->first_streamed(at);
      for (int i = lane; i < boxes; i += 32) {
        const auto [line, tap, box] = i < 32 ? own : Place(g, i, of_line);
        int flat;
        const bool inside = this->streamed_line(at, line, tap, flat);
        flat += p.streamed_shift;
        if (g.direct) {
          const int chunk = line * of_line + box;
          const uint32_t to =
              shared.high(slot.index) + chunk * chunk_bytes(Tile::kColumns) + tap * m.box_channels * 128;
          this->fetch_box(to, &p.streamed_map, m, first, inside, flat + box * 32, 0, barrier);
        } else {
          this->fetch_box(shared.raw(slot.index) + i * m.box_pitch * kElement, &p.streamed_map, m, first + box, inside,
                          flat, 0, barrier);
        }
      }
    }
  }
};

}  // namespace halo::cuda::conv::dense_weight
