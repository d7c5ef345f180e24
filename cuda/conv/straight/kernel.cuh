// Forward and backward_input of convolutions with few channels, straight from global memory.
//
// A lane loads operands where the tensor core wants them: with g = lane / 4, t = lane % 4, those of positions of row g
// of each product and of the channels t, t + 4, t + 8, t + 12 of a unit. Neighbouring taps find them in the first-level
// cache again. Weights lie in shared memory as fragments, in the order of the sum. Results leave from registers where
// 16 bytes of neighbours are one access, else through a stage, row by row, so that every line is written whole.
//
// Split operands, and zeros that stand for what does not exist, make results that are not finite where plain sums have
// finite ones: such an item is computed again, in plain float32.
#pragma once

#include "operands.cuh"
#include "results.cuh"

namespace halo::cuda::conv::straight {

/// The block's units and its weights as the tensor core reads them.
template <class T, bool Split>
__device__ void prepare(const Plan& plan, const Arguments<T>& arguments, int phase_d, int phase_h, int first_column,
                        Unit* units, uint32_t* weights) {
  const small_groups::GroupProblem& p = plan.problem;
  const int depths = p.taps[0].count[phase_d], heights = p.taps[1].count[phase_h];
  const int tiles = plan.column_groups * plan.column_tiles, words = tiles * kWeightWords<T, Split>;
  const int per_unit = tiles * (sizeof(T) == 4 ? 128 : 32);  // pieces of work: a float32 number, four of a half type
  int first = 0;
  for (int phase = 0; phase < p.phases[2]; ++phase) {
    const int widths = p.taps[2].count[phase];
    const int count = depths * heights * widths * plan.chunks;
    for (int i = static_cast<int>(threadIdx.x); i < count * per_unit; i += static_cast<int>(blockDim.x)) {
      const int u = i / per_unit;
      const int width = u % widths, chunk = u / widths % plan.chunks, height = u / widths / plan.chunks % heights,
                depth = u / widths / plan.chunks / heights;
      const int tap = p.taps[0].tap[phase_d][depth] * p.tap_pitch[0] + p.taps[1].tap[phase_h][height] * p.tap_pitch[1] +
                      p.taps[2].tap[phase][width];
      int rest = i % per_unit;
      if (rest == 0) {
        const int at[3] = {p.taps[0].offset[phase_d][depth], p.taps[1].offset[phase_h][height],
                           p.taps[2].offset[phase][width]};
        const int64_t elements = int64_t{chunk} * kChunk * p.source_rows.plane_pitch +
                                 at[0] * p.source_rows.outer_pitch + at[1] * p.source_rows.inner_pitch + at[2];
        units[first + u] = {elements * int64_t{sizeof(T)}, at[0], at[1], at[2], p.source_channels - chunk * kChunk};
      }
      const auto value = [&](int column, int channel) {
        const bool exists = column < p.result_channels && channel < p.source_channels;
        return exists ? arguments.weight[column * p.weight_result + channel * p.weight_source + tap] : T{};
      };
      const int lane = rest % 32;
      rest /= 32;
      uint32_t* const to = weights + int64_t{first + u} * words;
      if constexpr (sizeof(T) == 4) {
        // rest: tile, step, channel of b
        const int slot = rest % 4, tile = rest / 4;
        const float x = value(first_column + tile * 8 + lane / 4, chunk * kChunk + slot * 4 + lane % 4);
        const device::Tf32Pair pair =
            Split ? device::split_tf32_unguarded(x) : device::Tf32Pair{device::round_tf32(x), 0};
        uint32_t* const at = to + tile * kWeightWords<T, Split> + (slot / 2 * 32 + lane) * (Split ? 4 : 2) + slot % 2;
        at[0] = pair.high;
        if constexpr (Split) at[2] = pair.low;
      } else {
        const int tile = rest;
        uint32_t* const at = to + tile * kWeightWords<T, Split> + lane * 2;
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int column = first_column + tile * 8 + lane / 4, channel = chunk * kChunk + k * 8 + lane % 4;
          at[k] = value(column, channel).bits | uint32_t{value(column, channel + 4).bits} << 16;
        }
      }
    }
    first += count;
  }
}

template <class T, bool Split, int ColumnTiles, bool Packs>
__global__ void __launch_bounds__(Shape<T, ColumnTiles, Packs>::kThreads, 1)
    straight_kernel(const __grid_constant__ Plan plan, const __grid_constant__ Arguments<T> arguments,
                    const __grid_constant__ PlainSumOf<T> plain) {
  using S = Shape<T, ColumnTiles, Packs>;
  constexpr int kPositions = S::kHalves * 8;
  extern __shared__ __align__(16) unsigned char shared[];
  const small_groups::GroupProblem& p = plan.problem;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int t = lane % 4, g = lane / 4;
  const auto outer = static_cast<int>(blockIdx.y) / plan.column_blocks;
  const int phase_d = outer / p.phases[1], phase_h = outer % p.phases[1];
  const int first_column = static_cast<int>(blockIdx.y) % plan.column_blocks * plan.column_groups * S::kColumns;

  auto* const units = reinterpret_cast<Unit*>(shared);
  auto* const weights = reinterpret_cast<uint32_t*>(units + plan.most_units);
  const int unit_words = plan.column_groups * ColumnTiles * kWeightWords<T, Split>;
  auto* const biases = reinterpret_cast<float*>(weights + plan.most_units * unit_words);
  // A warp's own: where its results are turned, or with packs a ring of operands.
  auto* const stage = reinterpret_cast<T*>(biases + plan.column_groups * S::kColumns) +
                      warp * (Packs ? kRingBytes / static_cast<int>(sizeof(T)) : plan.stage_pitch * S::kColumns);
  prepare<T, Split>(plan, arguments, phase_d, phase_h, first_column, units, weights);
  for (int i = static_cast<int>(threadIdx.x); i < plan.column_groups * S::kColumns; i += static_cast<int>(blockDim.x)) {
    const bool exists = arguments.bias != nullptr && first_column + i < p.result_channels;
    biases[i] = exists ? device::to_accumulator(arguments.bias[first_column + i]) : 0.0f;
  }
  __syncthreads();
  const int outer_units = p.taps[0].count[phase_d] * p.taps[1].count[phase_h] * plan.chunks;
  int total = 0;
  for (int phase = 0; phase < p.phases[2]; ++phase) total += p.taps[2].count[phase];
  total *= outer_units;

  const int64_t step = int64_t{gridDim.x} * plan.warps;
  int64_t item = int64_t{blockIdx.x} * plan.warps + warp;
  const auto ring = static_cast<uint32_t>(__cvta_generic_to_shared(stage)) + static_cast<uint32_t>(lane * 16);
  Feed<S, T, Packs> feed{plan, units, arguments.source, item, step, total, lane, ring};
  feed.begin();
  const int64_t plane = p.result_rows.plane_pitch;

  for (; item < plan.items; item += step) {
    const Place place = place_of(plan, item);
    const int row_d = place.q[0] * p.phases[0] + phase_d, row_h = place.q[1] * p.phases[1] + phase_h;
    const int column = place.q[2] * p.phases[2];
    const bool exists = row_d < p.result[0] && row_h < p.result[1];
    const int row = row_d * p.result[1] + row_h;
    const int channel = first_column + place.column_group * S::kColumns;
    T* const result =
        arguments.result + (place.image * p.result_channels + channel) * plane + int64_t{row} * p.result[2] + column;
    const int columns = exists ? min(kPositions * p.phases[2], p.result[2] - column) : 0;
    const int channels = min(S::kColumns, p.result_channels - channel);
    const Shift<T> shift_of(result, plane);
    const uint32_t* own = weights + place.column_group * (ColumnTiles * kWeightWords<T, Split>);
    float poison[4] = {};
    for (int phase = 0; phase < p.phases[2]; ++phase) {
      float sums[S::kTiles][ColumnTiles][4];
#pragma unroll
      for (int n = 0; n < ColumnTiles; ++n) {
        const float2 bias = *reinterpret_cast<const float2*>(biases + place.column_group * S::kColumns + n * 8 + t * 2);
#pragma unroll
        for (int m = 0; m < S::kTiles; ++m) {
          sums[m][n][0] = sums[m][n][2] = bias.x;
          sums[m][n][1] = sums[m][n][3] = bias.y;
        }
      }
#pragma unroll 1
      for (int i = outer_units * p.taps[2].count[phase]; i > 0; --i, own += unit_words) {
        const Rows<T, Packs, Split> rows(feed.take());
        feed.order_next();
        rows.multiply(sums, own, lane);
      }
#pragma unroll
      for (int m = 0; m < S::kTiles; ++m) {
#pragma unroll
        for (int n = 0; n < ColumnTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) poison[i] = fmaf(sums[m][n][i], 0.0f, poison[i]);
        }
      }
      if (plan.bends || plan.smooth) {
#pragma unroll
        for (int m = 0; m < S::kTiles; ++m) {
#pragma unroll
          for (int n = 0; n < ColumnTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              float& sum = sums[m][n][i];
              sum = plan.bends ? fmaxf(sum, fmaf(plan.slope, sum, 0.0f))  // no -0
                               : device::call_activation(arguments.activation, sum);
            }
          }
        }
      }
      if constexpr (Packs) {
        T* to = result + 2 * t * plane + S::kHalves * g;
        const bool inside = S::kHalves * g < columns;
#pragma unroll
        for (int n = 0; n < ColumnTiles; ++n, to += 8 * plane) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            uint32_t word[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) {
              if constexpr (sizeof(T) == 4) {
                word[k] = __float_as_uint(sums[k / 2][n][k % 2 * 2 + i]);
              } else {
                const float two[2] = {sums[k][n][i], sums[k][n][2 + i]};
                word[k] = device::pack_word<T>(two);
              }
            }
            if (inside && 8 * n + 2 * t + i < channels)
              *reinterpret_cast<uint4*>(to + i * plane) = uint4{word[0], word[1], word[2], word[3]};
          }
        }
      } else {
#pragma unroll
        for (int n = 0; n < ColumnTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int c = 8 * n + 2 * t + i;
            T* const to = stage + c * plan.stage_pitch + shift_of(c) + g * p.phases[2] + phase;
#pragma unroll
            for (int h = 0; h < 4; ++h)
              to[8 * h * p.phases[2]] = device::from_accumulator<T>(sums[h / 2][n][h % 2 * 2 + i]);
          }
        }
      }
    }
    if constexpr (!Packs) {
      write_rows(plan, stage, result, plan.own * p.phases[2], columns, channels, column == 0, shift_of, lane);
    }
    const float any = poison[0] + poison[1] + (poison[2] + poison[3]);
    if (__any_sync(0xffffffffu, any != any) && columns > 0) {
      plain_results(plan, arguments, plain, place, row, column, channel, columns, channels);
    }
  }
}

}  // namespace halo::cuda::conv::straight
