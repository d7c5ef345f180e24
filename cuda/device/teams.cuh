// Blocks cut into teams, each working on one row.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace halo::cuda {

/// A block of kThreads threads as `lanes` teams of `depth` threads, both powers of two. The cut depends on the sizes
/// alone, so that sums within a team have the same bits everywhere.
struct Teams {
  static constexpr int kThreads = 256;

  int lanes = 1, depth = kThreads;
  bool across = false;  ///< neighbouring threads are in neighbouring teams (whose rows lie side by side), else in one

  /// For `rows` rows of `length` elements.
  static Teams of(int64_t rows, int64_t length, bool across) {
    // Side by side, 32 lanes read whole lines; fewer where there are fewer rows.
    const auto wanted =
        across ? std::max<int64_t>(kThreads / 32,
                                   kThreads / static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows))))
               : (length + 3) / 4;
    const auto most = std::clamp<int64_t>(length, 1, kThreads);
    const auto depth = std::bit_floor(static_cast<uint64_t>(std::clamp<int64_t>(wanted, 1, most)));
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
/// combine(a, b) over the values of each team in a fixed tree; every member gets the result. All threads of the block
/// call it; `values` is shared memory for Teams::kThreads values.
template <class Value, class Combine>
__device__ Value combine_team(const Teams& teams, Value value, Value* values, const Combine& combine) {
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
