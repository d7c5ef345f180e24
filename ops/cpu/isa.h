// CPU kernels compiled once for each instruction set, and chosen for the machine at run time.
//
// isa_kernels.cpp is built several times under different flags (CMakeLists.txt lists them). Eigen goes by another
// namespace name in each, so that no template is shared between objects built with different flags.
#pragma once

#include <cstdint>

namespace halo::cpu {

/// C = alpha A B + beta C, row-major; op(A) is [m, k], op(B) is [k, n]. `lda`, `ldb`, `ldc` are row pitches in elements
/// of the matrices as stored; a transposed operand is stored the other way round. beta = 0 never reads C. One thread.
template <class T>
using Gemm = void (*)(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a,
                      int64_t lda, const T* b, int64_t ldb, T beta, T* c, int64_t ldc);

/// A product whose left operand is read where it lies: c[i][j] (+)= sum_k a[rows[i] + steps[k]] b[k][j]. All offsets
/// are in elements; `b` is dense; `c` has pitch `ldc`. Each sum is one chain in the order of k, whatever its
/// neighbours.
template <class T>
using Tile = void (*)(int64_t depth, const T* a, const int64_t* rows, const int64_t* steps, const T* b, T* c,
                      int64_t ldc, bool accumulate);

template <class T>
struct TileKernels {
  static constexpr int kMostRows = 12, kMostVectors = 2;
  int lanes;                              ///< columns a vector
  int rows;                               ///< the most rows a tile may have here
  Tile<T> tile[kMostRows][kMostVectors];  ///< for i + 1 rows and (j + 1) * lanes columns
};

struct IsaKernels {
  const char* name;
  Gemm<float> gemm_f32;
  Gemm<double> gemm_f64;
  TileKernels<float> tiles_f32;
  TileKernels<double> tiles_f64;
};

/// The kernels for this machine; the environment variable HALO_CPU_ISA (baseline, avx2, avx512) asks for a lower set.
const IsaKernels& isa_kernels();

template <class T>
void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
          const T* b, int64_t ldb, T beta, T* c, int64_t ldc) {
  if constexpr (sizeof(T) == 4) {
    isa_kernels().gemm_f32(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  } else {
    isa_kernels().gemm_f64(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  }
}

template <class T>
const TileKernels<T>& tile_kernels() {
  if constexpr (sizeof(T) == 4) {
    return isa_kernels().tiles_f32;
  } else {
    return isa_kernels().tiles_f64;
  }
}

}  // namespace halo::cpu
