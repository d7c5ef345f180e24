// Matrix products on one thread, in register tiles (isa.h).
#pragma once

#include <cstdint>
#include <vector>

namespace halo::cpu {

/// A matrix whose element (i, j) is data[i * row_step + j * column_step]; one of the steps is 1.
template <class T>
struct Matrix {
  T* data;
  int64_t row_step, column_step;
  Matrix transposed() const { return {data, column_step, row_step}; }
  Matrix from(int64_t row, int64_t column) const {
    return {data + row * row_step + column * column_step, row_step, column_step};
  }
};

/// A result of at most kTileRows x kTileColumns elements is computed at a time: what it needs stays in the caches.
inline constexpr int64_t kTileRows = 480, kTileColumns = 256;

/// Memory for one product at a time.
struct GemmScratch {
  std::vector<float> left, right;
  std::vector<int64_t> rows, steps;
};

/// result[i * pitch + j] = sum over k of a[i][k] b[k][j]; rows of the result have room for Panels(columns).padded
/// columns, those beyond `columns` become 0. Each element is one chain in the order of k, whatever its place: so a
/// product and the product of the transposed operands, exchanged, have the same bits.
void multiply_tile(int64_t rows, int64_t columns, int64_t depth, Matrix<const float> a, Matrix<const float> b,
                   float* result, int64_t pitch, GemmScratch& scratch);

}  // namespace halo::cpu
