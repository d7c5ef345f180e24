// Forward and backward_input of half types where many channels come out of few.
//
// A block makes whole rows of results of kRows channels. It brings all that they read into shared memory, where the (at
// most four) channels of a position lie side by side. Rows of a product are result channels, its columns positions, its
// depth (tap, channel). The block makes kRun neighbouring results at a time, wherever rows end, in a stage that the
// copy engine writes: ordinary stores that do not fill whole sectors take twice the time.
#pragma once

#include "../device/activation.cuh"
#include "../device/async_copy.cuh"
#include "../device/mma.cuh"
#include "../device/number.cuh"
#include "../device/wgmma.cuh"
#include "few_sources.h"
#include "plain_sum.cuh"

namespace halo::cuda::conv::few_sources {

inline constexpr int kSteps = kMostTaps * kSources / 16;  ///< of the tensor core
inline constexpr int kThreads = kRun / kPositions * 32;
inline constexpr int kStagePitch = kRun + 8;  ///< elements; 4 words modulo 32
inline constexpr int kStages = 2;
inline constexpr std::size_t kStageBytes = std::size_t{kStages} * kRows * kStagePitch * 2;

template <class T>
using Arguments = small_groups::GatherArguments<T>;

/// Brings `rows` source rows into shared memory. `from`: of the first channel, row 0, at `column` of the source.
template <class T>
__device__ __forceinline__ void fill_sources(const Plan& plan, unsigned char* shared, const T* from, int row, int rows,
                                             int column) {
  const auto pieces = static_cast<int>(plan.pieces.divisor);  // of four positions
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < rows * pieces; i += kThreads) {
    uint32_t column_piece;
    const auto r = static_cast<int>(plan.pieces.divide(static_cast<uint32_t>(i), column_piece));
    const int piece = static_cast<int>(column_piece) * 4;
    const bool exists = static_cast<unsigned>(row + r) < static_cast<unsigned>(plan.source_rows) &&
                        static_cast<unsigned>(column + piece) < static_cast<unsigned>(plan.source_width);
    const T* source = from + int64_t{row + r} * plan.source_width + column + piece;
    uint2 held[kSources];
#pragma unroll
    for (int c = 0; c < kSources; ++c, source += plan.source_plane)
      held[c] = exists && c < plan.channels ? *reinterpret_cast<const uint2*>(source) : uint2{};
    const auto pair = [&](uint32_t a, uint32_t b, uint32_t c, uint32_t d) {  // two positions of four channels
      return uint4{__byte_perm(a, b, 0x5410), __byte_perm(c, d, 0x5410), __byte_perm(a, b, 0x7632),
                   __byte_perm(c, d, 0x7632)};
    };
    auto* const to = reinterpret_cast<uint4*>(shared + i * (4 * kPositionBytes));
    to[0] = pair(held[0].x, held[1].x, held[2].x, held[3].x);
    to[1] = pair(held[0].y, held[1].y, held[2].y, held[3].y);
  }
}

/// The warp's results of all channels in the stage again, in plain float32. `flat`: of the first, in its channel.
template <class T>
__device__ __noinline__ void plain_results(const Plan& plan, const Arguments<T>& arguments, const PlainSumOf<T>& plain,
                                           T* stage, int64_t image_group, int64_t flat, int channel, int channels,
                                           int count) {
  const int64_t group_channel = image_group % plan.groups * plan.results;
  for (int i = static_cast<int>(threadIdx.x % 32); i < channels * count; i += 32) {
    const int c = channel + i / count;
    float sum = plain.at(image_group / plan.groups, group_channel + c, flat + i % count);
    if (arguments.bias != nullptr) sum += device::to_accumulator(arguments.bias[group_channel + c]);
    stage[i / count * kStagePitch + i % count] =
        device::from_accumulator<T>(device::call_activation(arguments.activation, sum));
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    gather_kernel(const __grid_constant__ Plan plan, const __grid_constant__ Arguments<T> arguments,
                  const __grid_constant__ PlainSumOf<T> plain) {
  extern __shared__ __align__(16) unsigned char shared[];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int g = lane / 4, t = lane % 4;

  int64_t rest = blockIdx.x;
  const auto set = static_cast<int>(rest % plan.sets);
  rest /= plan.sets;
  const int first_result = static_cast<int>(rest % plan.strips) * plan.strip;
  rest /= plan.strips;
  const auto depth = static_cast<int>(rest % plan.depth);
  const int64_t image_group = rest / plan.depth;
  const int channel = set * kRows, channels = min(kRows, plan.results - channel);

  auto* const stages = reinterpret_cast<T*>(shared);
  unsigned char* const sources = shared + kStageBytes;
  const bool bends = arguments.activation.kind != ActivationKind::None;

  // The warp's weights: rows g and g + 8 of two tiles, depth as the tensor core wants it.
  uint32_t a[2][kSteps][4];
  int taps[kSteps][2];  // where the lane finds its operand, beside the first position
  const T* const weight = arguments.weight + image_group % plan.groups * plan.weight_group;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const int tap = s * 4 + b * 2 + t / 2, c = t % 2 * 2;
      const bool exists = tap < plan.taps;
      taps[s][b] = (plan.lead + (exists ? plan.row[tap] * plan.pitch + plan.column[tap] : 0)) * kPositionBytes + c * 2;
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int row = channel + m * 16 + h * 8 + g;
          const auto value = [&](int k) {
            const bool there = exists && row < plan.results && k < plan.channels;
            return there ? uint32_t{weight[row * plan.weight_result + k * plan.weight_source + plan.tap[tap]].bits}
                         : 0u;
          };
          a[m][s][b * 2 + h] = value(c) | value(c + 1) << 16;
        }
      }
    }
  }
  float bias[2][2];
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = channel + m * 16 + h * 8 + g;
      const bool exists = arguments.bias != nullptr && row < plan.results;
      bias[m][h] =
          exists ? device::to_accumulator(arguments.bias[image_group % plan.groups * plan.results + row]) : 0.0f;
    }
  }

  const int last = min(first_result + plan.strip, plan.result_rows);
  int buffer = 0;
  for (int row = first_result; row < last; row += plan.part) {
    const int rows = min(plan.part, last - row), count = rows * plan.result_width;
    fill_sources(plan, sources,
                 arguments.source + image_group * plan.channels * plan.source_plane + depth * plan.source_slice,
                 row + plan.first_row, rows + plan.tap_rows - 1, plan.first_column - plan.lead);
    __syncthreads();
    const int64_t corner = (int64_t{depth} * plan.result_rows + row) * plan.result_width;
    T* const result = arguments.result + (image_group * plan.results + channel) * plan.result_plane + corner;
    for (int run = 0; run < count; run += kRun, buffer ^= 1) {
      T* const stage = stages + buffer * (kRows * kStagePitch);
      T* const own = stage + warp * kPositions;
      const int first = run + warp * kPositions;
      float poison = 0;
#pragma unroll 2
      for (int n = 0; n < kPositions; n += 8) {
        const int position = min(first + n + g, count - 1);
        const auto r = static_cast<int>(plan.in_row.divide(static_cast<uint32_t>(position)));
        const unsigned char* const at = sources + (position + r * (plan.pitch - plan.result_width)) * kPositionBytes;
        float sums[2][4];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[m][i] = bias[m][i / 2];
        }
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          const uint32_t b[2] = {*reinterpret_cast<const uint32_t*>(at + taps[s][0]),
                                 *reinterpret_cast<const uint32_t*>(at + taps[s][1])};
#pragma unroll
          for (int m = 0; m < 2; ++m) device::multiply_halves<T>(sums[m], a[m][s], b);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) poison = fmaf(sums[0][i], 0.0f, fmaf(sums[1][i], 0.0f, poison));
        if (bends) {
#pragma unroll
          for (int i = 0; i < 8; ++i)
            sums[i / 4][i % 4] = device::call_activation(arguments.activation, sums[i / 4][i % 4]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
          *reinterpret_cast<uint32_t*>(own + (i * 8 + g) * kStagePitch + n + t * 2) =
              device::pack_word<T>(sums[i / 2] + i % 2 * 2);
      }
      // Zeros stand for what does not exist: they are no part of results that are not finite.
      if (__any_sync(0xffffffffu, poison != poison) && first < count)
        plain_results(plan, arguments, plain, own, image_group, corner + first, channel, channels,
                      min(kPositions, count - first));
      device::fence_async_proxy();
      __syncthreads();
      // A warp's orders wait for each other, so all warps give some.
      constexpr int kOrders = kRows / (kThreads / 32);
      const int c = warp * kOrders + lane;
      if (lane < kOrders) {
        if (c < channels)
          device::store_bulk(result + c * plan.result_plane + run, device::shared_address(stage + c * kStagePitch),
                             static_cast<uint32_t>(min(kRun, count - run)) * uint32_t{sizeof(T)});
        device::store_bulk_wait<kStages - 1>();
      }
      __syncthreads();  // the other stage is free
    }
  }
  device::store_bulk_wait<0>();
}

}  // namespace halo::cuda::conv::few_sources
