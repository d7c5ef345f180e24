// Forward and backward_input where many channels come out of few.
//
// A block makes neighbouring whole rows of results of up to kMostResults channels, a run of neighbouring results at a
// time, wherever rows end. Four warps bring the source into a ring in shared memory, row behind row. Warpgroups make
// results: rows of a product are positions, its columns result channels, its depth source channels and taps, which each
// lane gathers from the ring. They leave them in rings of which four more warps write whole lines.
#pragma once

#include "../../device/async_copy.cuh"
#include "../../device/load_where.cuh"
#include "../../device/shared_words.cuh"
#include "../../device/tf32_split.cuh"
#include "../../device/wgmma_half.cuh"
#include "rings.cuh"

namespace halo::cuda::conv::few_sources {

inline constexpr int kWriters = 4, kFillers = 4;  ///< warps
template <class T>
inline constexpr int kMakers = makers(sizeof(T));
template <class T>
inline constexpr int kThreads = (kMakers<T> + kWriters + kFillers) * 32;

template <class T>
inline constexpr bool kHalf = sizeof(T) == 2;
/// Of the tensor core, each of eight words of depth: a source channel at a tap, of half types two channels. There a
/// lane has both words of a tap: words t and t + 4 of a step. In the place of the last tap stands the bias, for which
/// the source is one.
template <class T>
inline constexpr int kSteps = (kHalf<T> ? kMostTaps * kSources / 2 : kMostWeights) / 8;
template <class T>
inline constexpr int kLoads = kHalf<T> ? kSteps<T> : 2 * kSteps<T>;  ///< of a lane, for a position

/// A thread's share of `parts` parts of the source from `index` on: a plane a channel, of half types the channels of a
/// position side by side. Zeros stand for what lies beside the source.
template <class T>
__device__ __forceinline__ void fill(const Plan& plan, const Block<T>& block, uint32_t* sources, int index, int parts,
                                     int thread, int threads) {
  constexpr int kOnce = kHalf<T> ? 4 : 2;  // positions
  const int part = plan.ring / kParts, first = index * part;
  const int end = min(first + parts * part, block.source_rows * plan.pitch);
#pragma unroll 1
  for (int at = first + thread; at < end; at += kOnce * threads) {
    uint32_t held[kHalf<T> ? kOnce : 1][kSources];
#pragma unroll
    for (int k = 0; k < kOnce; ++k) {
      const int own = at + k * threads;
      uint32_t column;
      const int row =
          block.row + plan.first_row + static_cast<int>(plan.by_pitch.divide(static_cast<uint32_t>(own), column));
      const int source_column = plan.first_column + static_cast<int>(column);
      const bool exists = own < end && static_cast<unsigned>(row) < static_cast<unsigned>(plan.source_rows) &&
                          static_cast<unsigned>(source_column) < static_cast<unsigned>(plan.source_width);
      const T* from = block.source + (exists ? int64_t{row} * plan.source_width + source_column : 0);
      const uint32_t to = device::shared_address(sources + (own & (plan.ring - 1)));
#pragma unroll
      for (int c = 0; c < kSources; ++c, from += plan.source_plane) {
        if constexpr (kHalf<T>) {
          held[k][c] = device::load_one<T>(from, exists && c < plan.channels);
        } else if (c < plan.channels && own < end) {
          device::copy_async_4(to + static_cast<uint32_t>(c * plan.ring * 4), from, exists);
        }
      }
    }
    if constexpr (kHalf<T>) {
#pragma unroll
      for (int k = 0; k < kOnce; ++k) {
        auto* const to = reinterpret_cast<uint2*>(sources) + ((at + k * threads) & (plan.ring - 1));
        if (at + k * threads < end) *to = make_uint2(held[k][0] | held[k][1] << 16, held[k][2] | held[k][3] << 16);
      }
    }
  }
}

/// The weights as B of the products, of Split the high parts and then the low ones; and the bias, of half types in
/// the last tap's place.
template <class T, int Results, bool Split>
__device__ __forceinline__ void lay_weights(const Plan& plan, const Block<T>& block, const Arguments<T>& arguments,
                                            uint32_t* weights, float* bias) {
  constexpr int kDepth = kSteps<T> * 8;  // words
  const int64_t group = block.image_group % plan.groups;
  const T* const own = arguments.weight + group * plan.weight_group;
  const auto bias_of = [&](int result) {
    const bool exists = arguments.bias != nullptr && result < block.channels;
    return exists ? arguments.bias[group * plan.results + block.channel + result] : T{};
  };
  for (int i = static_cast<int>(threadIdx.x); i < Results * kDepth; i += kThreads<T>) {
    const int result = i / kDepth, depth = i % kDepth;
    const int tap = kHalf<T> ? depth / 8 * 4 + depth % 4 : depth % plan.taps;
    const auto weight = [&](int c) {
      const bool exists = result < block.channels && c < plan.channels && tap < plan.taps;
      return exists ? own[(block.channel + result) * plan.weight_result + c * plan.weight_source + plan.tap[tap]] : T{};
    };
    uint32_t* const to = weights + depth / 8 * 8 * Results + device::core_matrix_word(result, depth % 8);
    if constexpr (kHalf<T>) {
      const int c = depth % 8 / 4 * 2;
      to[0] = uint32_t{weight(c).bits} | uint32_t{weight(c + 1).bits} << 16;
      if (tap + 1 == kMostTaps && c == 0) to[0] = uint32_t{bias_of(result).bits};
    } else if constexpr (Split) {
      const device::Tf32Pair two = device::split_tf32_unguarded(weight(depth / plan.taps));
      to[0] = two.high;
      to[kDepth * Results] = two.low;
    } else {
      to[0] = device::round_tf32(weight(depth / plan.taps));
    }
  }
  if constexpr (!kHalf<T>) {
    for (int i = static_cast<int>(threadIdx.x); i < Results; i += kThreads<T>) bias[i] = bias_of(i);
  }
  device::fence_async_proxy();
}

/// sums = words x weights. Of Split the small products first: what lies below the last place of a sum then counts.
template <class T, bool Split, int Count>
__device__ __forceinline__ void multiply(float (&sums)[Count], uint32_t (&words)[kSteps<T>][4], uint64_t weights) {
  constexpr uint32_t kStepBytes = 8 * 2 * Count * 4, kPartBytes = kSteps<T> * kStepBytes;
  const auto step = [&](int s) { return device::descriptor_after(weights, static_cast<uint32_t>(s) * kStepBytes); };
  uint32_t low[Split ? kSteps<T> : 1][4];
#pragma unroll
  for (int s = 0; s < kSteps<T>; ++s) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (Split) {
        const device::Tf32Pair two = device::split_tf32_unguarded(__uint_as_float(words[s][i]));
        words[s][i] = two.high;
        low[s][i] = two.low;
      } else if constexpr (!kHalf<T>) {
        words[s][i] = device::round_tf32_by_cut(__uint_as_float(words[s][i]));
      }
    }
    device::wgmma_pin(words[s]);
    if constexpr (Split) device::wgmma_pin(low[s]);
  }
  device::wgmma_fence();
  if constexpr (Split) {
#pragma unroll
    for (int s = 0; s < kSteps<T>; ++s) {
      device::wgmma_tf32(sums, low[s], step(s), s > 0);
      device::wgmma_tf32(sums, words[s], device::descriptor_after(step(s), kPartBytes), 1);
    }
  }
#pragma unroll
  for (int s = 0; s < kSteps<T>; ++s) {
    if constexpr (kHalf<T>) {
      device::wgmma_half<T>(sums, words[s], step(s), s > 0);
    } else {
      device::wgmma_tf32(sums, words[s], step(s), Split || s > 0);
    }
  }
  device::wgmma_commit();
  device::wgmma_wait<0>();
  device::wgmma_pin(sums);
}

__device__ __noinline__ void bend_all(Activation activation, float* sums, int count) {
#pragma unroll 1
  for (int i = 0; i < count; ++i) sums[i] = device::apply_activation(activation, sums[i]);
}

/// By one call, of what is in memory: calls for each would cost registers that others need.
template <int Count>
__device__ __forceinline__ void bend(const Activation& activation, float (&sums)[Count]) {
  float left[Count];
#pragma unroll
  for (int i = 0; i < Count; ++i) left[i] = sums[i];
  bend_all(activation, left, Count);
#pragma unroll
  for (int i = 0; i < Count; ++i) sums[i] = left[i];
}

/// Makes the warp's positions of all runs. Row g + 8h of its products is the position g + 8h, of half types 2g + h: two
/// neighbours are a word.
template <class T, int Results, bool Split, bool Whole>
__device__ __forceinline__ void make_runs(const Plan& plan, const Block<T>& block, const Arguments<T>& arguments,
                                          const PlainSumOf<T>& plain, const uint32_t* sources, unsigned char* ring,
                                          const uint32_t* weights, const float* bias,
                                          const GatherBarriers<kRuns<T>>& barriers, int warp, int lane) {
  const int g = lane / 4, t = lane % 4;
  const uint64_t descriptor = device::core_matrix_descriptor(device::shared_address(weights));
  const int part = plan.ring / kParts, most = (plan.tap_rows - 1) * plan.pitch + plan.reach;
  constexpr uint32_t kPosition = kHalf<T> ? 8 : 4;  // bytes in the ring
  const auto in_ring = static_cast<uint32_t>(plan.ring) * kPosition - 1;
  uint32_t offset[kLoads<T>], plane[kLoads<T>];  // bytes to the lane's depths from those of a position; addresses
#pragma unroll
  for (int i = 0; i < kLoads<T>; ++i) {
    const int depth = i * 4 + t, tap = kHalf<T> ? depth : depth % plan.taps, c = kHalf<T> ? 0 : depth / plan.taps;
    const bool exists = tap < plan.taps && c < plan.channels;
    offset[i] = exists ? static_cast<uint32_t>(plan.row[tap] * plan.pitch + plan.column[tap]) * kPosition : 0;
    plane[i] = device::shared_address(sources + (exists ? c * plan.ring : 0));
  }
  constexpr uint32_t one = std::is_same_v<T, BFloat16> ? 0x3f80 : 0x3c00;  // as a half type, and zero
  const bool bends = arguments.activation.kind != ActivationKind::None;
  const auto position = [&](int h) { return warp * 16 + (kHalf<T> ? 2 * g + h : g + 8 * h); };  // of a run
  const auto in_results = [](uint32_t at) { return min(at, at - uint32_t{kRingBytes}); };  // at: less than two rings
  const uint32_t start[2] = {block.ring_start(plan, 2 * t), block.ring_start(plan, 2 * t + 1)};
  unsigned char* const own = ring + 2 * t * kRingBytes;
  const auto source_at = [&](int position) {  // in the order of the ring
    return position +
           static_cast<int>(plan.in_row.divide(static_cast<uint32_t>(position))) * (plan.pitch - plan.result_width);
  };

  int filled = 0, used = 0;  // parts of the source
  uint32_t turn = 0;         // bytes of all runs before, in a ring
#pragma unroll 1
  for (int run = 0; run < block.runs; ++run, turn = in_results(turn + kRunBytes<T>)) {
    const int last = min((run + 1) * kRun<T>, block.count) - 1;
    for (; filled * part <= source_at(last) + most; ++filled) await(barriers.filled(filled), filled / kParts);
    uint32_t words[kSteps<T>][4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const auto at = static_cast<uint32_t>(source_at(min(run * kRun<T> + position(h), last))) * kPosition;
#pragma unroll
      for (int i = 0; i < kLoads<T>; ++i) {
        if constexpr (kHalf<T>) {
          const int2 two = device::load_shared_pair(((at + offset[i]) & in_ring) + plane[0]);
          words[i][h] = static_cast<uint32_t>(two.x);
          words[i][2 + h] = static_cast<uint32_t>(two.y);
        } else {
          words[i / 2][i % 2 * 2 + h] = __float_as_uint(device::load_shared(((at + offset[i]) & in_ring) + plane[i]));
        }
      }
    }
    float sums[Results / 2];
    if constexpr (kHalf<T>) {
      if (t == 3) words[kSteps<T> - 1][0] = words[kSteps<T> - 1][1] = one;
    }
    multiply<T, Split>(sums, words, descriptor);
    if constexpr (!kHalf<T>) {
#pragma unroll
      for (int j = 0; j < Results / 8; ++j) {
        const float2 two = *reinterpret_cast<const float2*>(bias + 8 * j + 2 * t);
#pragma unroll
        for (int h = 0; h < 2; ++h) sums[4 * j + 2 * h] += two.x, sums[4 * j + 2 * h + 1] += two.y;
      }
    }
    if (run >= kRuns<T>) await(barriers.written(run), run / kRuns<T> - 1);
    float poison[4] = {};  // not finite where one of the results is not
#pragma unroll
    for (int i = 0; i < Results / 4; ++i) poison[i % 4] = fmaf(sums[2 * i], sums[2 * i + 1], poison[i % 4]);
    device::wgmma_pin(poison);  // now: else the compiler keeps what it is computed from twice
    const bool again = __any_sync(0xffffffffu, !isfinite(poison[0] + poison[1] + poison[2] + poison[3]));
    if (again) {  // infinities become NaN, which every activation keeps
#pragma unroll
      for (float& sum : sums) sum = fmaf(sum, 0.0f, sum);
    }
    if (bends) bend(arguments.activation, sums);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      unsigned char* to[2];
#pragma unroll
      for (int h = 0; h < 2; ++h)
        to[h] = own + e * kRingBytes +
                in_results(start[e] + static_cast<uint32_t>(position(h)) * uint32_t{sizeof(T)} + turn);
#pragma unroll
      for (int j = 0; j < Results / 8; ++j) {
        const float two[2] = {sums[4 * j + e], sums[4 * j + 2 + e]};
        const int channel = j * 8 * kRingBytes;
        if constexpr (kHalf<T>) {
          const uint32_t word = device::pack_word<T>(two);
          if constexpr (Whole) {
            *reinterpret_cast<uint32_t*>(to[0] + channel) = word;
          } else {  // perhaps beside whole words
            *reinterpret_cast<uint16_t*>(to[0] + channel) = static_cast<uint16_t>(word);
            *reinterpret_cast<uint16_t*>(to[1] + channel) = static_cast<uint16_t>(word >> 16);
          }
        } else {
          *reinterpret_cast<float*>(to[0] + channel) = two[0];
          *reinterpret_cast<float*>(to[1] + channel) = two[1];
        }
      }
    }
    // Zeros stand for what does not exist: they are no part of results that are not finite.
    if (again) {
      const int first = run * kRun<T> + warp * 16;
      plain_results(plan, arguments, plain, ring, first, min(16, last + 1 - first));
    }
    arrive(barriers.made(run), lane);
    const int next = source_at(last + 1);
    for (; (used + 1) * part <= next; ++used) arrive(barriers.used(used), lane);
  }
}

/// Results: channels of a block. Split: float32 as accurate as float32, else TF32. Whole: as Plan::whole, of half
/// types.
template <class T, int Results, bool Split, bool Whole = false>
__global__ void __launch_bounds__(kThreads<T>, 1)
    gather_kernel(const __grid_constant__ Plan plan, const __grid_constant__ Arguments<T> arguments,
                  const __grid_constant__ PlainSumOf<T> plain) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ uint64_t barrier_memory[GatherBarriers<kRuns<T>>::kCount];
  const GatherBarriers<kRuns<T>> barriers(barrier_memory);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const Block<T> block(plan, arguments);
  auto* const weights = reinterpret_cast<uint32_t*>(shared);
  auto* const bias = reinterpret_cast<float*>(weights + 2 * kMostWeights * Results);
  auto* const ring = reinterpret_cast<unsigned char*>(bias + Results);
  auto* const sources = reinterpret_cast<uint32_t*>(ring + Results * kRingBytes);
  if (threadIdx.x == 0) barriers.init(kFillers * (kHalf<T> ? 1 : 32), kMakers<T>, kWriters);
  fill(plan, block, sources, 0, kParts, static_cast<int>(threadIdx.x), kThreads<T>);
  lay_weights<T, Results, Split>(plan, block, arguments, weights, bias);
  device::copy_async_wait_all();
  __syncthreads();
  if (warp < kMakers<T>) {
    make_runs<T, Results, Split, Whole>(plan, block, arguments, plain, sources, ring, weights, bias, barriers, warp,
                                        lane);
  } else if (warp < kMakers<T> + kWriters) {
#pragma unroll 1
    for (int run = 0; run < block.runs; ++run) {
      await(barriers.made(run), run / kRuns<T>);
      write_run<kWriters>(plan, block, ring, run, warp - kMakers<T>, lane);
      arrive(barriers.written(run), lane);
    }
  } else {
    const int part = plan.ring / kParts, parts = (block.source_rows * plan.pitch + part - 1) / part;
#pragma unroll 1
    for (int i = 0; i < parts; ++i) {
      if (i >= kParts) {
        await(barriers.used(i), i / kParts - 1);
        fill(plan, block, sources, i, 1, static_cast<int>(threadIdx.x) % (kFillers * 32), kFillers * 32);
      }
      if constexpr (kHalf<T>) {
        arrive(barriers.filled(i), lane);
      } else {
        device::copy_async_arrive(barriers.filled(i));
      }
    }
  }
}

}  // namespace halo::cuda::conv::few_sources
