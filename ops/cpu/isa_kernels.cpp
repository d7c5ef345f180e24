// Built once for each instruction set: HALO_ISA names the set and the kernels' namespace.
#include <cstring>
#include <utility>

#include "isa.h"
namespace halo::cpu::HALO_ISA {
namespace {

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
const IsaKernels kernels{HALO_ISA_NAME, all_tiles<float>(), all_tiles<double>()};

}  // namespace halo::cpu::HALO_ISA
