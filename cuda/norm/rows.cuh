// What both directions of norms over rows share. A team of threads a row: the row is read once, its statistics come
// from two passes over registers.
#pragma once

#include "../device/grid_order.cuh"
#include "../device/team_row.cuh"
#include "rows.h"

namespace halo::cuda {
namespace {

/// Several sums at once.
template <class Value, int N>
struct Totals {
  Value at[N];
  __device__ friend Totals operator+(const Totals& a, const Totals& b) {
    Totals sum;
#pragma unroll
    for (int k = 0; k < N; ++k) sum.at[k] = a.at[k] + b.at[k];
    return sum;
  }
};

/// a b, rounded before it meets a sum: bits must not depend on which products a compiler takes into sums.
__device__ __forceinline__ float product(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double product(double a, double b) { return __dmul_rn(a, b); }

enum Slot { kX, kResidual, kGradient = 1, kPast };  ///< operands in a row's shared memory

/// Whether packs of a row are one access each, wherever they lie.
template <class T, class... Pointers>
bool are_packs(Pointers... pointers) {
  return (is_aligned<T, kWide<T>>(pointers) && ...);
}

}  // namespace
}  // namespace halo::cuda
