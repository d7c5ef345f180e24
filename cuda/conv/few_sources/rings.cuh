// Blocks of gather.cuh, and rings in shared memory, a ring a channel, of which whole lines are written:
// pieces that begin beside lines of 128 bytes, or do not fill them, take up to twice the time.
#pragma once

#include "../../device/activation.cuh"
#include "../../device/mbarrier.cuh"
#include "../../device/number.cuh"
#include "../../device/wgmma.cuh"
#include "../plain_sum.cuh"
#include "few_sources.h"

namespace halo::cuda::conv::few_sources {

inline constexpr int kLine = 128;  ///< bytes

template <class T>
inline constexpr int kRun = makers(sizeof(T)) * 16;  ///< positions
template <class T>
inline constexpr int kRunBytes = kRun<T>* int{sizeof(T)};
template <class T>
inline constexpr int kRuns = runs_kept(sizeof(T));
static_assert(kRuns<float> * kRunBytes<float> + kLine <= kRingBytes && kRunBytes<float> % kLine == 0 &&
              kRuns<BFloat16> * kRunBytes<BFloat16> + kLine <= kRingBytes && kRunBytes<BFloat16> % kLine == 0);

template <class T>
using Arguments = small_groups::GatherArguments<T>;

/// What a block makes.
template <class T>
struct Block {
  int64_t image_group;
  int depth, row, rows;   ///< first result, results
  int channel, channels;  ///< results
  int count, runs;        ///< positions
  int64_t corner;         ///< the first position, of its channel
  int source_rows;        ///< that the results read
  const T* source;        ///< row 0 of the first channel
  T* result;              ///< of the first channel

  __device__ __forceinline__ Block(const Plan& plan, const Arguments<T>& arguments) {
    uint32_t rest = blockIdx.x;
    channel = static_cast<int>(rest % static_cast<uint32_t>(plan.sets)) * plan.set_results;
    rest /= static_cast<uint32_t>(plan.sets);
    row = static_cast<int>(rest % static_cast<uint32_t>(plan.strips)) * plan.strip;
    rest /= static_cast<uint32_t>(plan.strips);
    depth = static_cast<int>(rest % static_cast<uint32_t>(plan.depth));
    image_group = rest / static_cast<uint32_t>(plan.depth);
    channels = min(plan.set_results, plan.results - channel);
    rows = min(plan.strip, plan.result_rows - row);
    count = rows * plan.result_width;
    runs = (count + kRun<T> - 1) / kRun<T>;
    corner = (int64_t{depth} * plan.result_rows + row) * plan.result_width;
    source_rows = rows + plan.tap_rows - 1;
    source = arguments.source + image_group * plan.channels * plan.source_plane + depth * plan.source_slice;
    result = arguments.result + (image_group * plan.results + channel) * plan.result_plane + corner;
  }
  /// Bytes from a whole line to the first result of the block's channel c.
  __device__ __forceinline__ uint32_t lead(const Plan& plan, int c) const {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(result + c * plan.result_plane) % kLine);
  }
  /// Byte of the first result of channel c in its ring, whose 16-byte pieces are those of memory. Eight channels on it
  /// is the same, and eight neighbours meet all banks.
  __device__ __forceinline__ uint32_t ring_start(const Plan& plan, int c) const {
    return lead(plan, c) % 16 + static_cast<uint32_t>(c % 8 * 16);
  }
};

/// Hand-overs within a block, in shared memory. Of parts of the source, and of the runs of results in turn. By address:
/// the compiler would make it anew for each.
template <int Runs>
struct GatherBarriers {
  static constexpr int kCount = 2 * (kParts + Runs);
  uint32_t first;

  __device__ __forceinline__ explicit GatherBarriers(const uint64_t (&memory)[kCount])
      : first(device::shared_address(memory)) {
    asm volatile("" : "+r"(first));
  }
  /// By one thread. The arrivals that each waits for.
  __device__ __forceinline__ void init(int fillers, int makers, int writers) const {
    for (int i = 0; i < kParts; ++i) device::barrier_init(filled(i), fillers), device::barrier_init(used(i), makers);
    for (int i = 0; i < Runs; ++i) device::barrier_init(made(i), makers), device::barrier_init(written(i), writers);
    device::barrier_init_fence();
  }
  __device__ __forceinline__ uint32_t filled(int part) const { return at(part % kParts); }
  __device__ __forceinline__ uint32_t used(int part) const { return at(kParts + part % kParts); }
  __device__ __forceinline__ uint32_t made(int run) const { return at(2 * kParts + run % Runs); }
  __device__ __forceinline__ uint32_t written(int run) const { return at(2 * kParts + Runs + run % Runs); }

 private:
  __device__ __forceinline__ uint32_t at(int i) const { return first + static_cast<uint32_t>(i) * 8; }
};

/// A warp's, once it has done its part.
__device__ __forceinline__ void arrive(uint32_t barrier, int lane) {
  __syncwarp();
  if (lane == 0) device::barrier_arrive(barrier);
}
/// For the turn-th time that a barrier is used.
__device__ __forceinline__ void await(uint32_t barrier, int turn) {
  device::barrier_wait(barrier, static_cast<uint32_t>(turn & 1));
}

/// Writes what a run has completed of channel c's lines, in whole or in part: the first and the last run of a block.
template <class T>
__device__ __forceinline__ void write_ends(const Plan& plan, const Block<T>& block, const unsigned char* ring, int run,
                                           int c, int lane) {
  constexpr uint32_t kRing = kRingBytes;
  const uint32_t lead = block.lead(plan, c), after = static_cast<uint32_t>(min((run + 1) * kRun<T>, block.count));
  auto* const lines = reinterpret_cast<unsigned char*>(block.result + c * plan.result_plane) - lead;
  const uint32_t from = run == 0 ? lead : (lead + static_cast<uint32_t>(run) * kRunBytes<T>) / kLine * kLine;
  const uint32_t end = lead + after * uint32_t{sizeof(T)}, to = run + 1 == block.runs ? end : end / kLine * kLine;
  const unsigned char* const own = ring + c * kRingBytes;
  const uint32_t turn = block.ring_start(plan, c) + kRing - lead;
#pragma unroll 1
  for (uint32_t at = from / 16 * 16 + static_cast<uint32_t>(lane % 8 * 16); at < to; at += kLine) {
    if (at >= from && at + 16 <= to) {
      *reinterpret_cast<uint4*>(lines + at) = *reinterpret_cast<const uint4*>(own + (at + turn) % kRing);
      continue;
    }
#pragma unroll 1
    for (uint32_t e = max(at, from); e < min(at + 16, to); e += uint32_t{sizeof(T)})
      *reinterpret_cast<T*>(lines + e) = *reinterpret_cast<const T*>(own + (e + turn) % kRing);
  }
}

/// Writes the lines that a run has completed. A warp writes lines of four channels at once, eight lanes each. `warp`:
/// of `Warps`.
template <int Warps, class T>
__device__ __forceinline__ void write_run(const Plan& plan, const Block<T>& block, const unsigned char* ring, int run,
                                          int warp, int lane) {
  constexpr uint32_t kRing = kRingBytes;
  constexpr int kAtOnce = 2, kApart = Warps * 4, kLines = kRunBytes<T> / kLine;
#pragma unroll 1
  for (int first = warp * 4 + lane / 8; first < block.channels; first += kAtOnce * kApart) {
    if (run == 0 || run + 1 == block.runs) {
      for (int c = first; c < min(first + kAtOnce * kApart, block.channels); c += kApart)
        write_ends(plan, block, ring, run, c, lane);
      continue;
    }
    uint4 piece[kAtOnce][kLines];
    unsigned char* to[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int c = min(first + k * kApart, block.channels - 1);
      const uint32_t lead = block.lead(plan, c);
      const uint32_t at = (lead + static_cast<uint32_t>(run) * kRunBytes<T>) / kLine * kLine + lane % 8 * 16;
      to[k] = reinterpret_cast<unsigned char*>(block.result + c * plan.result_plane) - lead + at;
      const uint32_t in_ring = (at + block.ring_start(plan, c) + kRing - lead) % kRing;
#pragma unroll
      for (uint32_t i = 0; i < kLines; ++i) {  // min: one of the two is in the ring
        const uint32_t line = in_ring + i * kLine;
        piece[k][i] = *reinterpret_cast<const uint4*>(ring + c * kRingBytes + min(line, line - kRing));
      }
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (first + k * kApart >= block.channels) continue;
#pragma unroll
      for (int i = 0; i < kLines; ++i) __stcs(reinterpret_cast<uint4*>(to[k] + i * kLine), piece[k][i]);
    }
  }
}

/// Those of a warp's results of a run that are NaN, as which sums that are not finite have been staged, again in plain
/// float32, from the block's position `first` on.
template <class T>
__device__ __noinline__ void plain_results(const Plan& plan, const Arguments<T>& arguments, const PlainSumOf<T>& plain,
                                           unsigned char* ring, int first, int count) {
  const Block<T> block(plan, arguments);
  __syncwarp();
  const int64_t group_channel = block.image_group % plan.groups * plan.results + block.channel;
  for (int i = static_cast<int>(threadIdx.x % 32); i < block.channels * count; i += 32) {
    const int c = i / count, position = first + i % count;
    const uint32_t at = block.ring_start(plan, c) + static_cast<uint32_t>(position) * uint32_t{sizeof(T)};
    T* const result = reinterpret_cast<T*>(ring + c * kRingBytes + at % uint32_t{kRingBytes});
    if (!isnan(device::to_accumulator(*result))) continue;
    float sum = plain.at(block.image_group / plan.groups, group_channel + c, block.corner + position);
    if (arguments.bias != nullptr) sum += device::to_accumulator(arguments.bias[group_channel + c]);
    *result = device::from_accumulator<T>(device::call_activation(arguments.activation, sum));
  }
}

}  // namespace halo::cuda::conv::few_sources
