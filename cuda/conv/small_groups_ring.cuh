// Forward and backward_input of convolutions with few channels a group, tiles in a ring.
//
// A block owns a group and walks over boxes of positions. The source of the next boxes arrives in a ring of tiles in
// shared memory while each warp multiplies 16-position by 8-channel tiles on the tensor cores: the A operand is
// gathered from the tile at the offset of each tap and channel, the B operand is the weight. A unit of the sum is four
// pairs of tap and source channel; a product takes two units. All width phases of a position are finished by the same
// warp, which then writes whole runs of the result through its own staging buffer.
#pragma once

#include "../device/activation.cuh"
#include "plain_sum.cuh"
#include "small_groups_ring.h"
#include "small_groups_tile.cuh"
#include "tile_ring.cuh"

namespace halo::cuda::conv::small_groups {

inline constexpr int kRingThreads = (12 + kRingHelpers) * 32;

/// What a lane reads of the weights for a pair of units and a column tile: two numbers, and their low parts.
template <bool Split>
struct WeightPair {
  static constexpr int kParts = Split ? 2 : 1;
  static constexpr int kWords = 2 * kParts;
  static constexpr int kTileBytes = 32 * kWords * 4;
};

/// The tables of a block. `sources`: bytes from the tile's first element to what lane % 4 reads for a unit, [lane % 4]
/// [unit]; `weights` as the B operand reads them, [unit / 2][result tile][lane][parts][unit % 2] with lane 4 * result +
/// source; `starts`: the first unit of each phase (width fastest). A phase's taps and channels are laid one after the
/// other and filled up to whole promotions with weights of zero.
template <bool Split, class T>
__device__ void fill_tables(float* weights, int* sources, int* starts, const RingPlan& plan, const T* weight,
                            int results, int warp) {
  using Pair = WeightPair<Split>;
  const GroupProblem& p = plan.problem;
  const TilePitch<T> pitch(plan.tile.box);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool chunked = plan.chunks > 1;
  int phase = 0, start = 0;
  for (int d = 0; d < p.phases[0] * plan.chunks; ++d) {
    for (int h = 0; h < p.phases[1]; ++h) {
      for (int w = 0; w < p.phases[2]; ++w) {
        const int heights = p.taps[1].count[h], widths = p.taps[2].count[w];
        const int products = (chunked ? 1 : p.taps[0].count[d]) * heights * widths * p.source_channels;
        const int units = (products + 4 * kPromoteUnits - 1) / (4 * kPromoteUnits) * kPromoteUnits;
        if (threadIdx.x == 0) starts[phase++] = start;
        for (int i = warp; i < units; i += plan.warps) {
          const int unit = start + i;
          const bool exists = i * 4 + lane % 4 < products;
          const int product = exists ? i * 4 + lane % 4 : 0;
          const int channel = product % p.source_channels;
          int tap = product / p.source_channels;
          const int at_w = tap % widths;
          tap /= widths;
          const int at_h = tap % heights;
          const int at_d = tap / heights;
          const int depth_tap = chunked ? d : p.taps[0].tap[d][at_d], depth = chunked ? 0 : p.taps[0].offset[d][at_d];
          const int source = channel * pitch.channel + depth * pitch.depth + p.taps[1].offset[h][at_h] * pitch.height +
                             p.taps[2].offset[w][at_w];
          if (lane < 4) sources[lane * plan.unit_pitch + unit] = source * static_cast<int>(sizeof(T));
          const int flat =
              depth_tap * p.tap_pitch[0] + p.taps[1].tap[h][at_h] * p.tap_pitch[1] + p.taps[2].tap[w][at_w];
          for (int tile = 0; tile < plan.result_tiles; ++tile) {
            const int result = tile * 8 + lane / 4;
            Operand<1, Split> value;
            value.set(0,
                      exists && result < results
                          ? device::to_accumulator(weight[result * p.weight_result + channel * p.weight_source + flat])
                          : 0.0f);
            float* to = weights + ((unit / 2 * plan.result_tiles + tile) * 32 + lane) * Pair::kWords + unit % 2;
            to[0] = __uint_as_float(value.high[0]);
            if constexpr (Split) to[2] = __uint_as_float(value.low[0]);
          }
        }
        start += units;
      }
    }
  }
  if (threadIdx.x == 0) starts[phase] = start;
  // sum_units reads one promotion too many.
  if (warp == 0 && lane < 4 * kPromoteUnits)
    sources[lane / kPromoteUnits * plan.unit_pitch + start + lane % kPromoteUnits] = 0;
}

/// Replaces results of one segment that the split operands made infinite or NaN. The warp shares the work. `stage`:
/// `columns` results of each channel from `channel` of image `image` on, the first of them at position `row`.
template <class T>
__device__ __noinline__ void repair(float* stage, int stage_pitch, int channels, int columns,
                                    const PlainSumOf<T>& plain, int64_t image, int64_t channel, int64_t row) {
  for (int at = static_cast<int>(threadIdx.x % 32); at < channels * columns; at += 32) {
    float& value = stage[at / columns * stage_pitch + at % columns];
    if (!(fabsf(value) < INFINITY)) value = plain.at(image, channel + at / columns, row + at % columns);
  }
}

/// The source of chunk `chunk` of tile `index` of one group.
template <class T>
__device__ __forceinline__ BoxPlace<T> ring_source(const RingPlan& plan, const T* data, int group, int64_t index,
                                                   int chunk) {
  const GroupProblem& p = plan.problem;
  const TilePlace place = tile_place(plan.tiles, plan.tile.positions, static_cast<uint32_t>(index));
  BoxPlace<T> source = tile_source(p, place, data, int64_t{group} * p.source_channels, p.source_channels);
  const int depth = plan.chunks > 1 ? p.taps[0].offset[0][chunk] : 0;
  source.outer += depth;
  source.corner += depth * p.source_rows.outer_pitch;
  return source;
}

/// The operands of one pair of units.
template <bool Split, class T, int RowTiles, int ColumnTiles>
struct UnitPair {
  static constexpr bool kWeightsAhead = ColumnTiles < 4;  // more do not fit in registers beside the sums

  T a[RowTiles][4];
  Operand<2, Split> b[ColumnTiles];

  /// Starts to load them. `tile`: bytes from `shared` to what the lane reads of each row tile; `eight`: to what it
  /// reads eight positions on; `weights`: to its weights of the first column tile.
  __device__ __forceinline__ void load(const unsigned char* shared, int2 sources, const int (&tile)[RowTiles],
                                       int eight, int weights) {
#pragma unroll
    for (int j = 0; j < RowTiles; ++j) {
      const unsigned char* one = shared + (tile[j] + sources.x);
      const unsigned char* two = shared + (tile[j] + sources.y);
      a[j][0] = *reinterpret_cast<const T*>(one);
      a[j][1] = *reinterpret_cast<const T*>(one + eight);
      a[j][2] = *reinterpret_cast<const T*>(two);
      a[j][3] = *reinterpret_cast<const T*>(two + eight);
    }
    if constexpr (kWeightsAhead) load_weights(shared, weights);
  }

  /// Adds the products to `part`, or sets it where First. `weights` as for `load`.
  template <bool First>
  __device__ __forceinline__ void multiply(float (&part)[RowTiles][ColumnTiles][4], const unsigned char* shared,
                                           int weights) {
    if constexpr (!kWeightsAhead) load_weights(shared, weights);
    Operand<4, Split> rows[RowTiles];
#pragma unroll
    for (int j = 0; j < RowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) rows[j].set(i, device::to_accumulator(a[j][i]));
    }
    multiply_tiles<First, Split>(part, rows, b);
  }

 private:
  __device__ __forceinline__ void load_weights(const unsigned char* shared, int weights) {
#pragma unroll
    for (int n = 0; n < ColumnTiles; ++n) {
      const unsigned char* at = shared + weights + n * WeightPair<Split>::kTileBytes;
      if constexpr (Split) {
        const uint4 words = *reinterpret_cast<const uint4*>(at);
        b[n].high[0] = words.x, b[n].high[1] = words.y, b[n].low[0] = words.z, b[n].low[1] = words.w;
      } else {
        const uint2 words = *reinterpret_cast<const uint2*>(at);
        b[n].high[0] = words.x, b[n].high[1] = words.y;
      }
    }
  }
};

/// Sums over the units from `sources` on, `count` of them. The next pair is loaded while one is multiplied, in the end
/// one pair too many.
template <bool Split, class T, int RowTiles, int ColumnTiles>
__device__ __forceinline__ void sum_units(float (&sums)[RowTiles][ColumnTiles][4], const unsigned char* shared,
                                          const int* sources, int count, const int (&tile)[RowTiles], int eight,
                                          int weights, int pair_bytes) {
  using Pair = UnitPair<Split, T, RowTiles, ColumnTiles>;
  static_assert(kPromoteUnits == 4);
  int4 here = *reinterpret_cast<const int4*>(sources);
  Pair one, two;
  one.load(shared, {here.x, here.y}, tile, eight, weights);
  for (; count > 0; count -= kPromoteUnits) {
    float part[RowTiles][ColumnTiles][4];
    two.load(shared, {here.z, here.w}, tile, eight, weights + pair_bytes);
    sources += kPromoteUnits;
    here = *reinterpret_cast<const int4*>(sources);
    one.template multiply<true>(part, shared, weights);
    weights += 2 * pair_bytes;
    one.load(shared, {here.x, here.y}, tile, eight, weights);
    two.template multiply<false>(part, shared, weights - pair_bytes);
    promote(sums, part);
  }
}

/// Which segments, channels and phases item `item` of a tile is.
struct RingItem {
  int first_segment, first_channel, outer_phase;

  __device__ RingItem(const RingPlan& plan, int item, int row_tiles, int column_tiles) {
    uint32_t segments, columns;
    const uint32_t rest = plan.by_segments.divide(static_cast<uint32_t>(item), segments);
    outer_phase = static_cast<int>(plan.by_column.divide(rest, columns));
    first_segment = static_cast<int>(segments) * row_tiles;
    first_channel = static_cast<int>(columns) * column_tiles * 8;
  }
};

/// Position of a segment in the tile.
struct SegmentPlace {
  int d, h, w;
  __device__ SegmentPlace(const RingPlan& plan, int segment) {
    uint32_t at_w, at_h;
    d = static_cast<int>(plan.by_height.divide(plan.by_row.divide(static_cast<uint32_t>(segment), at_w), at_h));
    h = static_cast<int>(at_h);
    w = static_cast<int>(at_w) * kSegment;
  }
};

/// Where the run of results of a segment goes, and how many of them exist.
struct SegmentRow {
  int64_t row;
  int columns;
  __device__ SegmentRow(const RingPlan& plan, const TilePlace& place, int segment, int outer_phase) {
    const GroupProblem& p = plan.problem;
    const SegmentPlace at(plan, segment);
    uint32_t phase_h;
    const auto phase_d = static_cast<int>(plan.by_phase.divide(static_cast<uint32_t>(outer_phase), phase_h));
    const int d = (place.q0[0] + at.d) * p.phases[0] + phase_d;
    const int h = (place.q0[1] + at.h) * p.phases[1] + static_cast<int>(phase_h);
    const int w = (place.q0[2] + at.w) * p.phases[2];
    const bool exists = segment < plan.segments && d < p.result[0] && h < p.result[1];
    columns = exists ? max(0, min(kSegment * p.phases[2], p.result[2] - w)) : 0;
    row = (int64_t{d} * p.result[1] + h) * p.result[2] + w;
  }
};

/// Writes the staged results of an item, segment by segment, neighbouring lanes neighbouring positions. `finite`: all
/// of them are.
template <int RowTiles, int ColumnTiles, class T>
__device__ __forceinline__ void write_item(const RingPlan& plan, const GatherArguments<T>& arguments,
                                           const PlainSumOf<T>& plain, float* stage, int stage_pitch, int64_t index,
                                           int item, int group, int first_result, int results, bool finite) {
  const GroupProblem& p = plan.problem;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int run = kSegment * p.phases[2];
  const TilePlace place = tile_place(plan.tiles, plan.tile.positions, static_cast<uint32_t>(index));
  const RingItem here(plan, item, RowTiles, ColumnTiles);
  const int channels = min(ColumnTiles * 8, results - here.first_channel);
  const int64_t channel = int64_t{group} * p.result_channels + first_result + here.first_channel;
  if (!finite) {
    for (int j = 0; j < RowTiles; ++j) {
      const SegmentRow to(plan, place, here.first_segment + j, here.outer_phase);
      repair(stage + j * run, stage_pitch, channels, to.columns, plain, place.image, channel, to.row);
    }
    __syncwarp();
  }
  const int64_t plane = p.result_rows.plane_pitch;
  T* const result = arguments.result + (place.image * p.groups * p.result_channels + channel) * plane;
  const T* bias = arguments.bias ? arguments.bias + channel : nullptr;
  const bool plain_sums =
      bias == nullptr && arguments.activation.kind == ActivationKind::None && channels == ColumnTiles * 8;
  for (int e = lane; e < RowTiles * run; e += 32) {
    int segment = 0;
#pragma unroll
    for (int j = 1; j < RowTiles; ++j) segment += e >= j * run;
    const SegmentRow to(plan, place, here.first_segment + segment, here.outer_phase);
    const int column = e - segment * run;
    if (column >= to.columns) continue;
    T* out = result + to.row + column;
    const float* staged = stage + e;
    if (plain_sums) {
#pragma unroll
      for (int c = 0; c < ColumnTiles * 8; ++c, out += plane, staged += stage_pitch) {
        *out = device::from_accumulator<T>(*staged);
      }
      continue;
    }
#pragma unroll 1
    for (int c = 0; c < channels; ++c, out += plane, staged += stage_pitch) {
      const float shifted = bias ? *staged + device::to_accumulator(bias[c]) : *staged;
      *out = device::from_accumulator<T>(device::call_activation(arguments.activation, shifted));
    }
  }
}

/// Step: that of the width if it is 1 or 2, else 0.
template <class T, bool Split, int Step, int RowTiles, int ColumnTiles>
__global__ void __launch_bounds__(kRingThreads, 1)
    ring_kernel(const __grid_constant__ RingPlan plan, const __grid_constant__ GatherArguments<T> arguments,
                const __grid_constant__ PlainSumOf<T> plain) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ TileRing::Barriers barriers;
  const GroupProblem& p = plan.problem;
  const RowBox& box = plan.tile.box;
  const TilePitch<T> pitch(box);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int pair_words = plan.result_tiles * 32 * WeightPair<Split>::kWords;
  const int phases = p.phases[0] * p.phases[1] * p.phases[2];
  const int run = kSegment * p.phases[2];      // result columns of one segment
  const int stage_pitch = RowTiles * run + 4;  // 4 modulo 16: pairs of channels fall on different banks

  const int weights_at = plan.tiles_in_ring * box.bytes;
  auto* weights = reinterpret_cast<float*>(shared + weights_at);
  int* sources = reinterpret_cast<int*>(weights + plan.units / 2 * pair_words);
  int* starts = sources + 4 * plan.unit_pitch;  // [phases + 1]
  float* stage = reinterpret_cast<float*>(starts + (phases + 4) / 4 * 4) + warp * (ColumnTiles * 8 * stage_pitch);

  const int group_set = static_cast<int>(blockIdx.x) / plan.slots;
  const int group = group_set / plan.sets, first_result = group_set % plan.sets * plan.set_results;
  const int results = min(plan.set_results, p.result_channels - first_result);
  const int64_t slot = static_cast<int>(blockIdx.x) % plan.slots;

  TileRing ring(barriers, plan.tiles_in_ring);
  if (threadIdx.x == 0) ring.init(plan.warps);
  __syncthreads();

  if (warp >= plan.warps) {
    const int helper = warp - plan.warps;
    for (int64_t index = slot; index < plan.tile_count; index += plan.slots) {
      for (int chunk = 0; chunk < plan.chunks; ++chunk, ring.advance()) {
        const BoxPlace<T> source = ring_source(plan, arguments.source, group, index, chunk);
        unsigned char* const here = shared + ring.tile() * box.bytes;
        if (helper < kRingLoaders) {
          ring.acquire();
          ring.started(load_box(here, box, p.source_rows, source, ring.copied(), helper, kRingLoaders));
        } else {
          ring.wait_copied();
          finish_box(here, box, p.source_rows, source, lane, 32);
          ring.fixed();
        }
      }
    }
    return;
  }

  const int users = plan.warps * 32;
  fill_tables<Split>(weights, sources, starts, plan,
                     arguments.weight + group * p.weight_group + first_result * p.weight_result, results, warp);
  device::barrier_sync(1, users);

  const int step = Step == 0 ? p.step[2] : Step;
  const int eight = 8 * step * static_cast<int>(sizeof(T));
  const int lane_at = lane / 4 * step;
  const int* const lane_sources = sources + lane % 4 * plan.unit_pitch;
  float sums[RowTiles][ColumnTiles][4];
  int item = warp;  // the warps take items in turn, over all tiles: a short tile keeps nobody waiting
  for (int64_t index = slot, chunk = 0; index < plan.tile_count; ring.advance()) {
    ring.wait();
    const bool last_chunk = chunk + 1 == plan.chunks;
    const BoxPlace<T> source = ring_source(plan, arguments.source, group, index, static_cast<int>(chunk));
    const int tile_at = ring.tile() * box.bytes + box_shift(source);
    int next = item;
    for (; next < plan.items; next += plan.warps) {
      const RingItem here(plan, next, RowTiles, ColumnTiles);
      int tile[RowTiles];
#pragma unroll
      for (int j = 0; j < RowTiles; ++j) {
        const SegmentPlace at(plan, min(here.first_segment + j, plan.segments - 1));
        tile[j] = tile_at + (at.d * p.step[0] * pitch.depth + at.h * p.step[1] * pitch.height + at.w * step + lane_at) *
                                static_cast<int>(sizeof(T));
      }
      const int lane_weights =
          weights_at + here.first_channel / 8 * WeightPair<Split>::kTileBytes + lane * WeightPair<Split>::kWords * 4;
      float check = 0;  // NaN after a result that is not finite
      for (int phase_w = 0; phase_w < p.phases[2]; ++phase_w) {
        const int* const start = starts + here.outer_phase * p.phases[2] + phase_w + chunk;
        const int first = start[0], last = start[1];
        if (chunk == 0) clear(sums);
        sum_units<Split, T>(sums, shared, lane_sources + first, last - first, tile, eight,
                            lane_weights + first / 2 * pair_words * 4, pair_words * 4);
        if (!last_chunk) continue;

        float* staged = stage + lane % 4 * 2 * stage_pitch + lane / 4 * p.phases[2] + phase_w;
#pragma unroll
        for (int n = 0; n < ColumnTiles; ++n) {
#pragma unroll
          for (int j = 0; j < RowTiles; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              check = fmaf(sums[j][n][i], 0.0f, check);
              staged[(n * 8 + i % 2) * stage_pitch + j * run + i / 2 * 8 * p.phases[2]] = sums[j][n][i];
            }
          }
        }
      }
      if (!last_chunk) continue;
      const bool finite = __all_sync(0xffffffffu, check == 0);
      __syncwarp();
      int again = next;
      asm volatile("" : "+r"(again));  // decoded a second time rather than kept in registers all along
      write_item<RowTiles, ColumnTiles>(plan, arguments, plain, stage, stage_pitch, index, again, group, first_result,
                                        results, finite);
      __syncwarp();  // the stage may be overwritten
    }
    ring.release();
    if (last_chunk) {
      item = next - plan.items;
      index += plan.slots;
    }
    chunk = last_chunk ? 0 : chunk + 1;
  }
}

}  // namespace halo::cuda::conv::small_groups
