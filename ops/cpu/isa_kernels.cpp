// Built once for each instruction set: HALO_ISA names the set (and the kernels' namespace), and Eigen is renamed.
#include <cstring>
#include <utility>

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

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kRows = 12;  // 24 sums in 32 registers
#elif defined(__AVX__)
constexpr int kVectorBytes = 32, kRows = 6;  // 12 sums in 16 registers
#else
constexpr int kVectorBytes = 16, kRows = 6;
#endif

template <class T, int Rows, int Vectors>
void tile(int64_t depth, const T* a, const int64_t* rows, const int64_t* steps, const T* b, T* c, int64_t ldc,
          bool accumulate) {
  using Vector [[gnu::vector_size(kVectorBytes)]] = T;
  constexpr int kLanes = kVectorBytes / sizeof(T);
  const T* row[Rows];
  Vector sum[Rows][Vectors];
  for (int i = 0; i < Rows; ++i) {
    row[i] = a + rows[i];
    for (int v = 0; v < Vectors; ++v) {
      sum[i][v] = Vector{};
      if (accumulate) std::memcpy(&sum[i][v], c + i * ldc + v * kLanes, kVectorBytes);
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    const int64_t step = steps[k];
    Vector right[Vectors];
    for (int v = 0; v < Vectors; ++v) std::memcpy(&right[v], b + v * kLanes, kVectorBytes);
    b += Vectors * kLanes;
    for (int i = 0; i < Rows; ++i) {
      const Vector left = row[i][step] - Vector{};  // in every lane; minus zero changes nothing, not even -0
      for (int v = 0; v < Vectors; ++v) sum[i][v] += left * right[v];
    }
  }
  for (int i = 0; i < Rows; ++i) {
    for (int v = 0; v < Vectors; ++v) std::memcpy(c + i * ldc + v * kLanes, &sum[i][v], kVectorBytes);
  }
}

template <class T, std::size_t... Row>
constexpr TileKernels<T> all_tiles(std::index_sequence<Row...>) {
  return {kVectorBytes / sizeof(T), kRows, {{tile<T, Row + 1, 1>, tile<T, Row + 1, 2>}...}};
}
template <class T>
constexpr TileKernels<T> all_tiles() {
  return all_tiles<T>(std::make_index_sequence<kRows>());
}

}  // namespace

extern const IsaKernels kernels;
const IsaKernels kernels{HALO_ISA_NAME, gemm<float>, gemm<double>, all_tiles<float>(), all_tiles<double>()};

}  // namespace halo::cpu::HALO_ISA
