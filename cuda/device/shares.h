// Work cut into shares that are as even as whole things allow; the device divides nothing.
#pragma once

#include <cstdint>

namespace halo::cuda {

/// Share p of `all` things is begin(p) ... begin(p + 1).
struct Shares {
  int64_t parts = 1, each = 0;
  int64_t longer = 0;  ///< the first so many shares have one more

  Shares() = default;
  Shares(int64_t all, int64_t parts_of) : parts(parts_of), each(all / parts_of), longer(all % parts_of) {}

#ifdef __CUDACC__
  __device__ __forceinline__ int64_t begin(int64_t part) const { return each * part + min(part, longer); }
#endif
};

}  // namespace halo::cuda
