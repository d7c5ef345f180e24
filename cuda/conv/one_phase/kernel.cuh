// Convolutions of stride 2 along the width whose taps are a stride apart: most of the traffic is the source, of which
// every second position is read.
//
// One warp brings units, a piece of a row of 16 source channels (32 of half types), into a ring in shared memory, as
// they lie in memory. Eight warps multiply: with g = lane / 4, t = lane % 4, a lane has the results at four positions
// from 4 g on of the channels 8 j + 2 t and the next, and reads the six positions of the phase that they need, of the
// channels t, t + 4 and so on of a product. Those at 4 g + w and the next one are rows g and g + 8 of a product, so
// that five such pairs are the operands of three taps. Weights lie in shared memory as the tensor core reads them.
//
// Split operands, and zeros that stand for what does not exist, make results that are not finite where plain sums have
// finite ones: such an item is computed again, in plain float32.
#pragma once

#include <halo/core/host_device.h>
#include <halo/cuda/conv/algorithm.h>

#include <cstddef>
#include <cstdint>

#include "../../device/fast_divide.h"
#include "../../device/tf32_split.cuh"
#include "../../device/wgmma.cuh"
#include "../../device/wgmma_half.cuh"
#include "../plain_sum.cuh"
#include "../small_groups/small_groups.h"
#include "../streams/ring.cuh"

namespace halo::cuda::conv::one_phase {

inline constexpr int kStep = 2;  ///< of the width: elements from one position of the phase to the next
inline constexpr int kTaps = 3;
inline constexpr int kLanePositions = 4;
inline constexpr int kWindow = kLanePositions + kTaps - 1;  ///< positions of the phase that a lane reads
inline constexpr int kUsers = 8;                            ///< warps that multiply
inline constexpr int kThreads = (kUsers + 4) * 32;          ///< one more warp brings, of a warpgroup
inline constexpr int kWarpPositions = 8 * kLanePositions;
inline constexpr int kPositions = kUsers * kWarpPositions;           ///< of an item
inline constexpr int kReach = (kPositions + kTaps - 2) * kStep + 1;  ///< elements of a source row that it reads
inline constexpr int kColumns = 32;                                  ///< result channels
inline constexpr int kTileBytes = kColumns * 32;                     ///< of weights that one product reads
inline constexpr int kSteps = 2;                                     ///< products of a unit
inline constexpr int kFewestSlots = 3;

/// Source channels of a unit.
HALO_HOST_DEVICE constexpr int channels_of(int element_size) { return kSteps * 32 / element_size; }
/// Bytes between the channels of a unit, wherever its rows begin: an odd number of 16, against bank conflicts.
HALO_HOST_DEVICE constexpr int pitch_of(int element_size) { return (kReach * element_size + 15 + 15) / 32 * 32 + 16; }
HALO_HOST_DEVICE constexpr int slot_bytes_of(int element_size) {
  return channels_of(element_size) * pitch_of(element_size);
}

struct Plan {
  small_groups::GroupProblem problem;
  int tap[kTaps];  ///< in the order of the source, or -1
  int units;       ///< of the source channels
  int weight_bytes;
  int slots;
  bool packs;        ///< four results are one access
  FastDivide tiles;  ///< of a row
  FastDivide rows;   ///< of an image
  int items;
  int64_t blocks = 0;
  std::size_t shared_bytes = 0;
  double predicted_ms = 0;
};

template <class T>
using Arguments = small_groups::GatherArguments<T>;

struct Place {
  int image, row, q;
};

__device__ __forceinline__ Place place_of(const Plan& plan, int item) {
  uint32_t tile, row;
  const uint32_t image = plan.rows.divide(plan.tiles.divide(static_cast<uint32_t>(item), tile), row);
  return {static_cast<int>(image), static_cast<int>(row), static_cast<int>(tile) * kPositions};
}

/// The element of channel 0 that the item's first tap reads first, which may lie in front of the row.
template <class T>
__device__ __forceinline__ const T* source_of(const Plan& plan, const T* source, const Place& place) {
  const small_groups::GroupProblem& p = plan.problem;
  const int64_t row = int64_t{place.row / p.result[1] * p.step[0]} * p.source[1] + place.row % p.result[1] * p.step[1];
  return source + int64_t{place.image} * p.source_channels * p.source_rows.plane_pitch +
         (row * p.source[2] + (place.q * kStep + p.origin[2]));
}

/// The weights as the tensor core reads them: steps, taps, parts. A step's channels of half types are in the order in
/// which a lane's words have them: 0, 4, 1, 5, 2, 6, 3, 7, then 8 more.
template <class T, bool Split>
__device__ __forceinline__ void prepare(const Plan& plan, const T* weight, unsigned char* to) {
  constexpr int kPer = 4 / sizeof(T), kWords = kTileBytes / 4, kParts = Split ? 2 : 1;
  const small_groups::GroupProblem& p = plan.problem;
  for (int i = static_cast<int>(threadIdx.x); i < plan.units * kSteps * kTaps * kWords; i += kThreads) {
    const int k = i % 8, column = i / 8 % kColumns, tile = i / kWords, tap = tile % kTaps;
    const int channel = tile / kTaps * (8 * kPer) + (kPer == 2 ? k % 4 + k / 4 * 8 : k);
    float value[kPer];
#pragma unroll
    for (int e = 0; e < kPer; ++e) {
      const bool exists = column < p.result_channels && channel + 4 * e < p.source_channels && plan.tap[tap] >= 0;
      value[e] = exists ? device::to_accumulator(
                              weight[column * p.weight_result + (channel + 4 * e) * p.weight_source + plan.tap[tap]])
                        : 0.0f;
    }
    auto* const words = reinterpret_cast<uint32_t*>(to + tile * kParts * kTileBytes);
    const int at = device::core_matrix_word(column, k);
    if constexpr (kPer == 2) {
      words[at] = device::pack_word<T>(value);
    } else if constexpr (Split) {
      const device::Tf32Pair two = device::split_tf32_unguarded(value[0]);
      words[at] = two.high;
      words[kWords + at] = two.low;
    } else {
      words[at] = device::round_tf32(value[0]);
    }
  }
}

/// The warp that fills the ring, a lane a channel.
template <class T>
__device__ __forceinline__ void bring(const Plan& plan, const T* source, Ring ring, uint32_t slots, int lane) {
  constexpr int kSize = static_cast<int>(sizeof(T)), kChannels = channels_of(kSize);
  const small_groups::GroupProblem& p = plan.problem;
  for (int item = static_cast<int>(blockIdx.x); item < plan.items; item += static_cast<int>(gridDim.x)) {
    const Place place = place_of(plan, item);
    const int first = place.q * kStep + p.origin[2];
    const int skip = max(0, -first), count = max(0, min(kReach, p.source[2] - first) - skip);
    const T* from = source_of(plan, source, place) + lane * p.source_rows.plane_pitch;
    for (int unit = 0; unit < plan.units; ++unit, from += kChannels * p.source_rows.plane_pitch, ring.advance()) {
      const bool exists = lane < kChannels && unit * kChannels + lane < p.source_channels;
      const auto lead = static_cast<int>(reinterpret_cast<uintptr_t>(from) % device::kGranule);
      const uint32_t to = slots + ring.slot() * slot_bytes_of(kSize) + lane * pitch_of(kSize) +
                          (lead + skip * kSize) / device::kGranule * device::kGranule;
      streams::start_runs(ring, from + skip, exists ? static_cast<uint32_t>(count * kSize) : 0, to,
                          source + p.source_rows.elements, lane);
    }
  }
}

/// What a lane multiplies of a unit: for each step the pairs of neighbouring positions as the tensor core takes them.
template <class T, bool Split>
struct Fragments {
  static constexpr int kPairs = kWindow - 1;
  uint32_t high[kSteps][kPairs][4], low[Split ? kSteps : 1][kPairs][4];

  /// `from`: the lane's first position of channel t; `lead`: bytes by which rows of channels t and t + 4 begin later;
  /// `exists`: bits to keep of each position.
  __device__ __forceinline__ Fragments(const unsigned char* from, const int (&lead)[2],
                                       const uint32_t (&exists)[kWindow]) {
    constexpr int kSize = static_cast<int>(sizeof(T)), kPitch = pitch_of(kSize), kNext = kStep * kSize;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t word[2][kWindow];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
#pragma unroll
        for (int w = 0; w < kWindow; ++w) {
          if constexpr (kSize == 4) {
            const unsigned char* const row = from + (step * 2 + k) * 4 * kPitch + lead[0];
            word[k][w] = *reinterpret_cast<const uint32_t*>(row + w * kNext) & exists[w];
          } else {
            const unsigned char* const row = from + (step * 4 + k * 2) * 4 * kPitch;
            const uint32_t first = *reinterpret_cast<const uint16_t*>(row + lead[0] + w * kNext);
            const uint32_t second = *reinterpret_cast<const uint16_t*>(row + 4 * kPitch + lead[1] + w * kNext);
            word[k][w] = __byte_perm(first, second, 0x5410) & exists[w];
          }
        }
      }
#pragma unroll
      for (int k = 0; k < 2; ++k) {
#pragma unroll
        for (int w = 0; w < kWindow; ++w) {
          uint32_t part = 0;
          if constexpr (Split) {
            const device::Tf32Pair two = device::split_tf32_unguarded(__uint_as_float(word[k][w]));
            word[k][w] = two.high;
            part = two.low;
          } else if constexpr (kSize == 4) {
            word[k][w] = device::round_tf32_by_cut(__uint_as_float(word[k][w]));
          }
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            if (w - h < 0 || w - h >= kPairs) continue;
            high[step][w - h][2 * k + h] = word[k][w];
            if constexpr (Split) low[step][w - h][2 * k + h] = part;
          }
        }
      }
    }
  }
};

/// sums += the products of a unit. Split: small ones first, in a sum of their own, since the tensor core cuts off what
/// falls below the last place of a sum.
template <class T, bool Split>
__device__ __forceinline__ void multiply_unit(float (&sums)[2][16], Fragments<T, Split>& f, uint64_t weights) {
  constexpr int kParts = Split ? 2 : 1;
  const auto tile = [&](int step, int tap, int part) {
    return device::descriptor_after(weights,
                                    static_cast<uint32_t>(((step * kTaps + tap) * kParts + part) * kTileBytes));
  };
  float own[2][Split ? 16 : 1];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int pair = 0; pair < Fragments<T, Split>::kPairs; ++pair) {
      device::wgmma_pin(f.high[step][pair]);
      if constexpr (Split) device::wgmma_pin(f.low[step][pair]);
    }
  }
  device::wgmma_fence();
  if constexpr (Split) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          device::wgmma_tf32(own[m], f.low[step][tap + 2 * m], tile(step, tap, 0), step + tap > 0);
          device::wgmma_tf32(own[m], f.high[step][tap + 2 * m], tile(step, tap, 1), 1);
        }
      }
    }
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        if constexpr (Split) {
          device::wgmma_tf32(own[m], f.high[step][tap + 2 * m], tile(step, tap, 0), 1);
        } else if constexpr (sizeof(T) == 4) {
          device::wgmma_tf32(sums[m], f.high[step][tap + 2 * m], tile(step, tap, 0), 1);
        } else {
          device::wgmma_half<T>(sums[m], f.high[step][tap + 2 * m], tile(step, tap, 0));
        }
      }
    }
  }
  device::wgmma_commit();
  device::wgmma_wait<0>();
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    if constexpr (Split) {
      device::wgmma_pin(own[m]);
#pragma unroll
      for (int i = 0; i < 16; ++i) sums[m][i] += own[m][i];
    } else {
      device::wgmma_pin(sums[m]);
    }
  }
}

/// Those of a warp's results again that are not finite: `count` positions from `q` on.
template <class T>
__device__ __noinline__ void plain_results(const Plan& plan, const PlainSumOf<T>& plain, const T* bias, T* result,
                                           const Place& place, int q, int count) {
  const small_groups::GroupProblem& p = plan.problem;
  const int64_t flat = int64_t{place.row} * p.result[2] + q;
  __syncwarp();
  for (int c = 0; c < p.result_channels; ++c)
    repair_row(plain, result + (int64_t{place.image} * p.result_channels + c) * p.result_rows.plane_pitch + flat, count,
               place.image, c, flat, bias == nullptr ? nullptr : bias + c);
}

/// A lane's results of an item to their places. Returns what is 0 where all are finite.
template <class T>
__device__ __forceinline__ float write_results(const Plan& plan, const float (&sums)[2][16], T* to, int channel,
                                               int count) {
  const small_groups::GroupProblem& p = plan.problem;
  float poison = 0;
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float four[4] = {sums[0][4 * j + e], sums[0][4 * j + 2 + e], sums[1][4 * j + e], sums[1][4 * j + 2 + e]};
#pragma unroll
      for (int i = 0; i < 4; ++i) poison = fmaf(four[i], 0.0f, poison);
      if (channel + 8 * j + e >= p.result_channels) continue;
      T* const at = to + (8 * j + e) * p.result_rows.plane_pitch;
      if (plan.packs && count >= kLanePositions) {
        if constexpr (sizeof(T) == 4) {
          *reinterpret_cast<float4*>(at) = float4{four[0], four[1], four[2], four[3]};
        } else {
          *reinterpret_cast<uint2*>(at) = uint2{device::pack_word<T>(four), device::pack_word<T>(four + 2)};
        }
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (i < count) at[i] = device::from_accumulator<T>(four[i]);
        }
      }
    }
  }
  return poison;
}

/// What the multiplying warps do.
template <class T, bool Split>
__device__ __forceinline__ void make_results(const Plan& plan, const Arguments<T>& arguments,
                                             const PlainSumOf<T>& plain, Ring ring, const unsigned char* slots,
                                             uint64_t weights, int warp, int lane) {
  constexpr int kSize = static_cast<int>(sizeof(T));
  constexpr uint32_t kUnitWeights = kSteps * kTaps * (Split ? 2 : 1) * kTileBytes;
  const small_groups::GroupProblem& p = plan.problem;
  const int g = lane / 4, t = lane % 4, own = warp * kWarpPositions + kLanePositions * g;
  slots += t * pitch_of(kSize) + own * kStep * kSize;
  const auto plane = static_cast<unsigned>(p.source_rows.plane_pitch);
  for (int item = static_cast<int>(blockIdx.x); item < plan.items; item += static_cast<int>(gridDim.x)) {
    const Place place = place_of(plan, item);
    const auto low = static_cast<unsigned>(reinterpret_cast<uintptr_t>(source_of(plan, arguments.source, place)) /
                                           unsigned{sizeof(T)});
    int lead[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      lead[i] = static_cast<int>((low + (t + 4 * i) * plane) % (device::kGranule / kSize)) * kSize;
    uint32_t exists[kWindow];
#pragma unroll
    for (int w = 0; w < kWindow; ++w) {
      const int at = (place.q + own + w) * kStep + p.origin[2];
      exists[w] = static_cast<unsigned>(at) < static_cast<unsigned>(p.source[2]) ? ~0u : 0;
    }
    float sums[2][16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int c = i / 4 * 8 + 2 * t + i % 2;
      const bool biased = arguments.bias != nullptr && c < p.result_channels;
      sums[0][i] = sums[1][i] = biased ? device::to_accumulator(arguments.bias[c]) : 0.0f;
    }
    uint64_t here = weights;
#pragma unroll 1
    for (int unit = 0; unit < plan.units; ++unit, here = device::descriptor_after(here, kUnitWeights)) {
      ring.wait_copied();
      Fragments<T, Split> fragments(slots + ring.slot() * slot_bytes_of(kSize), lead, exists);
      ring.release(lane);
      ring.advance();
      multiply_unit(sums, fragments, here);
    }
    const int q = place.q + warp * kWarpPositions, count = min(kWarpPositions, p.result[2] - q);
    T* const to = arguments.result + (int64_t{place.image} * p.result_channels + 2 * t) * p.result_rows.plane_pitch +
                  (int64_t{place.row} * p.result[2] + q + kLanePositions * g);
    const float poison = write_results(plan, sums, to, 2 * t, count - kLanePositions * g);
    if (__any_sync(0xffffffffu, poison != 0) && count > 0)
      plain_results(plan, plain, arguments.bias, arguments.result, place, q, count);
  }
}

template <class T, bool Split>
__global__ void __launch_bounds__(kThreads, 1)
    one_phase_kernel(const __grid_constant__ Plan plan, const __grid_constant__ Arguments<T> arguments,
                     const __grid_constant__ PlainSumOf<T> plain) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Ring::Barriers barriers;
  unsigned char* const slots = shared + plan.weight_bytes;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const Ring ring(barriers, plan.slots);
  if (threadIdx.x == 0) ring.init(kUsers);
  // Channels that do not exist: no copy brings them.
  for (int i = static_cast<int>(threadIdx.x); i < plan.slots * slot_bytes_of(sizeof(T)) / 16; i += kThreads)
    reinterpret_cast<uint4*>(slots)[i] = uint4{};
  prepare<T, Split>(plan, arguments.weight, shared);
  device::fence_async_proxy();
  __syncthreads();
  if (warp >= kUsers) {
    device::registers_decrease<40>();
    if (warp == kUsers) bring(plan, arguments.source, ring, device::shared_address(slots), lane);
  } else {
    device::registers_increase<232>();
    make_results<T, Split>(plan, arguments, plain, ring, slots,
                           device::core_matrix_descriptor(device::shared_address(shared)), warp, lane);
  }
}

}  // namespace halo::cuda::conv::one_phase
