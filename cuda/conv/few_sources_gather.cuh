// Forward and backward_input of half types where many channels come out of few.
//
// A block marches down a strip of one image with a ring of source rows in shared memory, where the (at most four)
// channels of a position lie side by side. Rows of a product are result channels, its columns positions, its depth
// (tap, channel). A warp makes kPositions neighbouring results of kRows channels at a time, and writes them by whole
// rows out of a stage of its own.
#pragma once

#include "../device/activation.cuh"
#include "../device/mma.cuh"
#include "../device/number.cuh"
#include "few_sources.h"
#include "plain_sum.cuh"

namespace halo::cuda::conv::few_sources {

inline constexpr int kSteps = kMostTaps * kSources / 16;  ///< of the tensor core
inline constexpr int kThreads = kWidth / kPositions * 32;
inline constexpr int kRing = 4;  ///< source rows
inline constexpr int kRowBytes = (kWidth + kReach + 4) * kSources * 2;
inline constexpr int kStagePitch = kPositions + 8;  ///< elements; 4 words modulo 32
inline constexpr std::size_t kSharedBytes = kRing * kRowBytes + kThreads / 32 * kRows * kStagePitch * 2;

template <class T>
using Arguments = small_groups::GatherArguments<T>;

/// Four neighbouring columns of a source row on their way from global memory to a place of the ring.
template <class T>
struct Feed {
  const Plan& plan;
  const T* from;  // row 0 of the first channel, the thread's columns
  int first;      // source row of the first result row
  bool exists;    // the columns
  unsigned char* to;
  uint2 held[kSources];

  __device__ __forceinline__ void fetch(int row) {
    const bool there = exists && first + row >= 0 && first + row < plan.source_rows;
    const T* source = from + int64_t{first + row} * plan.source_width;
#pragma unroll
    for (int c = 0; c < kSources; ++c, source += plan.source_plane)
      held[c] = there && c < plan.channels ? *reinterpret_cast<const uint2*>(source) : uint2{};
  }
  __device__ __forceinline__ void put(int row) const {
    if (to == nullptr) return;
    auto* const own = reinterpret_cast<uint4*>(to + row % kRing * kRowBytes);
    const auto pair = [&](uint32_t a, uint32_t b, uint32_t c, uint32_t d) {  // two positions of four channels
      return uint4{__byte_perm(a, b, 0x5410), __byte_perm(c, d, 0x5410), __byte_perm(a, b, 0x7632),
                   __byte_perm(c, d, 0x7632)};
    };
    own[0] = pair(held[0].x, held[1].x, held[2].x, held[3].x);
    own[1] = pair(held[0].y, held[1].y, held[2].y, held[3].y);
  }
};

/// What a lane reads of a tap: byte beside the first position of the warp, and row.
struct LaneTap {
  int byte, row;
};

/// A warp's results of one row, computed again in plain float32.
template <class T>
__device__ __noinline__ void plain_results(const Plan& plan, const Arguments<T>& arguments, const PlainSumOf<T>& plain,
                                           int64_t image_group, int64_t flat, int channel, int channels, int columns) {
  const int64_t group_channel = image_group % plan.groups * plan.results;
  for (int i = static_cast<int>(threadIdx.x % 32); i < channels * columns; i += 32) {
    const int c = channel + i / columns;
    float sum = plain.at(image_group / plan.groups, group_channel + c, flat + i % columns);
    if (arguments.bias != nullptr) sum += device::to_accumulator(arguments.bias[group_channel + c]);
    arguments.result[(image_group * plan.results + c) * plan.result_plane + flat + i % columns] =
        device::from_accumulator<T>(device::call_activation(arguments.activation, sum));
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    gather_kernel(const __grid_constant__ Plan plan, const __grid_constant__ Arguments<T> arguments,
                  const __grid_constant__ PlainSumOf<T> plain) {
  extern __shared__ __align__(16) unsigned char shared[];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int g = lane / 4, t = lane % 4;
  auto* const stage = reinterpret_cast<T*>(shared + kRing * kRowBytes) + warp * (kRows * kStagePitch);

  int64_t rest = blockIdx.x;
  const auto set = static_cast<int>(rest % plan.sets);
  rest /= plan.sets;
  const int begin = static_cast<int>(rest % plan.chunks) * plan.width;
  rest /= plan.chunks;
  const int first_result = static_cast<int>(rest % plan.strips) * plan.strip;
  rest /= plan.strips;
  const auto depth = static_cast<int>(rest % plan.depth);
  const int64_t image_group = rest / plan.depth;
  const int rows = min(plan.strip, plan.result_rows - first_result);
  const int channel = set * kRows, channels = min(kRows, plan.results - channel);

  const int own = begin + plan.first_column - plan.lead + thread * 4;
  const bool inside = thread * 4 < kRowBytes / (kSources * 2);  // a thread brings four columns
  Feed<T> feed{plan,
               arguments.source + image_group * plan.channels * plan.source_plane + depth * plan.source_slice + own,
               first_result + plan.first_row,
               inside && own >= 0 && own < plan.source_width,
               inside ? shared + thread * (4 * kSources * 2) : nullptr,
               {}};
  for (int row = 0; row < plan.tap_rows; ++row) {
    feed.fetch(row);
    feed.put(row);
  }

  // The warp's weights: rows g and g + 8 of two tiles, depth as the tensor core wants it.
  uint32_t a[2][kSteps][4];
  LaneTap taps[kSteps][2];
  const T* const weight = arguments.weight + image_group % plan.groups * plan.weight_group;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const int tap = s * 4 + b * 2 + t / 2, c = t % 2 * 2;
      const bool exists = tap < plan.taps;
      taps[s][b] = {(plan.lead + g + (exists ? plan.column[tap] : 0) + warp * kPositions) * (kSources * 2) + c * 2,
                    exists ? plan.row[tap] : 0};
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
  __syncthreads();

  const int columns =
      warp * kPositions < plan.width ? min(kPositions, plan.result_width - begin - warp * kPositions) : 0;
  int64_t flat = (int64_t{depth} * plan.result_rows + first_result) * plan.result_width + begin + warp * kPositions;
  T* const result = arguments.result + (image_group * plan.results + channel) * plan.result_plane;
  const bool bends = arguments.activation.kind != ActivationKind::None;
  for (int row = 0; row < rows; ++row, flat += plan.result_width) {
    feed.fetch(row + plan.tap_rows);
    float poison = 0;
    if (columns > 0) {
      const unsigned char* at[kSteps][2];
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int b = 0; b < 2; ++b) at[s][b] = shared + (row + taps[s][b].row) % kRing * kRowBytes + taps[s][b].byte;
      }
#pragma unroll 2
      for (int n = 0; n < kPositions / 8; ++n) {
        float sums[2][4];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[m][i] = bias[m][i / 2];
        }
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          const int byte = n * 8 * (kSources * 2);
          const uint32_t b[2] = {*reinterpret_cast<const uint32_t*>(at[s][0] + byte),
                                 *reinterpret_cast<const uint32_t*>(at[s][1] + byte)};
#pragma unroll
          for (int m = 0; m < 2; ++m) device::multiply_halves<T>(sums[m], a[m][s], b);
        }
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            poison = fmaf(sums[m][i], 0.0f, poison);
            if (bends) sums[m][i] = device::call_activation(arguments.activation, sums[m][i]);
          }
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            *reinterpret_cast<uint32_t*>(stage + (m * 16 + h * 8 + g) * kStagePitch + n * 8 + t * 2) =
                device::pack_word<T>(sums[m] + h * 2);
          }
        }
      }
      __syncwarp();
      const int column = lane % 16 * 4;
      T* to = result + lane / 16 * plan.result_plane + flat + column;
      if (column < columns) {
#pragma unroll 4
        for (int c = lane / 16; c < channels; c += 2, to += 2 * plan.result_plane)
          *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(stage + c * kStagePitch + column);
      }
      // Zeros stand for what does not exist: they are no part of results that are not finite.
      if (__any_sync(0xffffffffu, poison != poison))
        plain_results(plan, arguments, plain, image_group, flat, channel, channels, columns);
    }
    feed.put(row + plan.tap_rows);
    __syncthreads();  // the row has arrived; the oldest is not needed any more
  }
}

}  // namespace halo::cuda::conv::few_sources
