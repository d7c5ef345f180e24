// Few channels out of many in float32, by plain multiply-adds.
//
// A block marches down a strip of one image. The copy engine brings whole rows of a few source channels at a time; a
// thread adds each number it reads to the results of all rows and channels that it meets, three rows of them in
// registers, and writes a row when no later one reaches it. Each source row is read once a strip.
//
// `Ragged`: rows begin at any address. The copy engine brings their whole granules, and the warp that gives it orders
// the words around them, zeros where columns do not exist.
#pragma once

#include "../../device/activation.cuh"
#include "../../device/async_copy.cuh"
#include "../plain_sum.cuh"
#include "../stage_ring.cuh"
#include "few_results.h"

namespace halo::cuda::conv::few_results {

inline constexpr int kFloatThreads = 256;  // that add; a warpgroup more gives the copy engine its orders
inline constexpr int kFloatBlock = kFloatThreads + 128;
inline constexpr int kFloatColumns = 10;  // of a thread, at most: groups of one or two, kFloatThreads groups apart
inline constexpr int kFloatChannels = 4;  // of a stage
inline constexpr int kFloatStages = 4;
inline constexpr int kFloatPitch =
    kFloatThreads * kFloatColumns + kReach + 4;  // of a row in shared memory: 3 columns before the first
inline constexpr int kFloatWeights = 28;         // of a source channel: [row][column][result], one to spare

/// Stages of rows on their way into shared memory.
struct Stages : Ring {
  float* rows;

  __device__ float* row(int channel) const { return rows + (slot() * kFloatChannels + channel) * kFloatPitch; }
};

/// The rows of one block in the order in which they are used.
struct RowFeed {
  const float* from;  // of the first channel and row, at column `first`
  int64_t plane;
  int width, first;      // columns that are copied, and where in shared memory
  int row, last, pitch;  // source rows
  int chunk = 0, chunks;

  __device__ void next(Stages& stages) {
    stages.wait_released();
    const auto bytes = static_cast<uint32_t>(width) * 4;
    device::barrier_expect(stages.copied(), kFloatChannels * bytes);
    for (int k = 0; k < kFloatChannels; ++k) {
      const float* source = from + (int64_t{chunk} * kFloatChannels + k) * plane + int64_t{row} * pitch;
      device::copy_bulk(device::shared_address(stages.row(k) + first), source, bytes, stages.copied());
    }
    stages.advance();
    if (++chunk == chunks) {
      chunk = 0;
      ++row;
    }
  }
};

/// Ragged rows of one block: a chunk's columns from `begin`, of which those from `from` to `to` exist.
struct RaggedRows {
  const float* source;  ///< of the first channel and row
  int64_t plane;
  int pitch;
  int begin, from, to;

  /// Where column `begin` lies in shared memory, in front of the row's lead.
  __device__ __forceinline__ int front() const { return (begin - from) & 3; }
  /// Words by which column `from` lies behind a granule.
  __device__ __forceinline__ uint32_t lead(int row, int k) const {
    const auto first = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(source) / sizeof(float));
    return (first + static_cast<uint32_t>(row) * static_cast<uint32_t>(pitch) +
            static_cast<uint32_t>(k) * static_cast<uint32_t>(plane) + static_cast<uint32_t>(from)) %
           4;
  }

  /// A warp brings the rows `row` of the channels from `channel`, eight lanes a row. Of the granules that a row of any
  /// lead can reach, the copy engine brings all but the first and the last two, and arrives with the lanes' words: each
  /// writes its own granules alone.
  __device__ __forceinline__ void bring(const Stages& stages, int row, int channel, int lane) const {
    const int k = lane / 8, word = lane % 4, last = (to - from - 1) / 4 * 4;
    const int start = static_cast<int>(lead(row, channel + k)), end = start + to - from;
    const float* const run = source + int64_t{channel + k} * plane + int64_t{row} * pitch + from - start;
    const uint32_t place = device::shared_address(stages.row(k) + front() + (from - begin));
    const uint32_t full = stages.copied();
    const auto bring_word = [&](int at) { device::copy_async_4(place + at * 4, run + at, at >= start && at < end); };
    bring_word(lane % 8 < 4 ? word : last + word);
    if (lane % 8 < 4) bring_word(last + 4 + word);
    if (lane % 8 == 0 && last > 4) {
      const auto bytes = static_cast<uint32_t>(last - 4) * 4;
      device::barrier_expect_more(full, bytes);
      device::copy_bulk(place + device::kGranule, run + 4, bytes, full);
    }
    device::copy_async_arrive(full);
  }
};

/// Column p of a thread, beside its first. Side: columns of a group.
template <int Side>
__device__ constexpr int column_of(int p) {
  return p / Side * Side * kFloatThreads + p % Side;
}

/// What a thread reads of one source channel.
template <int Side, int Columns>
struct ChannelInputs {
  float values[kTaps][Columns];
  float weights[kFloatWeights];

  __device__ __forceinline__ void load(const float* at, int apart, const float* weight) {
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      const float* const from = at + j * apart;
#pragma unroll
      for (int p = 0; p < Columns; p += Side) {
        if constexpr (Side == 2) {
          *reinterpret_cast<float2*>(values[j] + p) = *reinterpret_cast<const float2*>(from + column_of<Side>(p));
        } else {
          values[j][p] = from[column_of<Side>(p)];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kFloatWeights; i += 4)
      *reinterpret_cast<float4*>(weights + i) = *reinterpret_cast<const float4*>(weight + i);
  }

  /// Adds what the channel gives to the rows that tap 0, 1, 2 reach.
  __device__ __forceinline__ void add(float (&sums)[kTaps][kResults][Columns]) const {
#pragma unroll
    for (int i = 0; i < kTaps; ++i) {
#pragma unroll
      for (int j = 0; j < kTaps; ++j) {
#pragma unroll
        for (int c = 0; c < kResults; ++c) {
#pragma unroll
          for (int p = 0; p < Columns; ++p)
            sums[i][c][p] = fmaf(values[j][p], weights[(i * kTaps + j) * kResults + c], sums[i][c][p]);
        }
      }
    }
  }
};

inline std::size_t float_shared_bytes(const Plan& plan) {
  return (std::size_t{kFloatStages} * kFloatChannels * kFloatPitch +
          static_cast<std::size_t>(plan.channels) * kFloatWeights) *
         sizeof(float);
}

/// Row i of the weights in shared memory is what a source row gives to the result row i after the first it reaches.
__device__ inline void fill_float_weights(float* weights, const Plan& plan, const float* weight) {
  for (int i = static_cast<int>(threadIdx.x); i < plan.channels * kFloatWeights; i += kFloatBlock) {
    const int at = i % kFloatWeights, result = at % kResults, column = at / kResults % kTaps,
              row = at / (kResults * kTaps);
    const float* const from = weight + result * plan.weight_result + i / kFloatWeights * plan.weight_source;
    weights[i] = row < kTaps && result < plan.results ? from[plan.tap[kTaps - 1 - row][column]] : 0.0f;
  }
}

/// The thread's results of row `done` again, as plain float32 chains.
template <int Side, int Columns>
__device__ __noinline__ void plain_row(const Plan& plan, const Arguments<float>& arguments, const PlainSum& plain,
                                       const Place& place, int done) {
  const int64_t channel = place.image_group % plan.groups * plan.results;
  for (int i = 0; i < plan.results * Columns; ++i) {
    const int c = i / Columns,
              column = place.chunk * plan.width + column_of<Side>(i % Columns) + Side * static_cast<int>(threadIdx.x);
    if (column >= plan.result_width) continue;
    const int64_t flat = int64_t{done} * plan.result_width + column;
    const int64_t position = int64_t{place.depth} * plan.result_rows * plan.result_width + flat;
    float sum = plain.at(place.image_group / plan.groups, channel + c, position);
    if (arguments.bias != nullptr) sum += arguments.bias[channel + c];
    arguments
        .result[(place.image_group * plan.results + c) * plan.result_plane + place.depth * plan.result_slice + flat] =
        device::call_activation(arguments.activation, sum);
  }
}

template <int Side, int Columns, bool Ragged>
__global__ void __launch_bounds__(kFloatBlock, 1)
    float_kernel(const __grid_constant__ Plan plan, const __grid_constant__ Arguments<float> arguments,
                 const __grid_constant__ PlainSum plain) {
  extern __shared__ __align__(128) float staged[];
  __shared__ Ring::Barriers barriers;
  float* const weights = staged + kFloatStages * kFloatChannels * kFloatPitch;
  const auto thread = static_cast<int>(threadIdx.x);
  Stages stages{Ring(barriers, kFloatStages), staged};

  const auto [chunk, first_result, last_result, depth, image_group] = Place(plan, blockIdx.x);

  // Shared memory begins `lead` columns before what the chunk's first result reads, at a whole 16-byte piece.
  const int begin = chunk * plan.width + plan.first_column;
  const int end = begin + min(plan.width, plan.result_width - chunk * plan.width) + 2 * plan.apart;
  const int lead = Ragged ? 0 : ((begin % 4) + 4) % 4;
  const int from = max(begin - lead, 0), to = min(Ragged ? end : begin - lead + kFloatPitch, plan.source_width);

  for (int i = thread; i < kFloatStages * kFloatChannels * kFloatPitch; i += kFloatBlock) staged[i] = 0;
  fill_float_weights(weights, plan, arguments.weight + image_group % plan.groups * plan.weight_group);
  if (thread == 0) stages.init(kFloatThreads / 32, Ragged ? 32 : 1);
  device::fence_async_proxy();
  __syncthreads();

  // A source row reaches kTaps result rows: the last of them is `row - first_row`.
  const int rows_from = max(first_result + plan.first_row, 0);
  const int rows_to = min(last_result + plan.first_row + kTaps - 1, plan.source_rows);
  const RaggedRows ragged{
      arguments.source + image_group * plan.channels * plan.source_plane + int64_t{depth} * plan.source_slice,
      plan.source_plane,
      plan.source_width,
      begin,
      from,
      to};
  if (Ragged && thread >= kFloatThreads) {
    device::registers_decrease<32>();
    if (thread < kFloatThreads + 32 && from < to) {
      for (int row = rows_from; row < rows_to; ++row) {
        for (int channel = 0; channel < plan.channels; channel += kFloatChannels, stages.advance()) {
          stages.wait_released();
          ragged.bring(stages, row, channel, thread % 32);
        }
      }
    }
  } else if (thread >= kFloatThreads) {
    device::registers_decrease<24>();
    RowFeed feed{
        arguments.source + image_group * plan.channels * plan.source_plane + int64_t{depth} * plan.source_slice + from,
        plan.source_plane,
        to - from,
        from - (begin - lead),
        rows_from,
        from < to ? rows_to : rows_from,
        plan.source_width,
        0,
        plan.channels / kFloatChannels};
    if (thread == kFloatThreads) {
      while (feed.row < feed.last) feed.next(stages);
    }
  } else {
    device::registers_increase<Ragged ? 232 : 240>();
    float* const result =
        arguments.result + image_group * plan.results * plan.result_plane + int64_t{depth} * plan.result_slice;
    float bias[kResults] = {};
    for (int c = 0; arguments.bias != nullptr && c < plan.results; ++c)
      bias[c] = arguments.bias[image_group % plan.groups * plan.results + c];
    float sums[kTaps][kResults][Columns] = {};
    const int column = chunk * plan.width + Side * thread;
    int left = from < to ? (rows_to - rows_from) * (plan.channels / kFloatChannels) : 0;
    const float* weight = weights;
    ChannelInputs<Side, Columns> inputs[2];  // of the channel at hand and of the next one
    int row_at_hand = rows_from;             // of the stage
    const auto load = [&](int channel) {
      const int at = Ragged ? ragged.front() + static_cast<int>(ragged.lead(row_at_hand, channel)) : lead;
      inputs[channel % 2].load(stages.row(channel) + at + Side * thread, plan.apart, weight + channel * kFloatWeights);
    };
    if (left > 0) {
      stages.wait_copied();
      load(0);
    }
    for (int row = first_result; row < last_result + kTaps - 1; ++row) {
      const int source_row = row + plan.first_row;
      if (from < to && source_row >= rows_from && source_row < rows_to) {
#pragma unroll 1
        for (int i = 0; i < plan.channels; i += kFloatChannels) {
#pragma unroll
          for (int k = 0; k + 1 < kFloatChannels; ++k) {
            load(k + 1);
            inputs[k % 2].add(sums);
          }
          stages.release(thread % 32);
          stages.advance();
          const bool same_row = i + kFloatChannels < plan.channels;
          weight = same_row ? weight + kFloatChannels * kFloatWeights : weights;
          if (!same_row) ++row_at_hand;
          if (--left > 0) {
            stages.wait_copied();
            load(0);
          }
          inputs[(kFloatChannels - 1) % 2].add(sums);
        }
      }
      const int done = row - (kTaps - 1);  // no later row reaches it
      float poison = 0;                    // becomes NaN with the first result that is not finite
#pragma unroll
      for (int c = 0; c < kResults; ++c) {
#pragma unroll
        for (int p = 0; p < Columns; ++p) {
          sums[0][c][p] += bias[c];
          poison = fmaf(sums[0][c][p], 0.0f, poison);
        }
      }
      if (arguments.activation.kind != ActivationKind::None) {
#pragma unroll
        for (int c = 0; c < kResults; ++c) {
#pragma unroll
          for (int p = 0; p < Columns; ++p)
            sums[0][c][p] = device::call_activation(arguments.activation, sums[0][c][p]);
        }
      }
#pragma unroll
      for (int c = 0; c < kResults; ++c) {
        float* const to_row = result + c * plan.result_plane + int64_t{done} * plan.result_width + column;
#pragma unroll
        for (int p = 0; p < Columns; p += Side) {
          if (done >= first_result && c < plan.results && column + column_of<Side>(p) < plan.result_width) {
            if constexpr (Side == 2) {
              *reinterpret_cast<float2*>(to_row + column_of<Side>(p)) = {sums[0][c][p], sums[0][c][p + 1]};
            } else {
              to_row[column_of<Side>(p)] = sums[0][c][p];
            }
          }
        }
#pragma unroll
        for (int p = 0; p < Columns; ++p) {
#pragma unroll
          for (int i = 0; i < kTaps; ++i) sums[i][c][p] = i + 1 < kTaps ? sums[i + 1][c][p] : 0.0f;
        }
      }
      // Zeros stand for what does not exist: they are no part of sums that are not finite.
      if (poison != poison && done >= first_result)
        plain_row<Side, Columns>(plan, arguments, plain, Place(plan, blockIdx.x), done);
    }
  }
}

}  // namespace halo::cuda::conv::few_results
