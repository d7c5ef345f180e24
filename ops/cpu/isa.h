// CPU kernels compiled once for each instruction set, and chosen for the machine at run time.
//
// isa_kernels.cpp is built several times under different flags (CMakeLists.txt lists them), each in a namespace of its
// own, so that no template is shared between objects built with different flags. All offsets and pitches are in
// elements. Each sum is one chain in a fixed order, whatever its neighbours are.
#pragma once

#include <cstdint>

namespace halo::cpu {

/// Lanes are columns: c[i][j] (+)= sum over k of a[rows[i] + steps[k]] b[k][j]; `b` is dense, `c` has the pitch `ldc`.
using Tile = void (*)(int64_t depth, const float* a, const int64_t* rows, const int64_t* steps, const float* b,
                      float* c, int64_t ldc, bool accumulate);

/// Lanes are positions: out[i][j] (+)= sum over k of w[k][i] in[steps[k] + j] for j < vectors * lanes; `w` is dense.
using Lines = void (*)(int64_t depth, const float* w, const float* in, const int64_t* steps, int64_t vectors,
                       float* out, int64_t pitch, bool accumulate);

/// sums[i] = sum over r and j < columns of a[r][j] in[steps[i] + r * in_pitch + j]. Rows of `a` are as many whole
/// vectors as hold `columns`, with zeros behind; rows of `in` can be read that far too.
using Dots = void (*)(int64_t rows, int64_t columns, const float* a, const float* in, int64_t in_pitch,
                      const int64_t* steps, float* sums);

/// Sums of products in float32.
struct Kernels {
  static constexpr int kTileRows = 12, kTileVectors = 2, kLines = 4, kDots = 8;
  int lanes;                           ///< of a vector
  int tile_rows;                       ///< the most rows a tile may have here
  Tile tile[kTileRows][kTileVectors];  ///< [rows - 1][vectors - 1]
  Lines lines[kLines];                 ///< [results - 1]
  Dots dots[kDots];                    ///< [sums - 1]
};

/// What a transform of 2 * half real values needs: the radices of its passes and exp(-pi i k / half) for k < half, real
/// and imaginary parts in turn.
struct FftTables {
  int64_t half;
  int passes;
  const int* radices;
  const double* roots;
};

/// As the functions of RealFft (fft.h); a and b are scratch of 2 * half * lanes values.
struct FftKernels {
  int lanes;
  void (*forward)(const FftTables& tables, const double* x, int64_t count, double* spectrum, double* a, double* b);
  void (*inverse)(const FftTables& tables, const double* spectrum, double* x, double* a, double* b);
  /// out (+)= a b, or conj(a) b.
  void (*multiply)(int64_t bins, const double* a, const double* b, bool conjugate, bool add, double* out);
};

/// y = gelu(x) of one form, and dx = g gelu'(x), 0 where g is.
struct GeluKernels {
  void (*value)(int64_t n, const float* x, float* y);
  void (*derivative)(int64_t n, const float* g, const float* x, float* dx);
};

struct IsaKernels {
  const char* name;
  Kernels products;
  const FftKernels &fft_one, &fft;  ///< of one sequence, of several
  const GeluKernels &gelu, &gelu_tanh;
};

/// The kernels for this machine; the environment variable HALO_CPU_ISA (baseline, avx2, avx512) asks for a lower set
/// (HALO_CUDA_ARCH, cuda/runtime/traits.h, does the same for GPUs).
const IsaKernels& isa_kernels();

inline const Kernels& kernels() { return isa_kernels().products; }

}  // namespace halo::cpu
