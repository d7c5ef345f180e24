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

struct IsaKernels {
  const char* name;
  Gemm<float> gemm_f32;
  Gemm<double> gemm_f64;
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

}  // namespace halo::cpu
