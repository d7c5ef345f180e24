// Sums of products, built once for each instruction set.
#include <type_traits>
#include <utility>

#include "isa_vector.h"

namespace halo::cpu::HALO_ISA {
namespace {

// Sums that stay in registers: 24 of 32, or 12 of 16, with room for the operands.
constexpr int kTileRows = kVectorBytes == 64 ? 12 : 6, kLineVectors = kVectorBytes == 64 ? 4 : 2;

template <class T, int Rows, int Vectors>
void tile(int64_t depth, const T* a, const int64_t* rows, const int64_t* steps, const T* b, T* c, int64_t ldc,
          bool accumulate) {
  const T* row[Rows];
  Vector<T> sum[Rows][Vectors];
  for (int i = 0; i < Rows; ++i) {
    row[i] = a + rows[i];
    for (int v = 0; v < Vectors; ++v) sum[i][v] = accumulate ? load(c + i * ldc + v * kLanes<T>) : Vector<T>{};
  }
  for (int64_t k = 0; k < depth; ++k) {
    const int64_t step = steps[k];
    Vector<T> right[Vectors];
    for (int v = 0; v < Vectors; ++v) right[v] = load(b + v * kLanes<T>);
    b += Vectors * kLanes<T>;
    for (int i = 0; i < Rows; ++i) {
      const Vector<T> left = broadcast(row[i][step]);
      for (int v = 0; v < Vectors; ++v) sum[i][v] += left * right[v];
    }
  }
  for (int i = 0; i < Rows; ++i) {
    for (int v = 0; v < Vectors; ++v) store(c + i * ldc + v * kLanes<T>, sum[i][v]);
  }
}

template <class T, int Results, int Vectors>
void line_block(int64_t depth, const T* w, const T* in, const int64_t* steps, T* out, int64_t pitch, bool accumulate) {
  Vector<T> sum[Results][Vectors];
  for (int i = 0; i < Results; ++i) {
    for (int v = 0; v < Vectors; ++v) sum[i][v] = accumulate ? load(out + i * pitch + v * kLanes<T>) : Vector<T>{};
  }
  for (int64_t k = 0; k < depth; ++k) {
    const T* from = in + steps[k];
    Vector<T> right[Vectors];
    for (int v = 0; v < Vectors; ++v) right[v] = load(from + v * kLanes<T>);
    for (int i = 0; i < Results; ++i) {
      const Vector<T> left = broadcast(w[k * Results + i]);
      for (int v = 0; v < Vectors; ++v) sum[i][v] += left * right[v];
    }
  }
  for (int i = 0; i < Results; ++i) {
    for (int v = 0; v < Vectors; ++v) store(out + i * pitch + v * kLanes<T>, sum[i][v]);
  }
}

template <class T, int Results>
void lines(int64_t depth, const T* w, const T* in, const int64_t* steps, int64_t vectors, T* out, int64_t pitch,
           bool accumulate) {
  int64_t v = 0;
  const auto run = [&]<int Vectors>(std::integral_constant<int, Vectors>) {
    for (; v + Vectors <= vectors; v += Vectors) {
      line_block<T, Results, Vectors>(depth, w, in + v * kLanes<T>, steps, out + v * kLanes<T>, pitch, accumulate);
    }
  };
  run(std::integral_constant<int, kLineVectors>());
  if constexpr (kLineVectors > 2) run(std::integral_constant<int, 2>());
  run(std::integral_constant<int, 1>());
}

/// The sum of all lanes, halves added to halves.
template <class T, class V>
T sum_of(const V& v) {
  T lanes[kLanes<T>];
  store(lanes, v);
  for (int half = kLanes<T> / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

template <class T, int Sums>
void dots(int64_t rows, int64_t columns, const T* a, const T* in, int64_t in_pitch, const int64_t* steps, T* sums) {
  using Bits [[gnu::vector_size(kVectorBytes)]] = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  const int64_t whole = columns / kLanes<T> * kLanes<T>, rest = columns - whole;
  Bits inside;  // of the last vector of a row; what lies beyond may be anything, a NaN times 0 too
  for (int lane = 0; lane < kLanes<T>; ++lane) inside[lane] = lane < rest ? -1 : 0;
  const T* from[Sums];
  Vector<T> sum[Sums];
  for (int i = 0; i < Sums; ++i) {
    from[i] = in + steps[i];
    sum[i] = Vector<T>{};
  }
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t start = row * in_pitch;
    for (int64_t j = 0; j < whole; j += kLanes<T>, a += kLanes<T>) {
      const Vector<T> left = load(a);
      for (int i = 0; i < Sums; ++i) sum[i] += left * load(from[i] + start + j);
    }
    if (rest == 0) continue;
    const Vector<T> left = load(a);
    a += kLanes<T>;
    for (int i = 0; i < Sums; ++i) {
      sum[i] += left * reinterpret_cast<Vector<T>>(reinterpret_cast<Bits>(load(from[i] + start + whole)) & inside);
    }
  }
  for (int i = 0; i < Sums; ++i) sums[i] = sum_of<T>(sum[i]);
}

template <class T, std::size_t... Row, std::size_t... Line, std::size_t... Sum>
constexpr Kernels<T> all(std::index_sequence<Row...>, std::index_sequence<Line...>, std::index_sequence<Sum...>) {
  return {kLanes<T>,
          kTileRows,
          {{tile<T, Row + 1, 1>, tile<T, Row + 1, 2>}...},
          {lines<T, Line + 1>...},
          {dots<T, Sum + 1>...}};
}
template <class T>
constexpr Kernels<T> all() {
  return all<T>(std::make_index_sequence<kTileRows>(), std::make_index_sequence<Kernels<T>::kLines>(),
                std::make_index_sequence<Kernels<T>::kDots>());
}

}  // namespace

extern const IsaKernels kernels;
const IsaKernels kernels{HALO_ISA_NAME, all<float>(), all<double>(), fft_one, fft, gelu, gelu_derivative};

}  // namespace halo::cpu::HALO_ISA
