// Few channels out of many in float32, by plain multiply-adds.
//
// A block marches down a strip of one image. The copy engine brings whole rows of a few source channels at a time; a
// thread adds each number it reads to the results of all rows and channels that it meets, three rows of them in
// registers, and writes a row when no later one reaches it. Each source row is read once a strip.
//
// `Ragged`: rows begin at any address. They come with their neighbours in the first and last granule, so that a warp
// puts zeros where columns do not exist before the others read a stage.
#pragma once

#include "../device/activation.cuh"
#include "../device/async_copy.cuh"
#include "../device/copy_runs.cuh"
#include "../device/mbarrier.cuh"
#include "../device/wgmma.cuh"
#include "few_results.h"
#include "plain_sum.cuh"

namespace halo::cuda::conv::few_results {

inline constexpr int kFloatThreads = 256;  // that add; a warpgroup more gives the copy engine its orders
inline constexpr int kFloatBlock = kFloatThreads + 128;
inline constexpr int kFloatColumns = 10;  // of a thread: groups of one or two, kFloatThreads groups apart
inline constexpr int kFloatChannels = 4;  // of a stage
inline constexpr int kFloatStages = 4;
inline constexpr int kFloatPitch =
    kFloatThreads * kFloatColumns + kReach + 4;  // of a row in shared memory: 3 columns before the first
inline constexpr int kFloatWeights = 28;         // of a source channel: [row][column][result], one to spare
inline constexpr int kFloatWidth = kFloatThreads * kFloatColumns;

/// Stages of rows on their way into shared memory.
struct Stages {
  uint32_t full, empty, ready;  ///< ready: Ragged, with zeros around; else as full
  float* rows;

  __device__ float* row(int stage, int channel) const {
    return rows + (stage * kFloatChannels + channel) * kFloatPitch;
  }
};

/// The rows of one block in the order in which they are used.
struct RowFeed {
  const float* from;  // of the first channel and row, at column `first`
  int64_t plane;
  int width, first;      // columns that are copied, and where in shared memory
  int row, last, pitch;  // source rows
  int chunk = 0, chunks;
  int stage = 0;
  uint32_t parity = 1;

  __device__ void next(const Stages& stages) {
    device::barrier_wait(stages.empty + stage * 8, parity);
    const auto bytes = static_cast<uint32_t>(width) * 4;
    device::barrier_expect(stages.full + stage * 8, kFloatChannels * bytes);
    for (int k = 0; k < kFloatChannels; ++k) {
      const float* source = from + (int64_t{chunk} * kFloatChannels + k) * plane + int64_t{row} * pitch;
      device::copy_bulk(static_cast<uint32_t>(__cvta_generic_to_shared(stages.row(stage, k) + first)), source, bytes,
                        stages.full + stage * 8);
    }
    if (++stage == kFloatStages) {
      stage = 0;
      parity ^= 1;
    }
    if (++chunk == chunks) {
      chunk = 0;
      ++row;
    }
  }
};

/// Ragged rows of one block: a chunk's columns `begin` to `end`, of which those from `from` to `to` exist.
struct RaggedRows {
  const float* source;  ///< of the first channel and row
  const float* last;    ///< behind the tensor
  int64_t plane;
  int pitch;
  int begin, end, from, to;

  /// Where column `begin` lies in shared memory, in front of the row's lead.
  __device__ __forceinline__ int front() const { return (begin - from) & 3; }
  /// Words by which column `from` lies behind a granule.
  __device__ __forceinline__ uint32_t lead(int row, int k) const {
    const auto first = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(source) / sizeof(float));
    return (first + static_cast<uint32_t>(row) * static_cast<uint32_t>(pitch) +
            static_cast<uint32_t>(k) * static_cast<uint32_t>(plane) + static_cast<uint32_t>(from)) %
           4;
  }

  /// The warp that gives orders, a lane a channel: the rows `row` of the channels from `channel`.
  __device__ __forceinline__ void bring(const Stages& stages, int stage, int row, int channel, int lane) const {
    const float* const run = source + int64_t{channel + lane % kFloatChannels} * plane + int64_t{row} * pitch + from;
    float* const place = stages.row(stage, lane % kFloatChannels) + front() + (from - begin);
    device::copy_runs(stages.full + stage * 8, run, lane < kFloatChannels ? static_cast<uint32_t>(to - from) * 4 : 0,
                      device::shared_address(place), last, lane);
  }
  /// Another warp: zeros for the columns that do not exist.
  __device__ __forceinline__ void surround(const Stages& stages, int stage, int row, int lane) const {
    for (int k = 0; k < kFloatChannels; ++k) {
      float* const columns = stages.row(stage, k) + front() + lead(row, k);
      for (int i = lane; i < from - begin; i += 32) columns[i] = 0;
      // Also what granules brought from behind: threads without results read it.
      for (int i = to - begin + lane; i < end - begin + 6; i += 32) columns[i] = 0;
    }
  }

  /// All stages of the rows, in their order: f(stage, parity, row, channel).
  template <class F>
  __device__ __forceinline__ static void for_each(int first_row, int last_row, int channels, const F& f) {
    int stage = 0;
    uint32_t parity = 0;
    for (int row = first_row; row < last_row; ++row) {
      for (int channel = 0; channel < channels; channel += kFloatChannels) {
        f(stage, parity, row, channel);
        if (++stage == kFloatStages) {
          stage = 0;
          parity ^= 1;
        }
      }
    }
  }
};

/// Column p of a thread, beside its first. Side: columns of a group.
template <int Side>
__device__ constexpr int column_of(int p) {
  return p / Side * Side * kFloatThreads + p % Side;
}

/// What a thread reads of one source channel.
template <int Side>
struct ChannelInputs {
  float values[kTaps][kFloatColumns];
  float weights[kFloatWeights];

  __device__ __forceinline__ void load(const float* at, int apart, const float* weight) {
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      const float* const from = at + j * apart;
#pragma unroll
      for (int p = 0; p < kFloatColumns; p += Side) {
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
  __device__ __forceinline__ void add(float (&sums)[kTaps][kResults][kFloatColumns]) const {
#pragma unroll
    for (int i = 0; i < kTaps; ++i) {
#pragma unroll
      for (int j = 0; j < kTaps; ++j) {
#pragma unroll
        for (int c = 0; c < kResults; ++c) {
#pragma unroll
          for (int p = 0; p < kFloatColumns; ++p)
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
template <int Side>
__device__ __noinline__ void plain_row(const Plan& plan, const Arguments<float>& arguments, const PlainSum& plain,
                                       const Place& place, int done) {
  const int64_t channel = place.image_group % plan.groups * plan.results;
  for (int i = 0; i < plan.results * kFloatColumns; ++i) {
    const int c = i / kFloatColumns, column = place.chunk * kFloatWidth + column_of<Side>(i % kFloatColumns) +
                                              Side * static_cast<int>(threadIdx.x);
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

template <int Side, bool Ragged>
__global__ void __launch_bounds__(kFloatBlock, 1)
    float_kernel(const __grid_constant__ Plan plan, const __grid_constant__ Arguments<float> arguments,
                 const __grid_constant__ PlainSum plain) {
  extern __shared__ __align__(128) float staged[];
  __shared__ uint64_t barriers[(Ragged ? 3 : 2) * kFloatStages];
  float* const weights = staged + kFloatStages * kFloatChannels * kFloatPitch;
  const auto thread = static_cast<int>(threadIdx.x);
  const auto full = static_cast<uint32_t>(__cvta_generic_to_shared(barriers));
  const Stages stages{full, full + kFloatStages * 8, Ragged ? full + kFloatStages * 16 : full, staged};

  const auto [chunk, first_result, last_result, depth, image_group] = Place(plan, blockIdx.x);

  // Shared memory begins `lead` columns before what the chunk's first result reads, at a whole 16-byte piece.
  const int begin = chunk * kFloatWidth + plan.first_column;
  const int end = begin + min(kFloatWidth, plan.result_width - chunk * kFloatWidth) + 2 * plan.apart;
  const int lead = Ragged ? 0 : ((begin % 4) + 4) % 4;
  const int from = max(begin - lead, 0), to = min(Ragged ? end : begin - lead + kFloatPitch, plan.source_width);

  for (int i = thread; i < kFloatStages * kFloatChannels * kFloatPitch; i += kFloatBlock) staged[i] = 0;
  fill_float_weights(weights, plan, arguments.weight + image_group % plan.groups * plan.weight_group);
  if (thread == 0) {
    for (int i = 0; i < kFloatStages; ++i) {
      device::barrier_init(stages.full + i * 8, 1);
      device::barrier_init(stages.empty + i * 8, kFloatThreads / 32);
      if constexpr (Ragged) device::barrier_init(stages.ready + i * 8, 1);
    }
    device::barrier_init_fence();
  }
  device::fence_async_proxy();
  __syncthreads();

  // A source row reaches kTaps result rows: the last of them is `row - first_row`.
  const int rows_from = max(first_result + plan.first_row, 0);
  const int rows_to = min(last_result + plan.first_row + kTaps - 1, plan.source_rows);
  const RaggedRows ragged{
      arguments.source + image_group * plan.channels * plan.source_plane + int64_t{depth} * plan.source_slice,
      arguments.source + plan.source_elements,
      plan.source_plane,
      plan.source_width,
      begin,
      end,
      from,
      to};
  if (Ragged && thread >= kFloatThreads) {
    device::registers_decrease<32>();
    const int lane = thread % 32, last_row = from < to ? rows_to : rows_from;
    if (thread < kFloatThreads + 32) {
      RaggedRows::for_each(rows_from, last_row, plan.channels, [&](int stage, uint32_t parity, int row, int channel) {
        device::barrier_wait(stages.empty + stage * 8, parity ^ 1);
        ragged.bring(stages, stage, row, channel, lane);
      });
    } else if (thread < kFloatThreads + 64) {
      RaggedRows::for_each(rows_from, last_row, plan.channels, [&](int stage, uint32_t parity, int row, int) {
        device::barrier_wait(stages.full + stage * 8, parity);
        ragged.surround(stages, stage, row, lane);
        device::fence_async_proxy();  // the copy engine writes there next
        __syncwarp();
        if (lane == 0) device::barrier_arrive(stages.ready + stage * 8);
      });
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
    float sums[kTaps][kResults][kFloatColumns] = {};
    const int column = chunk * kFloatWidth + Side * thread;
    int stage = 0, left = from < to ? (rows_to - rows_from) * (plan.channels / kFloatChannels) : 0;
    uint32_t parity = 0;
    const float* weight = weights;
    ChannelInputs<Side> inputs[2];  // of the channel at hand and of the next one
    int row_at_hand = rows_from;    // of the stage
    const auto load = [&](int channel) {
      const int at = Ragged ? ragged.front() + static_cast<int>(ragged.lead(row_at_hand, channel)) : lead;
      inputs[channel % 2].load(stages.row(stage, channel) + at + Side * thread, plan.apart,
                               weight + channel * kFloatWeights);
    };
    if (left > 0) {
      device::barrier_wait(stages.ready, 0);
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
          __syncwarp();
          if (thread % 32 == 0) device::barrier_arrive(stages.empty + stage * 8);
          if (++stage == kFloatStages) {
            stage = 0;
            parity ^= 1;
          }
          const bool same_row = i + kFloatChannels < plan.channels;
          weight = same_row ? weight + kFloatChannels * kFloatWeights : weights;
          if (!same_row) ++row_at_hand;
          if (--left > 0) {
            device::barrier_wait(stages.ready + stage * 8, parity);
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
        for (int p = 0; p < kFloatColumns; ++p) {
          sums[0][c][p] += bias[c];
          poison = fmaf(sums[0][c][p], 0.0f, poison);
        }
      }
      if (arguments.activation.kind != ActivationKind::None) {
#pragma unroll
        for (int c = 0; c < kResults; ++c) {
#pragma unroll
          for (int p = 0; p < kFloatColumns; ++p)
            sums[0][c][p] = device::call_activation(arguments.activation, sums[0][c][p]);
        }
      }
#pragma unroll
      for (int c = 0; c < kResults; ++c) {
        float* const to_row = result + c * plan.result_plane + int64_t{done} * plan.result_width + column;
#pragma unroll
        for (int p = 0; p < kFloatColumns; p += Side) {
          if (done >= first_result && c < plan.results && column + column_of<Side>(p) < plan.result_width) {
            if constexpr (Side == 2) {
              *reinterpret_cast<float2*>(to_row + column_of<Side>(p)) = {sums[0][c][p], sums[0][c][p + 1]};
            } else {
              to_row[column_of<Side>(p)] = sums[0][c][p];
            }
          }
        }
#pragma unroll
        for (int p = 0; p < kFloatColumns; ++p) {
#pragma unroll
          for (int i = 0; i < kTaps; ++i) sums[i][c][p] = i + 1 < kTaps ? sums[i + 1][c][p] : 0.0f;
        }
      }
      // Zeros stand for what does not exist: they are no part of sums that are not finite.
      if (poison != poison && done >= first_result)
        plain_row<Side>(plan, arguments, plain, Place(plan, blockIdx.x), done);
    }
  }
}

}  // namespace halo::cuda::conv::few_results
