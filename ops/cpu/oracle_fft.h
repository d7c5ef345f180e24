// Fourier transforms of real float64 sequences by Eigen.
#pragma once

#include <cstdint>
#include <memory>

namespace halo::cpu {

/// Has the functions of RealFft (fft.h), for one lane.
class OracleFft {
 public:
  /// size() is the smallest 4 * 2^a 3^b 5^c that is at least `least`.
  explicit OracleFft(int64_t least);

  int64_t size() const { return size_; }
  int64_t lanes() const { return 1; }
  int64_t row_length() const { return size_; }
  int64_t spectrum_length() const { return size_ + 2; }  ///< real and imaginary parts in turn

  /// Eigen's tables grow while it computes, so that each thread needs its own.
  struct Plans;
  using Scratch = std::shared_ptr<Plans>;
  Scratch scratch() const;

  void forward(const double* x, int64_t count, double* spectrum, const Scratch& scratch) const;
  void inverse(const double* spectrum, double* x, const Scratch& scratch) const;
  void multiply(const double* a, const double* b, bool conjugate, double* out) const;
  void add_product(const double* a, const double* b, double* sum) const;

 private:
  int64_t size_;
};

}  // namespace halo::cpu
