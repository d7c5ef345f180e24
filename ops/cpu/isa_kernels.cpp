// Sums of products, built once for each instruction set.
#include <type_traits>
#include <utility>

#include "isa_vector.h"

namespace halo::cpu::HALO_ISA {
namespace {

using Floats = Vector<float>;

// Sums that stay in registers: 24 of 32, or 12 of 16, with room for the operands.
constexpr int kTileRows = kVectorBytes == 64 ? 12 : 6, kLineVectors = kVectorBytes == 64 ? 4 : 2;

template <int Rows, int Vectors>
void tile(int64_t depth, const float* a, const int64_t* rows, const int64_t* steps, const float* b, float* c,
          int64_t ldc, bool accumulate) {
  const float* row[Rows];
  Floats sum[Rows][Vectors];
  for (int i = 0; i < Rows; ++i) {
    row[i] = a + rows[i];
    for (int v = 0; v < Vectors; ++v) sum[i][v] = accumulate ? load(c + i * ldc + v * kLanes<float>) : Floats{};
  }
  for (int64_t k = 0; k < depth; ++k) {
    const int64_t step = steps[k];
    Floats right[Vectors];
    for (int v = 0; v < Vectors; ++v) right[v] = load(b + v * kLanes<float>);
    b += Vectors * kLanes<float>;
    for (int i = 0; i < Rows; ++i) {
      const Floats left = broadcast(row[i][step]);
      for (int v = 0; v < Vectors; ++v) sum[i][v] += left * right[v];
    }
  }
  for (int i = 0; i < Rows; ++i) {
    for (int v = 0; v < Vectors; ++v) store(c + i * ldc + v * kLanes<float>, sum[i][v]);
  }
}

template <int Results, int Vectors>
void line_block(int64_t depth, const float* w, const float* in, const int64_t* steps, float* out, int64_t pitch,
                bool accumulate) {
  Floats sum[Results][Vectors];
  for (int i = 0; i < Results; ++i) {
    for (int v = 0; v < Vectors; ++v) sum[i][v] = accumulate ? load(out + i * pitch + v * kLanes<float>) : Floats{};
  }
  for (int64_t k = 0; k < depth; ++k) {
    const float* from = in + steps[k];
    Floats right[Vectors];
    for (int v = 0; v < Vectors; ++v) right[v] = load(from + v * kLanes<float>);
    for (int i = 0; i < Results; ++i) {
      const Floats left = broadcast(w[k * Results + i]);
      for (int v = 0; v < Vectors; ++v) sum[i][v] += left * right[v];
    }
  }
  for (int i = 0; i < Results; ++i) {
    for (int v = 0; v < Vectors; ++v) store(out + i * pitch + v * kLanes<float>, sum[i][v]);
  }
}

template <int Results>
void lines(int64_t depth, const float* w, const float* in, const int64_t* steps, int64_t vectors, float* out,
           int64_t pitch, bool accumulate) {
  int64_t v = 0;
  const auto run = [&]<int Vectors>(std::integral_constant<int, Vectors>) {
    for (; v + Vectors <= vectors; v += Vectors) {
      line_block<Results, Vectors>(depth, w, in + v * kLanes<float>, steps, out + v * kLanes<float>, pitch, accumulate);
    }
  };
  run(std::integral_constant<int, kLineVectors>());
  if constexpr (kLineVectors > 2) run(std::integral_constant<int, 2>());
  run(std::integral_constant<int, 1>());
}

/// The sum of all lanes, halves added to halves.
float sum_of(const Floats& v) {
  float lanes[kLanes<float>];
  store(lanes, v);
  for (int half = kLanes<float> / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

template <int Sums>
void dots(int64_t rows, int64_t columns, const float* a, const float* in, int64_t in_pitch, const int64_t* steps,
          float* sums) {
  using Bits [[gnu::vector_size(kVectorBytes)]] = int32_t;
  const int64_t whole = columns / kLanes<float> * kLanes<float>, rest = columns - whole;
  Bits inside;  // of the last vector of a row; what lies beyond may be anything, a NaN times 0 too
  for (int lane = 0; lane < kLanes<float>; ++lane) inside[lane] = lane < rest ? -1 : 0;
  const float* from[Sums];
  Floats sum[Sums];
  for (int i = 0; i < Sums; ++i) {
    from[i] = in + steps[i];
    sum[i] = Floats{};
  }
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t start = row * in_pitch;
    for (int64_t j = 0; j < whole; j += kLanes<float>, a += kLanes<float>) {
      const Floats left = load(a);
      for (int i = 0; i < Sums; ++i) sum[i] += left * load(from[i] + start + j);
    }
    if (rest == 0) continue;
    const Floats left = load(a);
    a += kLanes<float>;
    for (int i = 0; i < Sums; ++i) {
      sum[i] += left * reinterpret_cast<Floats>(reinterpret_cast<Bits>(load(from[i] + start + whole)) & inside);
    }
  }
  for (int i = 0; i < Sums; ++i) sums[i] = sum_of(sum[i]);
}

template <std::size_t... Row, std::size_t... Line, std::size_t... Sum>
constexpr Kernels all(std::index_sequence<Row...>, std::index_sequence<Line...>, std::index_sequence<Sum...>) {
  return {
      kLanes<float>, kTileRows, {{tile<Row + 1, 1>, tile<Row + 1, 2>}...}, {lines<Line + 1>...}, {dots<Sum + 1>...}};
}

}  // namespace

extern const IsaKernels kernels;
const IsaKernels kernels{HALO_ISA_NAME,
                         all(std::make_index_sequence<kTileRows>(), std::make_index_sequence<Kernels::kLines>(),
                             std::make_index_sequence<Kernels::kDots>()),
                         fft_one,
                         fft,
                         gelu,
                         gelu_tanh};

}  // namespace halo::cpu::HALO_ISA
