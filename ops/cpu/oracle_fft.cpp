#include "oracle_fft.h"

#include <halo/core/error.h>

#include <algorithm>
#include <complex>
#include <limits>
#include <vector>

#include <unsupported/Eigen/FFT>

namespace halo::cpu {
namespace {

using Complex = std::complex<double>;
using Bins = Eigen::Map<const Eigen::ArrayXcd>;

bool is_smooth(int64_t n) {
  for (int64_t factor : {2, 3, 5}) {
    while (n % factor == 0) n /= factor;
  }
  return n == 1;
}

/// An array of complex numbers is one of their parts, and the other way round: the standard says so.
const Complex* bins(const double* spectrum) { return reinterpret_cast<const Complex*>(spectrum); }
Complex* bins(double* spectrum) { return reinterpret_cast<Complex*>(spectrum); }

}  // namespace

struct OracleFft::Plans {
  Eigen::FFT<double> fft;
  std::vector<double> padded;
};

OracleFft::OracleFft(int64_t least) : size_(std::max<int64_t>(4, (least + 3) / 4 * 4)) {
  while (!is_smooth(size_)) size_ += 4;
  if (size_ > std::numeric_limits<int>::max()) fail("long_conv: float64 transforms end at 2^31 values, got ", size_);
}

OracleFft::Scratch OracleFft::scratch() const {
  const auto plans = std::make_shared<Plans>();
  plans->fft.SetFlag(Eigen::FFT<double>::HalfSpectrum);
  plans->padded.resize(static_cast<std::size_t>(size_));
  return plans;
}

void OracleFft::forward(const double* x, int64_t count, double* spectrum, const Scratch& scratch) const {
  std::vector<double>& padded = scratch->padded;
  std::fill(std::copy_n(x, count, padded.begin()), padded.end(), 0.0);
  scratch->fft.fwd(bins(spectrum), padded.data(), size_);
}

void OracleFft::inverse(const double* spectrum, double* x, const Scratch& scratch) const {
  scratch->fft.inv(x, bins(spectrum), size_);
}

void OracleFft::multiply(const double* a, const double* b, bool conjugate, double* out) const {
  const Bins left(bins(a), size_ / 2 + 1), right(bins(b), size_ / 2 + 1);
  Eigen::Map<Eigen::ArrayXcd> product(bins(out), size_ / 2 + 1);
  if (conjugate) {
    product = left.conjugate() * right;
  } else {
    product = left * right;
  }
}

void OracleFft::add_product(const double* a, const double* b, double* sum) const {
  Eigen::Map<Eigen::ArrayXcd>(bins(sum), size_ / 2 + 1) +=
      Bins(bins(a), size_ / 2 + 1).conjugate() * Bins(bins(b), size_ / 2 + 1);
}

}  // namespace halo::cpu
