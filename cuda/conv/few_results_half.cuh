// Few channels out of many in half types, on the tensor cores.
//
// A block marches down a strip of one image. Rows of a product are columns of the source row at hand, its depth the
// source channels, its columns the pairs (column offset, result channel) for each of the result rows that the source
// row reaches. Sums over rows of taps stay in registers, those over column offsets are made from shared memory when a
// result row is done. So each number of the source is read once, and is the operand of all results that it meets.
//
// Result row r has slot r modulo kTaps of the registers: with each source row, weights move on by one slot.
#pragma once

#include <cfloat>

#include "../device/activation.cuh"
#include "../device/async_copy.cuh"
#include "../device/mma.cuh"
#include "../device/number.cuh"
#include "few_results.h"
#include "plain_sum.cuh"

namespace halo::cuda::conv::few_results {

inline constexpr int kHalfWarps = 14;  ///< of 32 columns of the source
inline constexpr int kHalfColumns = kHalfWarps * 32, kHalfThreads = kHalfWarps * 32;
inline constexpr int kHalfChunk = 16;  ///< source channels of a stage
inline constexpr int kHalfStages = 10;
inline constexpr int kSums = kTaps * kResults;          ///< of a result row: (column offset, channel)
inline constexpr int kTiles = (kTaps * kSums + 7) / 8;  ///< of 8 columns of the product
inline constexpr int kSumPitch = kHalfColumns + 4;      ///< words between sums in shared memory: 4 modulo 32
inline constexpr int kHalfPitch = kHalfColumns + 8;     ///< elements of a channel of a stage: no banks conflict
inline constexpr int kStageBytes = kHalfChunk * kHalfPitch * 2;
/// Weights of a chunk: [t][column of the product, some to spare][two words of a lane].
inline constexpr int kWeightColumns = 36, kWeightWords = 4 * kWeightColumns * 2;

inline std::size_t half_shared_bytes(const Plan& plan) {
  return std::size_t{kHalfStages} * kStageBytes +
         (std::size_t{kSums} * kSumPitch + static_cast<std::size_t>(plan.units) * kWeightWords) * 4;
}

/// Column i * kSums + j * kResults + c is what a source row gives, by column offset j, to channel c of result row i
/// after the first that it reaches. Those beyond are zero.
template <class T>
__device__ void fill_weights(uint32_t* weights, const Plan& plan, const T* weight) {
  constexpr int kEach = 4 * kWeightColumns;
  for (int i = static_cast<int>(threadIdx.x); i < plan.units * kEach; i += kHalfThreads) {
    const int column = i % kWeightColumns, t = i / kWeightColumns % 4, step = i / kEach;
    const int row = column / kSums, offset = column % kSums / kResults, result = column % kResults;
    const auto value = [&](int channel) {
      const bool exists = row < kTaps && result < plan.results && channel < plan.channels;
      const int tap = plan.tap[(2 * kTaps - 1 - row) % kTaps][offset];
      return exists ? weight[result * plan.weight_result + channel * plan.weight_source + tap] : T{};
    };
    uint32_t* const to = weights + i * 2;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int channel = step * 16 + k * 8 + t * 2;
      to[k] = value(channel).bits | uint32_t{value(channel + 1).bits} << 16;
    }
  }
}

/// Source rows on their way into shared memory, kHalfChunk channels at a time. A thread copies the same four columns of
/// every fourth channel.
template <class T>
struct Feed {
  const Plan& plan;
  const T* from;  ///< of the thread's first channel, row 0, the thread's columns
  int row, last, channel, unit = 0;
  bool exists;
  uint32_t to;

  __device__ __forceinline__ void order(int stage) {
    if (row < last) {
      const int first = unit * kHalfChunk + channel;
      const T* source = from + int64_t{first} * plan.source_plane + int64_t{row} * plan.source_width;
      uint32_t at = to + static_cast<uint32_t>(stage * kStageBytes);
#pragma unroll
      for (int c = 0; c < kHalfChunk; c += 4, source += 4 * plan.source_plane, at += 4 * kHalfPitch * sizeof(T))
        device::copy_async<4 * sizeof(T)>(at, source, exists && first + c < plan.channels ? 4 * sizeof(T) : 0);
      if (++unit == plan.units) {
        unit = 0;
        ++row;
      }
    }
    device::copy_async_commit();
  }
};

__device__ __forceinline__ void load_transposed(uint32_t row, uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

using Sums = float[2][kTiles][4];  ///< [half of the warp's columns]

/// Adds what a stage gives. `columns`: of the weights, for each tile, the one that the lane reads.
template <class T>
__device__ __forceinline__ void multiply(Sums& sums, const unsigned char* stage, const uint32_t* weights,
                                         const int (&columns)[kTiles], int warp, int lane) {
  const int t = lane % 4;
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(stage)) +
                  static_cast<uint32_t>((lane / 16 * 8 + lane % 8) * kHalfPitch + warp * 32 + lane / 8 % 2 * 8) * 2;
  uint32_t a[2][4];
  load_transposed(at, a[0]);
  load_transposed(at + 32, a[1]);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const uint2 two = *reinterpret_cast<const uint2*>(weights + (t * kWeightColumns + columns[n]) * 2);
#pragma unroll
    for (int m = 0; m < 2; ++m) device::multiply_halves<T>(sums[m][n], a[m], {two.x, two.y});
  }
}

/// Sums over column offsets, which are the results of row `row`. Zeros stand for what does not exist: they are no part
/// of results that are not finite, which are computed in plain float32.
template <class T>
__device__ __forceinline__ void write_row(const Plan& plan, const Arguments<T>& arguments, const PlainSumOf<T>& plain,
                                          const Place& place, const float* finished, int row) {
  const int64_t image = place.image_group / plan.groups;
  const int channel = static_cast<int>(place.image_group % plan.groups) * plan.results,
            begin = place.chunk * plan.width;
  const int width = min(plan.width, plan.result_width - begin);
  const int64_t flat = int64_t{row} * plan.result_width + begin;
  T* const result = arguments.result + place.image_group * plan.results * plan.result_plane +
                    int64_t{place.depth} * plan.result_slice + flat;
  for (int c = 0; c < plan.results; ++c) {
    const float bias = arguments.bias == nullptr ? 0.0f : device::to_accumulator(arguments.bias[channel + c]);
    for (int column = static_cast<int>(threadIdx.x); column < width; column += kHalfThreads) {
      const float* const from = finished + c * kSumPitch + column;
      float sum = from[0];
#pragma unroll
      for (int j = 1; j < kTaps; ++j) sum += from[j * kResults * kSumPitch + j * plan.apart];
      if (!(fabsf(sum) <= FLT_MAX))
        sum = plain.at(image, channel + c, int64_t{place.depth} * plan.result_rows * plan.result_width + flat + column);
      sum += bias;
      if (arguments.activation.kind != ActivationKind::None) sum = device::call_activation(arguments.activation, sum);
      result[c * plan.result_plane + column] = device::from_accumulator<T>(sum);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kHalfThreads, 1)
    half_kernel(const __grid_constant__ Plan plan, const __grid_constant__ Arguments<T> arguments,
                const __grid_constant__ PlainSumOf<T> plain) {
  extern __shared__ __align__(128) unsigned char shared[];
  auto* const finished = reinterpret_cast<float*>(shared + kHalfStages * kStageBytes);  // [sum][column]
  auto* const weights = reinterpret_cast<uint32_t*>(finished + kSums * kSumPitch);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const Place place(plan, blockIdx.x);

  // A source row reaches kTaps result rows: the last of them is `row - first_row`.
  const int rows_from = max(place.first_result + plan.first_row, 0);
  const int rows_to = min(place.last_result + plan.first_row + kTaps - 1, plan.source_rows);
  const int first = place.chunk * plan.width + plan.first_column, lead = (first % 4 + 4) % 4;
  const int own = first - lead + thread % (kHalfColumns / 4) * 4, channel = thread / (kHalfColumns / 4);
  Feed<T> feed{plan,
               arguments.source + place.image_group * plan.channels * plan.source_plane +
                   int64_t{place.depth} * plan.source_slice + own,
               rows_from,
               rows_to,
               channel,
               0,
               own >= 0 && own < plan.source_width,
               static_cast<uint32_t>(__cvta_generic_to_shared(shared)) +
                   static_cast<uint32_t>((channel * kHalfPitch + thread % (kHalfColumns / 4) * 4) * sizeof(T))};
  for (int i = 0; i + 1 < kHalfStages; ++i) feed.order(i);
  fill_weights<T>(weights, plan, arguments.weight + place.image_group % plan.groups * plan.weight_group);

  Sums sums{};
  int stage = 0, slot = 0;  // slot: of the first result row that the source row at hand reaches
  for (int row = place.first_result; row < place.last_result + kTaps - 1; ++row, slot = (slot + 1) % kTaps) {
    int columns[kTiles];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int column = n * 8 + lane / 4;
      columns[n] = column < kTaps * kSums ? (column + (kTaps - slot) * kSums) % (kTaps * kSums) : kTaps * kSums;
    }
    if (row + plan.first_row >= rows_from && row + plan.first_row < rows_to) {
      for (int unit = 0; unit < plan.units; ++unit) {
        device::copy_async_wait<kHalfStages - 2>();
        __syncthreads();  // the stage has arrived, and everybody is done with the one before
        feed.order(stage == 0 ? kHalfStages - 1 : stage - 1);
        multiply<T>(sums, shared + stage * kStageBytes, weights + unit * kWeightWords, columns, warp, lane);
        stage = stage + 1 == kHalfStages ? 0 : stage + 1;
      }
    }
    // No later source row reaches the first result row.
    __syncthreads();  // the last one has been written
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = n * 8 + lane % 4 * 2 + e;
        if (column / kSums != slot) continue;
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            finished[column % kSums * kSumPitch + warp * 32 + m * 16 + h * 8 + lane / 4] = sums[m][n][h * 2 + e];
            sums[m][n][h * 2 + e] = 0;
          }
        }
      }
    }
    __syncthreads();
    const int done = row - (kTaps - 1);
    if (done >= place.first_result) write_row(plan, arguments, plain, place, finished + lead, done);
  }
}

}  // namespace halo::cuda::conv::few_results
