// A bitonic network over (key, index) pairs in the registers of a warp: a lane has kEach neighbours of the sequence, so
// that most steps stay within it and the others are shuffles. The index in the pair makes the order stable.
#include <algorithm>
#include <bit>

#include "../device/teams.cuh"
#include "../launch.h"
#include "../runtime/device.h"
#include "order_key.cuh"
#include "sort_rows.h"

namespace halo::cuda {
namespace {

constexpr int kThreads = 128, kWarp = 32, kWarps = kThreads / kWarp, kMostEach = 32;

struct SortRows {
  int64_t rows;
  int length;
  bool descending;
  DType dtype;
  const void* x;
  void* values;
  int64_t* indices;
  __device__ uint64_t key(int64_t i) const {
    switch (dtype) {
      case DType::Float32: return order_key(static_cast<const float*>(x)[i], descending);
      case DType::Int32: return order_key(static_cast<const int32_t*>(x)[i], descending);
      default: return order_key(static_cast<const uint8_t*>(x)[i], descending);
    }
  }
  __device__ void write(int64_t to, int64_t row_begin, int from) const {
    if (size() == 4) {
      static_cast<uint32_t*>(values)[to] = static_cast<const uint32_t*>(x)[row_begin + from];
    } else {
      static_cast<uint8_t*>(values)[to] = static_cast<const uint8_t*>(x)[row_begin + from];
    }
    indices[to] = from;
  }
  __device__ int size() const { return dtype == DType::Float32 || dtype == DType::Int32 ? 4 : 1; }
};

/// Puts the smaller of two first, or, with `up` false, the larger.
__device__ __forceinline__ void put_in_order(uint64_t& a, uint64_t& b, bool up) {
  const bool swap = (b < a) == up;
  const uint64_t low = swap ? b : a, high = swap ? a : b;
  a = low;
  b = high;
}

/// Element e of lane l is number l * kEach + e of the sequence.
template <int kEach>
__device__ __forceinline__ void bitonic_sort(uint64_t (&pair)[kEach], int lane) {
#pragma unroll
  for (int size = 2; size <= kEach * kWarp; size *= 2) {
#pragma unroll
    for (int step = size / 2; step > 0; step /= 2) {
      if (step < kEach) {
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
          const bool up = size < kEach ? (e & size) == 0 : (lane * kEach & size) == 0;
          if ((e & step) == 0) put_in_order(pair[e], pair[e | step], up);
        }
      } else {
        const bool up = (lane * kEach & size) == 0, first = (lane & (step / kEach)) == 0;
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
          const uint64_t other = __shfl_xor_sync(~0u, pair[e], step / kEach);
          pair[e] = (other < pair[e]) == (up == first) ? other : pair[e];
        }
      }
    }
  }
}

template <int kEach>
__global__ void __launch_bounds__(kThreads) sort_rows_kernel(const __grid_constant__ SortRows f) {
  constexpr int kPadded = kEach * kWarp + kEach;  // a word after every 32: no bank conflicts
  __shared__ uint32_t places[kWarps][kPadded];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t row = int64_t{blockIdx.x} * kWarps + warp, begin = row * f.length;
  if (row >= f.rows) return;
  uint64_t pair[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {  // in any order: neighbouring lanes read neighbours
    const int i = e * kWarp + lane;
    pair[e] = (i < f.length ? f.key(begin + i) << 32 : ~uint64_t{0} << 32) | static_cast<uint32_t>(i);
  }
  bitonic_sort(pair, lane);
  const auto padded = [](int i) { return i + i / kWarp; };
#pragma unroll
  for (int e = 0; e < kEach; ++e) places[warp][padded(lane * kEach + e)] = static_cast<uint32_t>(pair[e]);
  __syncwarp();
#pragma unroll 4
  for (int e = 0; e < kEach; ++e) {
    const int i = e * kWarp + lane;
    if (i < f.length) f.write(begin + i, begin, static_cast<int>(places[warp][padded(i)]));
  }
}

}  // namespace

bool sort_rows(const Tensor& x, bool descending, const Tensor& values, const Tensor& indices) {
  const int64_t length = x.rank() == 0 ? 1 : x.size(-1), rows = x.numel() / length;
  if (length > kMostEach * kWarp || size_of(x.dtype()) > 4 || is_half(x.dtype())) return false;
  const SortRows f{rows,          static_cast<int>(length), descending, x.dtype(), x.data(),
                   values.data(), indices.data<int64_t>()};
  const DeviceScope scope(x.device());
  const auto run = [&](auto kernel) {
    launch("sort", kernel, static_cast<unsigned>((rows + kWarps - 1) / kWarps), kThreads, 0, scope.stream(), f);
  };
  switch (std::bit_ceil(static_cast<uint64_t>((length + kWarp - 1) / kWarp))) {
    case 1: run(sort_rows_kernel<1>); break;
    case 2:
    case 4: run(sort_rows_kernel<4>); break;
    case 8: run(sort_rows_kernel<8>); break;
    case 16: run(sort_rows_kernel<16>); break;
    default: run(sort_rows_kernel<32>);
  }
  return true;
}

}  // namespace halo::cuda
