// Blocks cut into teams, each working on one row.
#pragma once

#include <halo/ops/binary_functors.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace halo::cuda {

/// A block of kThreads threads as `lanes` teams of `depth` threads, both powers of two. The cut depends on the sizes
/// alone, so that sums within a team have the same bits everywhere.
struct Teams {
  static constexpr int kThreads = 256, kWarp = 32;

  int lanes = 1, depth = kThreads;
  bool across = false;  ///< neighbouring threads are in neighbouring teams (whose rows lie side by side), else in one

  /// How many of so many elements a thread should have: more where that leaves a large GPU some blocks for each place
  /// it has for one, as a thread's setting out and its part in combining cost as much as some 30 elements.
  static int64_t share(int64_t elements) {
    constexpr int64_t kBlocks = 2048, kLeast = 32, kMost = 128;
    return std::clamp(static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(elements / (kBlocks * kThreads)))),
                      kLeast, kMost);
  }
  /// For `rows` rows of `length` elements.
  static Teams of(int64_t rows, int64_t length, bool across) {
    // Side by side, 32 lanes read whole lines; fewer where there are fewer rows. Along a row, there are at least 8
    // threads where it is long enough.
    const auto wanted =
        across ? std::max<int64_t>(kThreads / kWarp,
                                   kThreads / static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows))))
               : std::max(length / share(rows * length), std::min<int64_t>((length + 3) / 4, 8));
    const auto most = std::clamp<int64_t>(length, 1, kThreads);
    return with_depth(std::bit_floor(static_cast<uint64_t>(std::clamp<int64_t>(wanted, 1, most))), across);
  }
  static Teams with_depth(uint64_t depth, bool across = false) {
    return {kThreads / static_cast<int>(depth), static_cast<int>(depth), across};
  }
  unsigned blocks(int64_t rows) const { return static_cast<unsigned>((rows + lanes - 1) / lanes); }

#ifdef __CUDACC__
  /// The team of this thread, and its place in it.
  __device__ int lane() const { return static_cast<int>(across ? threadIdx.x % lanes : threadIdx.x / depth); }
  __device__ int rank() const { return static_cast<int>(across ? threadIdx.x / lanes : threadIdx.x % depth); }
#endif
};

#ifdef __CUDACC__
/// `value` of the thread whose number in the warp differs by `mask`.
template <class Value>
__device__ __forceinline__ Value shuffle_xor(const Value& value, int mask) {
  constexpr int kWords = (sizeof(Value) + 3) / 4;
  uint32_t words[kWords] = {};
  memcpy(words, &value, sizeof(Value));
#pragma unroll
  for (int w = 0; w < kWords; ++w) words[w] = __shfl_xor_sync(~0u, words[w], mask);
  Value other;
  memcpy(&other, words, sizeof(Value));
  return other;
}

/// Whether combine(a, b) and combine(b, a) are known to have the same bits.
template <class Combine>
inline constexpr bool kCommutes = std::is_same_v<Combine, functor::Add>;

/// combine_team for teams whose threads lie side by side: within warps by shuffles, then over a team's warps in order.
template <class Value, class Combine>
__device__ Value combine_neighbours(int depth, Value value, Value* values, const Combine& combine) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto meet = [&](int mask) {
    const Value other = shuffle_xor(value, mask);
    value = kCommutes<Combine> || (thread & mask) == 0 ? combine(value, other) : combine(other, value);  // as the other
  };
  if (depth >= Teams::kWarp) {
#pragma unroll
    for (int mask = 1; mask < Teams::kWarp; mask *= 2) meet(mask);
  } else {
#pragma unroll 1
    for (int mask = 1; mask < depth; mask *= 2) meet(mask);
  }
  if (depth <= Teams::kWarp) return value;
  __syncthreads();  // an earlier result may still be read
  if (thread % Teams::kWarp == 0) values[thread / Teams::kWarp] = value;
  __syncthreads();
  const int first = thread / depth * (depth / Teams::kWarp);
  value = values[first];
  for (int warp = 1; warp < depth / Teams::kWarp; ++warp) value = combine(value, values[first + warp]);
  return value;
}

/// combine(a, b) over the values of each team in a fixed tree; every member gets the result. All threads of the block
/// call it; `values` is shared memory for Teams::kThreads values.
template <class Value, class Combine>
__device__ Value combine_team(const Teams& teams, Value value, Value* values, const Combine& combine) {
  if (!teams.across) return combine_neighbours(teams.depth, value, values, combine);
  const int lane = teams.lane(), rank = teams.rank(), lanes = teams.lanes;
  __syncthreads();  // an earlier result may still be read
  values[lane + lanes * rank] = value;
  for (int half = teams.depth / 2; half > 0; half /= 2) {
    __syncthreads();
    if (rank < half) {
      values[lane + lanes * rank] = combine(values[lane + lanes * rank], values[lane + lanes * (rank + half)]);
    }
  }
  __syncthreads();
  return values[lane];
}
#endif

}  // namespace halo::cuda
