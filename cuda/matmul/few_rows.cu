// A warp multiplies one column of the matrix with all rows. Such products are as long as a launch and one trip to
// memory, so that there are no tiles and no barriers: every load of a short column is in flight at once.
#include "../device/packs.cuh"
#include "../launch.h"
#include "../runtime/device.h"
#include "few_rows.h"

namespace halo::cuda {
namespace {

constexpr int kMostRows = 4, kThreads = 128, kWarp = 32;
constexpr std::size_t kMostBytes = std::size_t{8} << 20;

struct Args {
  const float *a, *b;
  float* c;
  int64_t n, k, lda, ldb, ldc;
  int m;
  float alpha, beta;
};

template <int kRows>
__global__ void __launch_bounds__(kThreads) few_rows_kernel(const __grid_constant__ Args args) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t column = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  if (column >= args.n) return;
  const float* const b = args.b + column * args.ldb;
  float sums[kRows] = {};
#pragma unroll 8
  for (int64_t k = lane * kPackSize; k < args.k; k += kWarp * kPackSize) {
    const auto weight = *reinterpret_cast<const Pack<float>*>(b + k);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const auto x = *reinterpret_cast<const Pack<float>*>(args.a + min(row, args.m - 1) * args.lda + k);
#pragma unroll
      for (int i = 0; i < kPackSize; ++i) sums[row] = fma(x.at[i], weight.at[i], sums[row]);
    }
  }
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
#pragma unroll
    for (int mask = kWarp / 2; mask > 0; mask /= 2) sums[row] += __shfl_xor_sync(~0u, sums[row], mask);
    if (lane != row || row >= args.m) continue;
    float& out = args.c[row * args.ldc + column];
    out = args.beta == 0 ? args.alpha * sums[row] : fma(args.beta, out, args.alpha * sums[row]);
  }
}

}  // namespace

bool few_rows_gemm(const GemmProblem& p, const Tensor& a, const Tensor& b, const Tensor& c) {
  if (c.dtype() != DType::Float32 || p.m > kMostRows || p.batch > 1 || p.transpose_a || !p.transpose_b) return false;
  const bool aligned = is_aligned(a.data<float>()) && is_aligned(b.data<float>()) && p.k % kPackSize == 0 &&
                       p.lda % kPackSize == 0 && p.ldb % kPackSize == 0;
  if (!aligned || static_cast<std::size_t>(p.n) * static_cast<std::size_t>(p.k) * sizeof(float) > kMostBytes) {
    return false;
  }
  const Args args{.a = a.data<float>(),
                  .b = b.data<float>(),
                  .c = c.data<float>(),
                  .n = p.n,
                  .k = p.k,
                  .lda = p.lda,
                  .ldb = p.ldb,
                  .ldc = p.ldc,
                  .m = static_cast<int>(p.m),
                  .alpha = static_cast<float>(p.alpha),
                  .beta = static_cast<float>(p.beta)};
  const DeviceScope scope(c.device());
  const auto blocks = static_cast<unsigned>((p.n * kWarp + kThreads - 1) / kThreads);
  launch("matmul", p.m == 1 ? few_rows_kernel<1> : few_rows_kernel<kMostRows>, blocks, kThreads, 0, scope.stream(),
         args);
  return true;
}

}  // namespace halo::cuda
