#include <algorithm>

#include "../launch.h"
#include "../runtime/device.h"
#include "tiled.h"

namespace halo::cuda {
namespace {

constexpr int kTile = 64;      // rows and columns of C a block
constexpr int kDepth = 16;     // of the pieces of A and B in shared memory
constexpr int kThreads = 256;  // 16 x 16, each with 4 x 4 elements of C, 16 apart
constexpr int kEach = kTile / 16;

template <class T>
struct Operand {
  const T* data;
  int64_t row_step, depth_step, batch_step;  ///< row: of C's row or column
  int64_t rows;
};

/// piece (kDepth, kTile) = the operand's rows from `first`, depth from `depth`; zeros outside.
template <class T>
__device__ void load(T (&piece)[kDepth][kTile + 1], const Operand<T>& operand, int64_t batch, int64_t first,
                     int64_t depth, int64_t k) {
  const bool rows_together = operand.row_step == 1;  // then neighbouring threads take neighbouring rows
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kDepth; i += kThreads) {
    const int row = rows_together ? i % kTile : i / kDepth, d = rows_together ? i / kTile : i % kDepth;
    const bool inside = first + row < operand.rows && depth + d < k;
    piece[d][row] = inside ? operand.data[batch * operand.batch_step + (first + row) * operand.row_step +
                                          (depth + d) * operand.depth_step]
                           : T(0);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    tiled_kernel(const __grid_constant__ GemmProblem p, const __grid_constant__ Operand<T> a,
                 const __grid_constant__ Operand<T> b, T* c) {
  __shared__ T piece_a[kDepth][kTile + 1], piece_b[kDepth][kTile + 1];
  const int x = static_cast<int>(threadIdx.x) % 16, y = static_cast<int>(threadIdx.x) / 16;
  const int64_t row_tiles = (p.m + kTile - 1) / kTile;
  const int64_t first_row = blockIdx.x % row_tiles * kTile, first_column = blockIdx.x / row_tiles * kTile;
  for (int64_t batch = blockIdx.y; batch < p.batch; batch += gridDim.y) {
    T sum[kEach][kEach] = {};
    for (int64_t depth = 0; depth < p.k; depth += kDepth) {
      load(piece_a, a, batch, first_row, depth, p.k);
      load(piece_b, b, batch, first_column, depth, p.k);
      __syncthreads();
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
#pragma unroll
          for (int j = 0; j < kEach; ++j) sum[i][j] = fma(piece_a[d][y + 16 * i], piece_b[d][x + 16 * j], sum[i][j]);
        }
      }
      __syncthreads();
    }
    for (int i = 0; i < kEach; ++i) {
      for (int j = 0; j < kEach; ++j) {
        const int64_t row = first_row + y + 16 * i, column = first_column + x + 16 * j;
        if (row >= p.m || column >= p.n) continue;
        T& out = c[batch * p.batch_c + row * p.ldc + column];
        const T product = static_cast<T>(p.alpha) * sum[i][j];
        out = p.beta == 0 ? product : fma(static_cast<T>(p.beta), out, product);
      }
    }
  }
}

}  // namespace

void tiled_gemm(const GemmProblem& p, const Tensor& a, const Tensor& b, const Tensor& c) {
  dispatch_float("matmul", c.dtype(), [&]<class T>(std::type_identity<T>) {
    const Operand<T> rows{a.data<T>(), p.transpose_a ? 1 : p.lda, p.transpose_a ? p.lda : 1, p.batch_a, p.m};
    const Operand<T> columns{b.data<T>(), p.transpose_b ? p.ldb : 1, p.transpose_b ? 1 : p.ldb, p.batch_b, p.n};
    const int64_t tiles = ((p.m + kTile - 1) / kTile) * ((p.n + kTile - 1) / kTile);
    const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(std::min<int64_t>(p.batch, 65535)));
    const DeviceScope scope(c.device());
    launch("matmul", tiled_kernel<T>, grid, kThreads, 0, scope.stream(), p, rows, columns, c.data<T>());
  });
}

}  // namespace halo::cuda
