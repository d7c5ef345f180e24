// Layer norm of a few rows, as in a generation step: a block a row and a pack a thread, so that every load is on its
// way at once.
#include "../device/packs.cuh"
#include "../device/teams.cuh"
#include "../launch.h"
#include "rows.h"

namespace halo::cuda {
namespace {

constexpr int kMostThreads = 512;
constexpr int64_t kMostRows = 4;

using Four = Pack<float>;

__device__ Four load(const float* from, int64_t at, float otherwise) {
  return from == nullptr ? Four{otherwise, otherwise, otherwise, otherwise} : *reinterpret_cast<const Four*>(from + at);
}

/// f(a, b) over the block, for a sum of many.
struct Two {
  float at[2];
};
__device__ Two total(Two mine, Two* shared) {
  return combine_neighbours(static_cast<int>(blockDim.x), mine, shared, [](const Two& a, const Two& b) {
    return Two{a.at[0] + b.at[0], a.at[1] + b.at[1]};
  });
}

__global__ void __launch_bounds__(kMostThreads) few_rows_kernel(const __grid_constant__ RowForward<float> args) {
  __shared__ Two shared[kMostThreads / Teams::kWarp];
  const int64_t column = int64_t{threadIdx.x} * kPackSize, at = blockIdx.x * args.length + column;
  const bool held = column < args.length;
  Four v{}, w{}, b{};
  if (held) {
    const Four x = load(args.x, at, 0), x_bias = load(args.x_bias, column, 0), residual = load(args.residual, at, 0);
    w = load(args.weight, column, 1);
    b = load(args.bias, column, 0);
#pragma unroll
    for (int k = 0; k < kPackSize; ++k) v.at[k] = x.at[k] + x_bias.at[k] + residual.at[k];
    if (args.sum != nullptr) *reinterpret_cast<Four*>(args.sum + at) = v;
  }
  const float count = static_cast<float>(args.length);
  const float mean = total({(v.at[0] + v.at[1]) + (v.at[2] + v.at[3]), 0}, shared).at[0] / count;
  Two sums{};  // of differences, which show what rounding took from the mean, and of their squares
#pragma unroll
  for (int k = 0; k < kPackSize; ++k) {
    v.at[k] = held ? v.at[k] - mean : 0;
    sums.at[0] += v.at[k];
    sums.at[1] += v.at[k] * v.at[k];
  }
  sums = total(sums, shared);
  const float rest = sums.at[0] / count, variance = sums.at[1] / count - rest * rest;
  const float rstd = 1 / sqrtf((variance < 0 ? 0 : variance) + static_cast<float>(args.eps));
  if (held) {
#pragma unroll
    for (int k = 0; k < kPackSize; ++k) v.at[k] = (v.at[k] - rest) * rstd * w.at[k] + b.at[k];
    *reinterpret_cast<Four*>(args.y + at) = v;
  }
  if (threadIdx.x > 0) return;
  args.mean[blockIdx.x] = mean + rest;
  args.rstd[blockIdx.x] = rstd;
}

}  // namespace

bool few_rows_forward(const char* name, const RowForward<float>& a, cudaStream_t stream) {
  bool packs = a.length % kPackSize == 0 && a.length <= kMostThreads * kPackSize;
  for (const float* p : {a.x, a.x_bias, a.residual, a.weight, a.bias, static_cast<const float*>(a.sum),
                         static_cast<const float*>(a.y)}) {
    packs = packs && is_aligned(p);
  }
  if (!packs || a.rows > kMostRows) return false;
  const auto packs_a_row = static_cast<uint64_t>(a.length / kPackSize);
  const auto threads = static_cast<unsigned>(std::max<uint64_t>(Teams::kWarp, std::bit_ceil(packs_a_row)));
  launch(name, few_rows_kernel, static_cast<unsigned>(a.rows), threads, 0, stream, a);
  return true;
}

}  // namespace halo::cuda
