// Built once for each instruction set: HALO_ISA names the set (and the kernels' namespace), and Eigen is renamed.
#include "isa.h"
#include <Eigen/Core>

namespace halo::cpu::HALO_ISA {
namespace {

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using ConstMap = Eigen::Map<const Matrix<T>, 0, Eigen::OuterStride<>>;
template <class T>
using Map = Eigen::Map<Matrix<T>, 0, Eigen::OuterStride<>>;

template <class T>
void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
          const T* b, int64_t ldb, T beta, T* c, int64_t ldc) {
  const ConstMap<T> a_map(a, transpose_a ? k : m, transpose_a ? m : k, Eigen::OuterStride<>(lda));
  const ConstMap<T> b_map(b, transpose_b ? n : k, transpose_b ? k : n, Eigen::OuterStride<>(ldb));
  Map<T> c_map(c, m, n, Eigen::OuterStride<>(ldc));
  if (beta == T(0)) {
    c_map.setZero();
  } else if (beta != T(1)) {
    c_map *= beta;
  }
  if (transpose_a && transpose_b) {
    c_map.noalias() += alpha * (a_map.transpose() * b_map.transpose());
  } else if (transpose_a) {
    c_map.noalias() += alpha * (a_map.transpose() * b_map);
  } else if (transpose_b) {
    c_map.noalias() += alpha * (a_map * b_map.transpose());
  } else {
    c_map.noalias() += alpha * (a_map * b_map);
  }
}

}  // namespace

extern const IsaKernels kernels;
const IsaKernels kernels{HALO_ISA_NAME, gemm<float>, gemm<double>};

}  // namespace halo::cpu::HALO_ISA
