// Few channels out of many in float32, by plain multiply-adds.
//
// A block marches down a strip of one image. The copy engine brings whole rows of a few source channels at a time; a
// thread adds each number it reads to the results of all rows and channels that it meets, three rows of them in
// registers, and writes a row when no later one reaches it. Each source row is read once a strip.
#pragma once

#include "../device/activation.cuh"
#include "../device/async_copy.cuh"
#include "../device/mbarrier.cuh"
#include "../device/wgmma.cuh"
#include "few_results.h"
#include "plain_sum.cuh"

namespace halo::cuda::conv::few_results {

inline constexpr int kFloatThreads = 256;  // that add; a warp more gives the copy engine its orders
inline constexpr int kFloatColumns = 10;   // of a thread, kFloatThreads apart
inline constexpr int kFloatChannels = 4;   // of a stage
inline constexpr int kFloatStages = 4;
inline constexpr int kFloatPitch =
    kFloatThreads * kFloatColumns + kReach + 4;  // of a row in shared memory: 3 columns before the first
inline constexpr int kFloatWeights = 28;         // of a source channel: [row][column][result], one to spare
inline constexpr int kFloatWidth = kFloatThreads * kFloatColumns;

/// Stages of rows on their way into shared memory.
struct Stages {
  uint32_t full, empty;
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

/// Adds what kFloatChannels source channels give to the rows that tap 0, 1, 2 reach. `at`: the thread's first column.
__device__ __forceinline__ void add_channels(float (&sums)[kTaps][kResults][kFloatColumns], const float* at, int apart,
                                             const float* weights) {
  const float* const columns[kTaps] = {at, at + apart, at + 2 * apart};
#pragma unroll
  for (int k = 0; k < kFloatChannels; ++k) {
    float values[kTaps][kFloatColumns];
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
#pragma unroll
      for (int p = 0; p < kFloatColumns; ++p) values[j][p] = columns[j][k * kFloatPitch + p * kFloatThreads];
    }
    float w[kFloatWeights];
#pragma unroll
    for (int i = 0; i < kFloatWeights; i += 4) {
      *reinterpret_cast<float4*>(w + i) = *reinterpret_cast<const float4*>(weights + k * kFloatWeights + i);
    }
#pragma unroll
    for (int i = 0; i < kTaps; ++i) {
#pragma unroll
      for (int j = 0; j < kTaps; ++j) {
#pragma unroll
        for (int c = 0; c < kResults; ++c) {
#pragma unroll
          for (int p = 0; p < kFloatColumns; ++p) {
            sums[i][c][p] = fmaf(values[j][p], w[(i * kTaps + j) * kResults + c], sums[i][c][p]);
          }
        }
      }
    }
  }
}

inline std::size_t float_shared_bytes(const Plan& plan) {
  return (std::size_t{kFloatStages} * kFloatChannels * kFloatPitch +
          static_cast<std::size_t>(plan.channels) * kFloatWeights) *
         sizeof(float);
}

/// Row i of the weights in shared memory is what a source row gives to the result row i after the first it reaches.
__device__ inline void fill_float_weights(float* weights, const Plan& plan, const float* weight) {
  for (int i = static_cast<int>(threadIdx.x); i < plan.channels * kFloatWeights; i += kFloatThreads + 32) {
    const int at = i % kFloatWeights, result = at % kResults, column = at / kResults % kTaps,
              row = at / (kResults * kTaps);
    const float* const from = weight + result * plan.weight_result + i / kFloatWeights * plan.weight_source;
    weights[i] = row < kTaps && result < plan.results ? from[plan.tap[kTaps - 1 - row][column]] : 0.0f;
  }
}

/// The thread's results of row `done` again, as plain float32 chains.
__device__ __noinline__ inline void plain_row(const Plan& plan, const Arguments<float>& arguments,
                                              const PlainSum& plain, const Place& place, int done) {
  const int64_t channel = place.image_group % plan.groups * plan.results;
  for (int i = 0; i < plan.results * kFloatColumns; ++i) {
    const int c = i / kFloatColumns,
              column = place.chunk * kFloatWidth + i % kFloatColumns * kFloatThreads + static_cast<int>(threadIdx.x);
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

__global__ void __launch_bounds__(kFloatThreads + 32, 1)
    float_kernel(const __grid_constant__ Plan plan, const __grid_constant__ Arguments<float> arguments,
                 const __grid_constant__ PlainSum plain) {
  extern __shared__ __align__(128) float staged[];
  __shared__ uint64_t barriers[2 * kFloatStages];
  float* const weights = staged + kFloatStages * kFloatChannels * kFloatPitch;
  const auto thread = static_cast<int>(threadIdx.x);
  const auto full = static_cast<uint32_t>(__cvta_generic_to_shared(barriers));
  const Stages stages{full, full + kFloatStages * 8, staged};

  const auto [chunk, first_result, last_result, depth, image_group] = Place(plan, blockIdx.x);

  // Shared memory begins `lead` columns before what the chunk's first result reads, at a whole 16-byte piece.
  const int begin = chunk * kFloatWidth + plan.first_column;
  const int lead = ((begin % 4) + 4) % 4;
  const int from = max(begin - lead, 0), to = min(begin - lead + kFloatPitch, plan.source_width);

  for (int i = thread; i < kFloatStages * kFloatChannels * kFloatPitch; i += kFloatThreads + 32) staged[i] = 0;
  fill_float_weights(weights, plan, arguments.weight + image_group % plan.groups * plan.weight_group);
  if (thread == 0) {
    for (int i = 0; i < kFloatStages; ++i) {
      device::barrier_init(stages.full + i * 8, 1);
      device::barrier_init(stages.empty + i * 8, kFloatThreads / 32);
    }
    device::barrier_init_fence();
  }
  device::fence_async_proxy();
  __syncthreads();

  // A source row reaches kTaps result rows: the last of them is `row - first_row`.
  const int rows_from = max(first_result + plan.first_row, 0);
  const int rows_to = min(last_result + plan.first_row + kTaps - 1, plan.source_rows);
  if (thread >= kFloatThreads) {
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
    return;
  }

  float* const result =
      arguments.result + image_group * plan.results * plan.result_plane + int64_t{depth} * plan.result_slice;
  const float* const bias =
      arguments.bias == nullptr ? nullptr : arguments.bias + image_group % plan.groups * plan.results;
  float sums[kTaps][kResults][kFloatColumns] = {};
  int stage = 0;
  uint32_t parity = 0;
  for (int row = first_result; row < last_result + kTaps - 1; ++row) {
    const int source_row = row + plan.first_row;
    if (from < to && source_row >= rows_from && source_row < rows_to) {
#pragma unroll 1
      for (int i = 0; i < plan.channels; i += kFloatChannels) {
        device::barrier_wait(stages.full + stage * 8, parity);
        add_channels(sums, stages.row(stage, 0) + lead + thread, plan.apart, weights + i * kFloatWeights);
        __syncwarp();
        if (thread % 32 == 0) device::barrier_arrive(stages.empty + stage * 8);
        if (++stage == kFloatStages) {
          stage = 0;
          parity ^= 1;
        }
      }
    }
    const int done = row - (kTaps - 1);  // no later row reaches it
    float poison = 0;                    // becomes NaN with the first result that is not finite
#pragma unroll
    for (int c = 0; c < kResults; ++c) {
#pragma unroll
      for (int p = 0; p < kFloatColumns; ++p) {
        const int column = chunk * kFloatWidth + p * kFloatThreads + thread;
        if (done >= first_result && c < plan.results && column < plan.result_width) {
          const float sum = bias == nullptr ? sums[0][c][p] : sums[0][c][p] + bias[c];
          poison = fmaf(sum, 0.0f, poison);
          result[c * plan.result_plane + int64_t{done} * plan.result_width + column] =
              arguments.activation.kind == ActivationKind::None ? sum
                                                                : device::call_activation(arguments.activation, sum);
        }
#pragma unroll
        for (int i = 0; i < kTaps; ++i) sums[i][c][p] = i + 1 < kTaps ? sums[i + 1][c][p] : 0.0f;
      }
    }
    // Zeros stand for what does not exist: they are no part of sums that are not finite.
    if (poison != poison) plain_row(plan, arguments, plain, Place(plan, blockIdx.x), done);
  }
}

}  // namespace halo::cuda::conv::few_results
