// CPU kernels compiled once for each instruction set, and chosen for the machine at run time.
//
// isa_kernels.cpp is built several times under different flags (CMakeLists.txt lists them), each in a namespace of its
// own, so that no template is shared between objects built with different flags.
#pragma once

#include <cstdint>

namespace halo::cpu {

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
  TileKernels<float> tiles_f32;
  TileKernels<double> tiles_f64;
};

/// The kernels for this machine; the environment variable HALO_CPU_ISA (baseline, avx2, avx512) asks for a lower set.
const IsaKernels& isa_kernels();

template <class T>
const TileKernels<T>& tile_kernels() {
  if constexpr (sizeof(T) == 4) {
    return isa_kernels().tiles_f32;
  } else {
    return isa_kernels().tiles_f64;
  }
}

}  // namespace halo::cpu
