// Fourier transforms of one real sequence, in float64, for lengths 2^a 3^b 5^c times two.
#pragma once

#include <cstdint>
#include <vector>

namespace halo::cpu {

struct Complex {
  double re = 0, im = 0;
};

inline Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
inline Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
inline Complex operator*(Complex a, Complex b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
inline Complex operator*(double a, Complex b) { return {a * b.re, a * b.im}; }
inline Complex conj(Complex a) { return {a.re, -a.im}; }

/// Transforms of real sequences of size() values: tables, made once and shared by threads. Error about 1e-16 times
/// log2(size()) of the largest values.
class RealFft {
 public:
  /// size() is the smallest length it can do that is at least `least`.
  explicit RealFft(int64_t least);

  int64_t size() const { return 2 * half_; }
  int64_t bins() const { return half_ + 1; }

  /// Memory for one transform at a time.
  struct Scratch {
    std::vector<Complex> a, b;
  };
  Scratch scratch() const;

  /// X[k] = sum_t x[t] exp(-2 pi i k t / size()) for k < bins(), with x[t] = 0 from `count` on.
  void forward(const double* x, int64_t count, Complex* spectrum, Scratch& scratch) const;
  /// The inverse, into x[0 .. size()).
  void inverse(const Complex* spectrum, double* x, Scratch& scratch) const;

 private:
  /// exp(-2 pi i k / size()).
  Complex root(int64_t k) const { return roots_[static_cast<std::size_t>(k)]; }
  /// Transform of scratch.a, of half_ complex values, in place; scratch.b is overwritten.
  void transform(Scratch& scratch) const;

  int64_t half_ = 1;
  std::vector<int> radices_;
  std::vector<Complex> roots_;  ///< of size(), the first half
};

}  // namespace halo::cpu
