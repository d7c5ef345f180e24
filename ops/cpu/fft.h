// Fourier transforms of real sequences, in float64, for lengths 2^a 3^b 5^c times two: of one sequence, or of as many
// side by side as a vector has lanes.
#pragma once

#include <cstdint>
#include <vector>

#include "isa.h"

namespace halo::cpu {

/// Transforms of real sequences of size() values: tables, made once and shared by threads. Error about 1e-16 times
/// log2(size()) of the largest values. Lane l of value t is x[t * lanes() + l]; of the spectrum's bin k the real part
/// is spectrum[2 * k * lanes() + l], the imaginary part lanes() behind. Lanes know nothing of each other.
class RealFft {
 public:
  /// size() is the smallest length it can do that is at least `least`.
  explicit RealFft(int64_t least, bool one_lane = true);

  int64_t size() const { return 2 * half_; }
  int64_t lanes() const { return kernels_.lanes; }
  int64_t row_length() const { return size() * lanes(); }                ///< of the values of all lanes
  int64_t spectrum_length() const { return 2 * (half_ + 1) * lanes(); }  ///< of the bins of all lanes

  /// Memory for one transform at a time.
  struct Scratch {
    std::vector<double> a, b;
  };
  Scratch scratch() const;

  /// X[k] = sum_t x[t] exp(-2 pi i k t / size()) for k <= size() / 2, with x[t] = 0 from `count` on.
  void forward(const double* x, int64_t count, double* spectrum, Scratch& scratch) const {
    kernels_.forward(tables(), x, count, spectrum, scratch.a.data(), scratch.b.data());
  }
  /// The inverse, into x[0 .. size()).
  void inverse(const double* spectrum, double* x, Scratch& scratch) const {
    kernels_.inverse(tables(), spectrum, x, scratch.a.data(), scratch.b.data());
  }
  /// out = a b for spectra, or conj(a) b; `out` may be one of them.
  void multiply(const double* a, const double* b, bool conjugate, double* out) const {
    kernels_.multiply(half_ + 1, a, b, conjugate, false, out);
  }
  /// sum += conj(a) b.
  void add_product(const double* a, const double* b, double* sum) const {
    kernels_.multiply(half_ + 1, a, b, true, true, sum);
  }

 private:
  FftTables tables() const { return {half_, static_cast<int>(radices_.size()), radices_.data(), roots_.data()}; }

  const FftKernels& kernels_;
  int64_t half_ = 1;
  std::vector<int> radices_;
  std::vector<double> roots_;
};

}  // namespace halo::cpu
