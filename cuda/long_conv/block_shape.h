// Geometry of the transform that one thread block holds: sizes, threads, passes and shared memory, for host and device.
#pragma once

#include <cstddef>

#include <cuda_runtime.h>

namespace halo::cuda::long_conv {

/// Rows longer than this, the largest block, are made of residues of this size.
inline constexpr int kLargestBlock = 8192;

/// log2 of the complex points a thread holds. 32 points take 64 registers in float32 and need the fewest exchanges;
/// where 16 do with as many passes, twice the threads hide more.
template <class Real>
__host__ __device__ constexpr int log_elements(int log_size) {
  return sizeof(Real) == 4 && log_size == 12 ? 4 : 5;
}

/// log2 of the radices of a block's passes; `third` may be 0 (none).
struct PassRadices {
  int first, second, third;
};
__host__ __device__ constexpr PassRadices pass_radices(int log_size, int log_elements) {
  const int rest = log_size - log_elements, third = rest <= 5 ? 0 : rest - 4;
  return {log_elements, rest - third, third};
}

/// A transform of 2^LogSize complex points in two or three radix passes. The first pass takes elements at distance
/// kThreads (coalesced loads, exchange through the whole block); what follows stays within one warp's consecutive
/// points.
template <class RealType, int LogSize>
struct BlockShape {
  using Real = RealType;
  static constexpr int kLogSize = LogSize;
  static constexpr int kSize = 1 << LogSize;
  static constexpr PassRadices kRadices = pass_radices(LogSize, log_elements<Real>(LogSize));
  static constexpr int kFirst = kRadices.first, kSecond = kRadices.second, kThird = kRadices.third;
  static constexpr int kElements = 1 << kFirst;                 // complex points a thread
  static constexpr int kThreads = kSize / kElements;            // of one row
  static constexpr int kBlock = kThreads < 32 ? 32 : kThreads;  // short rows share a warp
  static constexpr int kRows = kBlock / kThreads;               // rows in flight a block
  static constexpr int kWarp = kThreads < 32 ? kThreads : 32;   // threads of a row in one warp
  static_assert(kSecond <= kFirst && kThird <= kSecond);
  static_assert(kThird == 0 || kWarp * kElements >= 1 << (kSecond + kThird));  // second and third pass within a warp

  /// One point in 2^kPadShift is skipped, which makes every access below free of bank conflicts (16 lanes x 8 bytes).
  static constexpr int kPadShift = LogSize == 10 ? 5 : 4;
  __host__ __device__ static constexpr int pad(int i) { return i + (i >> kPadShift); }
  static constexpr int kRowStride = kSize + (kSize >> kPadShift) + (kRows > 1 ? 8 : 0);  // points
  static constexpr std::size_t kSharedBytes = std::size_t{2} * sizeof(Real) * kRows * kRowStride;

  /// Registers a thread: 128 for 32 points of float32, 64 for 16; float64 takes all 255.
  static constexpr int kBlocksPerMultiprocessor = (sizeof(Real) == 8 ? 256 : 16384 / kElements) / kBlock;

  /// Backward keeps this many of a thread's points of one spectrum in shared memory that the exchange leaves free, and
  /// the rest in the workspace: what all multiprocessors have in flight is more than the second-level cache holds. More
  /// than 196 KB a multiprocessor would leave the first-level cache too little. Each block has 1 KB reserved by the
  /// system.
  static constexpr int kSharedOfMultiprocessor = 196 * 1024;
  static constexpr int kNear =
      sizeof(Real) == 8 ? 0
                        : (kSharedOfMultiprocessor / kBlocksPerMultiprocessor - 1024 - static_cast<int>(kSharedBytes)) /
                              (2 * static_cast<int>(sizeof(Real)) * kBlock);
  static_assert(kNear >= 0 && kNear <= kElements);
  static constexpr std::size_t kNearBytes = std::size_t{2} * sizeof(Real) * kBlock * kNear;
};

}  // namespace halo::cuda::long_conv
