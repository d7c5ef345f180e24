// Few channels out of many in half types, on the tensor cores.
//
// A block marches down a strip of one image. Rows of a product are columns of the source row at hand, its depth the
// source channels, its columns the pairs (column offset, result channel) for each of the result rows that the source
// row reaches. Sums over rows of taps stay in registers, those over column offsets are made from shared memory when a
// result row is done. So each number of the source is read once, and is the operand of all results that it meets.
//
// Warps of their own bring rows of kHalfChunk channels; those that multiply take them as they arrive, and meet once a
// result row.
//
// `Ragged`: rows begin at any address. They come as whole granules, and each is read from where it begins in its own.
#pragma once

#include <cfloat>

#include "../../device/activation.cuh"
#include "../../device/async_copy.cuh"
#include "../../device/mma.cuh"
#include "../../device/number.cuh"
#include "../plain_sum.cuh"
#include "few_results.h"
#include "half_feed.cuh"

namespace halo::cuda::conv::few_results {

inline constexpr int kSums = kTaps * kResults;        ///< of a result row: (column offset, channel)
inline constexpr int kTiles = kTaps + 1;              ///< of 8 columns: of each result row, and the last sum of each
inline constexpr int kSumPitch = kHalfColumns + 4;    ///< words between sums in shared memory: 4 modulo 32
inline constexpr int kWeightWords = kTiles * 32 * 2;  ///< of a stage: [tile][lane][word]

inline std::size_t half_shared_bytes(const Plan& plan) {
  return std::size_t{kHalfStages} * kStageBytes +
         (std::size_t{2 * kSums} * kSumPitch + static_cast<std::size_t>(plan.units) * kWeightWords) * 4;
}

/// Column q of tile i is what a source row gives to sum q of result row i after the first that it reaches; column i of
/// the last tile the same for the last sum. Those beyond are zero.
template <class T>
__device__ void fill_weights(uint32_t* weights, const Plan& plan, const T* weight) {
  for (int i = static_cast<int>(threadIdx.x); i < plan.units * kWeightWords; i += kHalfBlock) {
    const int lane = i / 2 % 32, tile = i / 64 % kTiles, column = lane / 4;
    const int row = tile < kTaps ? tile : column, sum = tile < kTaps ? column : kSums - 1;
    const int offset = sum / kResults, result = sum % kResults;
    const auto value = [&](int channel) {
      const bool exists = row < kTaps && result < plan.results && channel < plan.channels;
      const int tap = exists ? plan.tap[kTaps - 1 - row][offset] : 0;
      return exists ? weight[result * plan.weight_result + channel * plan.weight_source + tap] : T{};
    };
    const int channel = i / kWeightWords * kHalfChunk + i % 2 * 8 + lane % 4 * 2;
    weights[i] = value(channel).bits | uint32_t{value(channel + 1).bits} << 16;
  }
}

__device__ __forceinline__ void load_transposed(uint32_t row, uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

using Sums = float[kWarpTiles][kTiles][4];

/// Two neighbouring channels of one column.
__device__ __forceinline__ uint32_t load_pair(uint32_t first, uint32_t second) {
  uint16_t low, high;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(low) : "r"(first) : "memory");
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(high) : "r"(second) : "memory");
  return low | uint32_t{high} << 16;
}

/// Of a lane in a stage: its first row of matrices, or Ragged its first column of the four channels that it multiplies.
template <bool Ragged>
using Places = uint32_t[Ragged ? 4 : 1];

/// Adds what a stage gives.
template <class T, bool Ragged>
__device__ __forceinline__ void multiply(Sums& sums, const Places<Ragged>& places, uint32_t stage,
                                         const uint32_t* weights, int lane) {
  uint32_t a[kWarpTiles][4];
#pragma unroll
  for (int m = 0; m < kWarpTiles; ++m) {
    if constexpr (Ragged) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t at = stage + m * 32 + i % 2 * 16;
        a[m][i] = load_pair(places[i / 2 * 2] + at, places[i / 2 * 2 + 1] + at);
      }
    } else {
      load_transposed(places[0] + stage + m * 32, a[m]);
    }
  }
  uint2 b[kTiles];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) b[n] = reinterpret_cast<const uint2*>(weights)[n * 32 + lane];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int m = 0; m < kWarpTiles; ++m) device::multiply_halves<T>(sums[m][n], a[m], {b[n].x, b[n].y});
  }
}

/// Writes the sums of the first result row to shared memory, and moves those of the next rows up. Columns from `from`
/// to `to` exist.
__device__ __forceinline__ void finish_row(Sums& sums, float* finished, int warp, int lane) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int m = 0; m < kWarpTiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int column = (warp * kWarpTiles + m) * 16 + h * 8 + g;
      float* const own = finished + column;
      own[2 * t * kSumPitch] = sums[m][0][h * 2];
      own[(2 * t + 1) * kSumPitch] = sums[m][0][h * 2 + 1];
      float(&last)[4] = sums[m][kTaps];
      if (t == 0) own[(kSums - 1) * kSumPitch] = last[h * 2];
      const float next = __shfl_down_sync(0xffffffffu, last[h * 2], 1);
      last[h * 2] = t == 0 ? last[h * 2 + 1] : 0.0f;
      last[h * 2 + 1] = next;
    }
#pragma unroll
    for (int i = 0; i < kTaps; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[m][i][e] = i + 1 < kTaps ? sums[m][i + 1][e] : 0.0f;
    }
  }
}

/// One result as a plain float32 chain.
template <class T>
__device__ __noinline__ float plain_result(const PlainSumOf<T>& plain, int64_t image, int channel, int64_t flat) {
  return plain.at(image, channel, flat);
}

/// Sums over column offsets, which are the results of row `row`. Zeros stand for what does not exist: they are no part
/// of results that are not finite, which are computed in plain float32.
template <class T>
__device__ __forceinline__ void write_row(const Plan& plan, const Arguments<T>& arguments, const PlainSumOf<T>& plain,
                                          const Place& place, const float (&bias)[kResults], const float* finished,
                                          int row) {
  const int64_t image = place.image_group / plan.groups;
  const int channel = static_cast<int>(place.image_group % plan.groups) * plan.results,
            begin = place.chunk * plan.width;
  const int width = min(plan.width, plan.result_width - begin);
  const int64_t flat = int64_t{row} * plan.result_width + begin;
  T* const result = arguments.result + place.image_group * plan.results * plan.result_plane +
                    int64_t{place.depth} * plan.result_slice + flat;
  for (int column = static_cast<int>(threadIdx.x); column < width; column += kHalfThreads) {
    float sums[kResults];
    bool finite = true;
#pragma unroll
    for (int c = 0; c < kResults; ++c) {
      const float* const from = finished + c * kSumPitch + column;
      sums[c] = from[0];
#pragma unroll
      for (int j = 1; j < kTaps; ++j) sums[c] += from[j * kResults * kSumPitch + j * plan.apart];
      finite = finite && fabsf(sums[c]) <= FLT_MAX;
    }
    if (!finite) {
#pragma unroll
      for (int c = 0; c < kResults; ++c) {
        if (c < plan.results && !(fabsf(sums[c]) <= FLT_MAX))
          sums[c] = plain_result(plain, image, channel + c,
                                 int64_t{place.depth} * plan.result_rows * plan.result_width + flat + column);
      }
    }
#pragma unroll
    for (int c = 0; c < kResults; ++c) {
      if (c >= plan.results) break;
      float sum = sums[c] + bias[c];
      if (arguments.activation.kind != ActivationKind::None) sum = device::call_activation(arguments.activation, sum);
      result[c * plan.result_plane + column] = device::from_accumulator<T>(sum);
    }
  }
}

template <class T, bool Ragged>
__global__ void __launch_bounds__(kHalfBlock, 1)
    half_kernel(const __grid_constant__ Plan plan, const __grid_constant__ Arguments<T> arguments,
                const __grid_constant__ PlainSumOf<T> plain) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Ring::Barriers barriers;
  auto* const finished = reinterpret_cast<float*>(shared + kHalfStages * kStageBytes);  // two of [sum][column]
  auto* const weights = reinterpret_cast<uint32_t*>(finished + 2 * kSums * kSumPitch);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const Place place(plan, blockIdx.x);

  // A source row reaches kTaps result rows: the last of them is `row - first_row`.
  const int rows_from = max(place.first_result + plan.first_row, 0);
  const int rows_to = min(place.last_result + plan.first_row + kTaps - 1, plan.source_rows);
  // Shared memory begins at a whole piece of eight, `lead` columns before what the chunk's first result reads.
  const int first = place.chunk * plan.width + plan.first_column, lead = first & 7, begin = first - lead;
  fill_weights<T>(weights, plan, arguments.weight + place.image_group % plan.groups * plan.weight_group);
  Ring ring(barriers, kHalfStages);
  if (thread == 0) ring.init(Ragged ? plan.warps : kHalfWarps, Ragged ? 2 * kFeeders : kFeeders);
  __syncthreads();

  const int columns = lead + min(plan.width, plan.result_width - place.chunk * plan.width) + 2 * plan.apart;
  const T* const source = arguments.source + place.image_group * plan.channels * plan.source_plane +
                          int64_t{place.depth} * plan.source_slice + begin;
  const RaggedSource<T> ragged{source, plan.source_plane, plan.channels, plan.source_width, begin, columns};
  if (warp >= kHalfWarps) {
    device::registers_decrease<56>();
    if constexpr (Ragged) {
      RaggedFeeder<T>(ragged, shared, thread - kHalfThreads).feed(rows_from, rows_to, plan.units, ring);
    } else {
      for (int row = rows_from; row < rows_to; ++row) {
        for (int unit = 0; unit < plan.units; ++unit, ring.advance()) {
          ring.wait_released();
          feed_stage(plan, source + int64_t{unit} * kHalfChunk * plan.source_plane + int64_t{row} * plan.source_width,
                     plan.channels - unit * kHalfChunk, begin, columns,
                     device::shared_address(shared) + ring.slot() * kStageBytes);
          device::copy_async_arrive(ring.copied());
        }
      }
    }
  } else {
    device::registers_increase<152>();
    const uint32_t own = device::shared_address(shared) + warp * kWarpTiles * 16 * 2;
    Places<Ragged> places{};
    if constexpr (!Ragged) places[0] = own + ((lane / 16 * 8 + lane % 8) * kHalfPitch + lane / 8 % 2 * 8) * 2;
    float bias[kResults] = {};
#pragma unroll
    for (int c = 0; c < kResults; ++c) {
      const int64_t channel = place.image_group % plan.groups * plan.results + c;
      if (arguments.bias != nullptr && c < plan.results) bias[c] = device::to_accumulator(arguments.bias[channel]);
    }
    Sums sums{};
    for (int row = place.first_result; row < place.last_result + kTaps - 1; ++row) {
      const int source_row = row + plan.first_row;
      if ((!Ragged || warp < plan.warps) && source_row >= rows_from && source_row < rows_to) {
        if constexpr (Ragged) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int channel = lane % 4 * 2 + i / 2 * 8 + i % 2;
            places[i] = own + (channel * kHalfPitch + ragged.lead(source_row, channel) + lane / 4) * 2;
          }
        }
#pragma unroll 1
        for (int unit = 0; unit < plan.units; ++unit, ring.advance()) {
          ring.wait_copied();
          multiply<T, Ragged>(sums, places, ring.slot() * kStageBytes, weights + unit * kWeightWords, lane);
          ring.release(lane);
        }
      }
      // No later source row reaches the first result row. Two rows of sums: nobody still reads what is written here.
      float* const sums_of_row = finished + row % 2 * (kSums * kSumPitch);
      finish_row(sums, sums_of_row, warp, lane);
      device::barrier_sync(1, kHalfThreads);
      const int done = row - (kTaps - 1);
      if (done >= place.first_result) write_row(plan, arguments, plain, place, bias, sums_of_row + lead, done);
    }
  }
}

}  // namespace halo::cuda::conv::few_results
