// Geometry of the transform that one thread block holds: sizes, threads, passes and shared memory, for host and device.
#pragma once

#include <cstddef>

#include <cuda_runtime.h>

namespace halo::cuda::long_conv {

/// The largest; longer rows are made of residues of this size.
inline constexpr int kLargestBlock = 8192;

/// A transform of 2^LogSize complex points, 32 to a thread, in two or three radix passes. The first pass takes elements
/// at distance kThreads (coalesced loads, exchange through the whole block); what follows stays within 1024 consecutive
/// points, that is within a warp.
template <class RealType, int LogSize>
struct BlockShape {
  using Real = RealType;
  static constexpr int kLogSize = LogSize;
  static constexpr int kSize = 1 << LogSize;
  static constexpr int kElements = 32;                            // complex points a thread: 64 registers in float32
  static constexpr int kThreads = kSize / kElements;              // of one row
  static constexpr int kBlock = kThreads < 32 ? 32 : kThreads;    // short rows share a warp
  static constexpr int kRows = kBlock / kThreads;                 // rows in flight a block
  static constexpr int kWarp = kThreads < 32 ? kThreads : 32;     // threads of a row in one warp
  static constexpr int kThird = LogSize <= 10 ? 0 : LogSize - 9;  // log2 of the radices: 5 + kSecond + kThird
  static constexpr int kSecond = LogSize - 5 - kThird;
  static_assert(kSecond <= 5 && kThird <= 4 && LogSize >= 8);
  static_assert(kThird == 0 || kSecond == 4);

  /// One point in 2^kPadShift is skipped, which makes every access below free of bank conflicts (16 lanes x 8 bytes).
  static constexpr int kPadShift = LogSize == 10 ? 5 : 4;
  __host__ __device__ static constexpr int pad(int i) { return i + (i >> kPadShift); }
  static constexpr int kRowStride = kSize + (kSize >> kPadShift) + (kRows > 1 ? 8 : 0);  // points
  static constexpr std::size_t kSharedBytes = std::size_t{2} * sizeof(Real) * kRows * kRowStride;

  /// 512 threads of 128 registers fill a multiprocessor; float64 needs 255.
  static constexpr int kBlocksPerMultiprocessor = (sizeof(Real) == 4 ? 512 : 256) / kBlock;
};

}  // namespace halo::cuda::long_conv
