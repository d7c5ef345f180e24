// Forward and backward_input of half types where many channels come out of few.
//
// A block makes neighbouring whole rows of results of up to kMostResults channels, kRun neighbouring results at a time,
// wherever rows end. One warp brings the source rows into a ring in shared memory, where the (at most four) channels of
// a position lie side by side. Others make results: rows of a product are result channels, its columns positions, its
// depth (tap, channel). They leave them in a ring of kRingBytes a
// channel and, a run behind, write all lines of 128 bytes that are complete: pieces that begin beside lines, or do not
// fill them, take up to twice the time.
#pragma once

#include "../../device/activation.cuh"
#include "../../device/async_copy.cuh"
#include "../../device/load_where.cuh"
#include "../../device/mbarrier.cuh"
#include "../../device/mma.cuh"
#include "../../device/number.cuh"
#include "../../device/shared_words.cuh"
#include "../../device/wgmma.cuh"
#include "../plain_sum.cuh"
#include "few_sources.h"

namespace halo::cuda::conv::few_sources {

inline constexpr int kSteps = kMostTaps * kSources / 16;  ///< of the tensor core
inline constexpr int kThreads = (kMakers + 1) * 32;
inline constexpr int kLine = 128;  ///< bytes
static_assert(2 * kRun * 2 + kLine <= kRingBytes, "a run, the one before and its last line");

template <class T>
using Arguments = small_groups::GatherArguments<T>;

/// A thread's share of `rows` source rows, which `threads` bring into shared memory. `from`: of the first channel, row
/// 0, at `column` of the source. Whole: four positions of a row are one access.
template <bool Whole, class T>
__device__ __forceinline__ void fill_sources(const Plan& plan, unsigned char* shared, const T* from, int row, int rows,
                                             int column, int thread, int threads) {
  const auto pieces = static_cast<int>(plan.pieces.divisor);  // of four positions
#pragma unroll(Whole ? 4 : 2)
  for (int i = thread; i < rows * pieces; i += threads) {
    uint32_t column_piece;
    const auto r = static_cast<int>(plan.pieces.divide(static_cast<uint32_t>(i), column_piece));
    const int piece = static_cast<int>(column_piece) * 4;
    const bool row_exists = static_cast<unsigned>(row + r) < static_cast<unsigned>(plan.source_rows);
    const auto exists = [&](int k) {
      return row_exists && static_cast<unsigned>(column + piece + k) < static_cast<unsigned>(plan.source_width);
    };
    const T* source = from + int64_t{row + r} * plan.source_width + column + piece;
    uint2 held[kSources];
#pragma unroll
    for (int c = 0; c < kSources; ++c, source += plan.source_plane) {
      if constexpr (Whole) {
        held[c] = exists(0) && c < plan.channels ? *reinterpret_cast<const uint2*>(source) : uint2{};
      } else {
        uint32_t part[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) part[k] = device::load_one<T>(source + k, exists(k) && c < plan.channels);
        held[c] = {part[0] | part[1] << 16, part[2] | part[3] << 16};
      }
    }
    const auto pair = [&](uint32_t a, uint32_t b, uint32_t c, uint32_t d) {  // two positions of four channels
      return uint4{__byte_perm(a, b, 0x5410), __byte_perm(c, d, 0x5410), __byte_perm(a, b, 0x7632),
                   __byte_perm(c, d, 0x7632)};
    };
    auto* const to = reinterpret_cast<uint4*>(shared + i * (4 * kPositionBytes));
    to[0] = pair(held[0].x, held[1].x, held[2].x, held[3].x);
    to[1] = pair(held[0].y, held[1].y, held[2].y, held[3].y);
  }
}

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
    runs = (count + kRun - 1) / kRun;
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
  /// Brings `sets` of source rows from `index` on, as one of `threads`; they do not pass the end of the ring.
  __device__ __forceinline__ void fill(const Plan& plan, unsigned char* sources, int index, int sets, int thread,
                                       int threads) const {
    const int first = index * plan.part, rows = min(sets * plan.part, source_rows - first);
    const auto start = [&]<bool Whole>(std::bool_constant<Whole>) {
      fill_sources<Whole>(plan, sources + index % kSets * plan.part * plan.pitch * kPositionBytes, source,
                          row + plan.first_row + first, rows, plan.first_column - plan.lead, thread, threads);
    };
    plan.whole ? start(std::true_type{}) : start(std::false_type{});
  }
};

/// Hand-overs within a block. Of the sets of source rows, and of the runs of results in turn.
struct Barriers {
  uint64_t filled[kSets], used[kSets], made[2], written[2];

  static __device__ __forceinline__ void arrive(uint64_t& barrier, int lane) {
    __syncwarp();
    if (lane == 0) device::barrier_arrive(device::shared_address(&barrier));
  }
  /// For the index-th time that a barrier's turn comes up.
  static __device__ __forceinline__ void wait(uint64_t& barrier, int index) {
    device::barrier_wait(device::shared_address(&barrier), static_cast<uint32_t>(index & 1));
  }
};

/// Writes the lines that a run has completed, and at the block's ends what there is of one. A warp writes lines of four
/// channels at once, eight lanes each.
template <class T>
__device__ __forceinline__ void write_run(const Plan& plan, const Block<T>& block, const unsigned char* ring, int run,
                                          int warp, int lane) {
  const bool begins = run == 0, ends = run + 1 == block.runs;
  const auto before = static_cast<uint32_t>(run * kRun) * uint32_t{sizeof(T)};
  const auto after = static_cast<uint32_t>(min((run + 1) * kRun, block.count)) * uint32_t{sizeof(T)};
#pragma unroll 1
  for (int c = warp * 4 + lane / 8; c < block.channels; c += kMakers * 4) {
    const uint32_t lead = block.lead(plan, c);
    auto* const lines = reinterpret_cast<unsigned char*>(block.result + c * plan.result_plane) - lead;
    const uint32_t from = begins ? lead : (lead + before) / kLine * kLine;
    const uint32_t to = ends ? lead + after : (lead + after) / kLine * kLine;
    const unsigned char* const own = ring + c * kRingBytes;
    const uint32_t turn = block.ring_start(plan, c) - lead;
    const auto first = static_cast<int>(from / 16 * 16) + lane % 8 * 16;
    constexpr int kLines = (kRun * int{sizeof(T)} + kLine + 15) / kLine + 1, kOnce = 4;
    const auto whole = [&](int at) { return at >= static_cast<int>(from) && at + 16 <= static_cast<int>(to); };
#pragma unroll
    for (int k = 0; k < kLines; k += kOnce) {
      uint4 piece[kOnce];
#pragma unroll
      for (int i = 0; i < kOnce; ++i)
        piece[i] =
            *reinterpret_cast<const uint4*>(own + (static_cast<uint32_t>(first + (k + i) * kLine) + turn) % kRingBytes);
#pragma unroll
      for (int i = 0; i < kOnce; ++i) {
        const int at = first + (k + i) * kLine;
        if (whole(at)) *reinterpret_cast<uint4*>(lines + first + (k + i) * kLine) = piece[i];
      }
    }
    if (plan.whole || !(begins || ends)) continue;
#pragma unroll 1
    for (uint32_t at = static_cast<uint32_t>(first); at < to; at += kLine) {  // pieces in part
      if (whole(static_cast<int>(at))) continue;
#pragma unroll 1
      for (uint32_t e = max(at, from); e < min(at + 16, to); e += uint32_t{sizeof(T)})
        *reinterpret_cast<T*>(lines + e) = *reinterpret_cast<const T*>(own + (e + turn) % kRingBytes);
    }
  }
}

/// The warp's results of a run again, in plain float32, from the block's position `first` on.
template <class T>
__device__ __noinline__ void plain_results(const Plan& plan, const Arguments<T>& arguments, const PlainSumOf<T>& plain,
                                           unsigned char* ring, int first, int count) {
  const Block<T> block(plan, arguments);
  __syncwarp();
  const int64_t group_channel = block.image_group % plan.groups * plan.results + block.channel;
  for (int i = static_cast<int>(threadIdx.x % 32); i < block.channels * count; i += 32) {
    const int c = i / count, position = first + i % count;
    const uint32_t at = block.ring_start(plan, c) + static_cast<uint32_t>(position) * uint32_t{sizeof(T)};
    T* const result = reinterpret_cast<T*>(ring + c * kRingBytes + at % kRingBytes);
    if (isfinite(device::to_accumulator(*result))) continue;
    float sum = plain.at(block.image_group / plan.groups, group_channel + c, block.corner + position);
    if (arguments.bias != nullptr) sum += device::to_accumulator(arguments.bias[group_channel + c]);
    *result = device::from_accumulator<T>(device::call_activation(arguments.activation, sum));
  }
}

/// Makes the warp's positions of all runs, and writes its channels.
template <class T, int Tiles>
__device__ __forceinline__ void make_runs(const Plan& plan, const Block<T>& block, const Arguments<T>& arguments,
                                          const PlainSumOf<T>& plain, const unsigned char* sources, unsigned char* ring,
                                          Barriers& barriers, int warp, int lane) {
  const int g = lane / 4, t = lane % 4;
  // The weights: rows g and g + 8 of each tile, depth as the tensor core wants it.
  uint32_t a[Tiles][kSteps][4];
  int tap_row[kSteps][2], tap_at[kSteps][2];  // where the lane finds its operand, beside the first position
  const int64_t group = block.image_group % plan.groups;
  const T* const weight = arguments.weight + group * plan.weight_group;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const int tap = s * 4 + b * 2 + t / 2, c = t % 2 * 2;
      const bool exists = tap < plan.taps;
      tap_row[s][b] = exists ? plan.row[tap] : 0;
      tap_at[s][b] = (plan.lead + (exists ? plan.column[tap] : 0)) * kPositionBytes + c * 2;
#pragma unroll
      for (int m = 0; m < Tiles; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int row = block.channel + m * 16 + h * 8 + g;
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
  float bias[Tiles][2];
#pragma unroll
  for (int m = 0; m < Tiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = block.channel + m * 16 + h * 8 + g;
      const bool exists = arguments.bias != nullptr && row < plan.results;
      bias[m][h] = exists ? device::to_accumulator(arguments.bias[group * plan.results + row]) : 0.0f;
    }
  }
  const bool bends = arguments.activation.kind != ActivationKind::None;
  const int ring_rows = kSets * plan.part, row_bytes = plan.pitch * kPositionBytes;
  const uint32_t start = block.ring_start(plan, g) + static_cast<uint32_t>(4 * t);
  unsigned char* const own = ring + g * kRingBytes;
  const uint32_t sources_at = device::shared_address(sources);

  int filled = 0, used = 0;  // sets of source rows
  const auto make = [&](int run) {
    const int last = min((run + 1) * kRun, block.count) - 1;
    const auto last_row = static_cast<int>(plan.in_row.divide(static_cast<uint32_t>(last))) + plan.tap_rows - 1;
    for (; filled * plan.part <= last_row; ++filled) Barriers::wait(barriers.filled[filled % kSets], filled / kSets);
    if (run >= 2) Barriers::wait(barriers.written[run % 2], run / 2 - 1);
    const int first = run * kRun + warp * kPositions;
    float poison = 0;  // not finite where one of the results is not
    uint32_t first_column;
    plan.in_row.divide(static_cast<uint32_t>(first), first_column);
    const bool one_row = static_cast<int>(first_column) + kPositions <= plan.result_width && first + kPositions <= last;
    uint32_t at[kSteps * 2];  // where the lane finds its operands
    const auto find = [&](int position) {
      uint32_t column, ring_row;
      plan.by_ring.divide(plan.in_row.divide(static_cast<uint32_t>(position), column), ring_row);
#pragma unroll
      for (int i = 0; i < kSteps * 2; ++i) {
        const int row = static_cast<int>(ring_row) + tap_row[i / 2][i % 2];
        at[i] = sources_at + static_cast<uint32_t>(static_cast<int>(column) * kPositionBytes + tap_at[i / 2][i % 2] +
                                                   (row < ring_rows ? row : row - ring_rows) * row_bytes);
      }
    };
#pragma unroll 1
    for (int n = 0; n < kPositions && first + n <= last; n += 8) {
      if (n == 0 || !one_row) find(min(first + n + g, last));
      float sums[Tiles][4];
#pragma unroll
      for (int m = 0; m < Tiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[m][i] = bias[m][i / 2];
      }
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const uint32_t b[2] = {__float_as_uint(device::load_shared(at[2 * s])),
                               __float_as_uint(device::load_shared(at[2 * s + 1]))};
#pragma unroll
        for (int m = 0; m < Tiles; ++m) device::multiply_halves<T>(sums[m], a[m][s], b);
      }
#pragma unroll
      for (int i = 0; i < Tiles * 2; ++i) poison = fmaf((&sums[0][0])[2 * i], (&sums[0][0])[2 * i + 1], poison);
      if (bends) {
#pragma unroll
        for (int i = 0; i < Tiles * 4; ++i)
          (&sums[0][0])[i] = device::call_activation(arguments.activation, (&sums[0][0])[i]);
      }
      uint32_t two[Tiles * 2];
#pragma unroll
      for (int i = 0; i < Tiles * 2; ++i) two[i] = device::pack_word<T>(sums[i / 2] + i % 2 * 2);
      const uint32_t to = start + static_cast<uint32_t>(first + n) * uint32_t{sizeof(T)};
      unsigned char *const word = own + to % kRingBytes, *const second = own + (to + 2) % kRingBytes;
      if (plan.whole) {
#pragma unroll
        for (int i = 0; i < Tiles * 2; ++i) *reinterpret_cast<uint32_t*>(word + i * 8 * kRingBytes) = two[i];
      } else {  // perhaps beside whole words
#pragma unroll
        for (int i = 0; i < Tiles * 2; ++i) {
          *reinterpret_cast<uint16_t*>(word + i * 8 * kRingBytes) = static_cast<uint16_t>(two[i]);
          *reinterpret_cast<uint16_t*>(second + i * 8 * kRingBytes) = static_cast<uint16_t>(two[i] >> 16);
        }
      }
#pragma unroll
      for (uint32_t& of_operand : at) of_operand += 8 * kPositionBytes;
    }
    // Zeros stand for what does not exist: they are no part of results that are not finite.
    if (__any_sync(0xffffffffu, !isfinite(poison)))
      plain_results(plan, arguments, plain, ring, first, min(kPositions, last + 1 - first));
    Barriers::arrive(barriers.made[run % 2], lane);
    const auto next_row = static_cast<int>(plan.in_row.divide(static_cast<uint32_t>(last + 1)));
    for (; (used + 1) * plan.part <= next_row; ++used) Barriers::arrive(barriers.used[used % kSets], lane);
  };
#pragma unroll 1
  for (int run = 0; run <= block.runs; ++run) {
    if (run < block.runs) make(run);
    if (run == 0) continue;
    Barriers::wait(barriers.made[(run - 1) % 2], (run - 1) / 2);
    write_run(plan, block, ring, run - 1, warp, lane);
    Barriers::arrive(barriers.written[(run - 1) % 2], lane);
  }
}

/// Tiles: of 16 result channels.
template <class T, int Tiles>
__global__ void __launch_bounds__(kThreads, 1)
    gather_kernel(const __grid_constant__ Plan plan, const __grid_constant__ Arguments<T> arguments,
                  const __grid_constant__ PlainSumOf<T> plain) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ Barriers barriers;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const Block<T> block(plan, arguments);
  unsigned char* const sources = shared + Tiles * 16 * kRingBytes;
  if (threadIdx.x == 0) {
    const auto init = [](uint64_t& barrier, int arrivals) {
      device::barrier_init(device::shared_address(&barrier), arrivals);
    };
    for (int i = 0; i < kSets; ++i) init(barriers.filled[i], 1), init(barriers.used[i], kMakers);
    for (int i = 0; i < 2; ++i) init(barriers.made[i], kMakers), init(barriers.written[i], kMakers);
    device::barrier_init_fence();
  }
  const int sets = (block.source_rows + plan.part - 1) / plan.part;
  block.fill(plan, sources, 0, kSets, static_cast<int>(threadIdx.x), kThreads);
  __syncthreads();
  if (warp < kMakers) {
    make_runs<T, Tiles>(plan, block, arguments, plain, sources, shared, barriers, warp, lane);
  } else {
    for (int i = 0; i < sets; ++i) {
      if (i >= kSets) {
        Barriers::wait(barriers.used[i % kSets], i / kSets - 1);
        block.fill(plan, sources, i, 1, lane, 32);
      }
      Barriers::arrive(barriers.filled[i % kSets], lane);
    }
  }
}

}  // namespace halo::cuda::conv::few_sources
