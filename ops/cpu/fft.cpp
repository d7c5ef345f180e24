// A real sequence of length 2M is one complex sequence of length M (even values real, odd ones imaginary). The complex
// transform is Stockham's: each pass splits off one radix and writes in sorted order, so that nothing is permuted.
#include "fft.h"

#include <cmath>
#include <numbers>
#include <utility>

namespace halo::cpu {
namespace {

/// The radices of n in {4, 2, 3, 5}; empty where n has another prime factor.
std::vector<int> factor(int64_t n) {
  std::vector<int> radices;
  for (int radix : {4, 2, 3, 5}) {
    for (; n % radix == 0; n /= radix) radices.push_back(radix);
  }
  return n == 1 ? radices : std::vector<int>{};
}

/// The transform of 2, 3, 4 or 5 points, in place.
template <int Radix>
void butterfly(Complex (&v)[Radix]) {
  if constexpr (Radix == 2) {
    const Complex a = v[0], b = v[1];
    v[0] = a + b;
    v[1] = a - b;
  } else if constexpr (Radix == 4) {
    const Complex a = v[0] + v[2], b = v[0] - v[2], c = v[1] + v[3], d = v[1] - v[3];
    v[0] = a + c;
    v[2] = a - c;
    v[1] = {b.re + d.im, b.im - d.re};
    v[3] = {b.re - d.im, b.im + d.re};
  } else {
    // Pairs (j, Radix - j): their sum takes the cosines, their difference times -i the sines.
    constexpr int kPairs = Radix / 2;
    Complex sums[kPairs], differences[kPairs];
    for (int j = 0; j < kPairs; ++j) {
      sums[j] = v[1 + j] + v[Radix - 1 - j];
      differences[j] = v[1 + j] - v[Radix - 1 - j];
    }
    constexpr double kCos3[] = {1, -0.5, -0.5};
    constexpr double kSin3[] = {0, 0.86602540378443864676, -0.86602540378443864676};
    constexpr double kCos5[] = {1, 0.30901699437494742410, -0.80901699437494742410, -0.80901699437494742410,
                                0.30901699437494742410};
    constexpr double kSin5[] = {0, 0.95105651629515357212, 0.58778525229247312917, -0.58778525229247312917,
                                -0.95105651629515357212};
    const double *const cosines = Radix == 3 ? kCos3 : kCos5, *const sines = Radix == 3 ? kSin3 : kSin5;
    const Complex first = v[0];
    for (int k = 0; k < Radix; ++k) {
      Complex even = first, odd{};
      for (int j = 0; j < kPairs; ++j) {
        const int turn = (j + 1) * k % Radix;
        even = even + cosines[turn] * sums[j];
        odd = odd + sines[turn] * differences[j];
      }
      v[k] = {even.re + odd.im, even.im - odd.re};
    }
  }
}

/// One pass: `length` values still to transform in each of `stride` interleaved sequences.
template <int Radix, class Root>
void pass(const Complex* in, Complex* out, int64_t length, int64_t stride, Root&& root) {
  const int64_t m = length / Radix;
  for (int64_t p = 0; p < m; ++p) {
    Complex twiddles[Radix];
    for (int k = 0; k < Radix; ++k) twiddles[k] = root(p * k * stride);
    for (int64_t q = 0; q < stride; ++q) {
      Complex v[Radix];
      for (int j = 0; j < Radix; ++j) v[j] = in[q + stride * (p + m * j)];
      butterfly<Radix>(v);
      for (int k = 0; k < Radix; ++k) out[q + stride * (Radix * p + k)] = k == 0 ? v[0] : v[k] * twiddles[k];
    }
  }
}

}  // namespace

RealFft::RealFft(int64_t least) {
  half_ = least <= 2 ? 1 : (least + 1) / 2;
  while (half_ > 1 && (radices_ = factor(half_)).empty()) ++half_;
  roots_.resize(static_cast<std::size_t>(half_));
  for (int64_t k = 0; k < half_; ++k) {
    const double angle = std::numbers::pi * static_cast<double>(k) / static_cast<double>(half_);
    roots_[static_cast<std::size_t>(k)] = {std::cos(angle), -std::sin(angle)};
  }
}

RealFft::Scratch RealFft::scratch() const {
  const auto size = static_cast<std::size_t>(half_);
  return {std::vector<Complex>(size), std::vector<Complex>(size)};
}

void RealFft::transform(Scratch& scratch) const {
  // Roots of half_ are every second root of size(); those of its second half are the negatives.
  const auto root_of_half = [this](int64_t k) { return 2 * k < half_ ? root(2 * k) : -1.0 * root(2 * k - half_); };
  int64_t length = half_, stride = 1;
  for (int radix : radices_) {
    const Complex* const in = scratch.a.data();
    Complex* const out = scratch.b.data();
    switch (radix) {
      case 2: pass<2>(in, out, length, stride, root_of_half); break;
      case 3: pass<3>(in, out, length, stride, root_of_half); break;
      case 4: pass<4>(in, out, length, stride, root_of_half); break;
      default: pass<5>(in, out, length, stride, root_of_half); break;
    }
    length /= radix;
    stride *= radix;
    std::swap(scratch.a, scratch.b);
  }
}

void RealFft::forward(const double* x, int64_t count, Complex* spectrum, Scratch& scratch) const {
  for (int64_t j = 0; j < half_; ++j) {
    scratch.a[static_cast<std::size_t>(j)] = {2 * j < count ? x[2 * j] : 0, 2 * j + 1 < count ? x[2 * j + 1] : 0};
  }
  transform(scratch);
  // Z = E + i O with E, O the transforms of the even and odd values; X[k] = E[k] + root(k) O[k].
  const Complex* const z = scratch.a.data();
  spectrum[0] = {z[0].re + z[0].im, 0};
  spectrum[half_] = {z[0].re - z[0].im, 0};
  for (int64_t k = 1; k < half_; ++k) {
    const Complex a = z[k], b = conj(z[half_ - k]);
    const Complex even = 0.5 * (a + b), difference = 0.5 * (a - b), odd{difference.im, -difference.re};
    spectrum[k] = even + root(k) * odd;
  }
}

void RealFft::inverse(const Complex* spectrum, double* x, Scratch& scratch) const {
  // The forward steps backward; the inverse transform is the forward one between conjugations.
  for (int64_t k = 0; k < half_; ++k) {
    const Complex a = spectrum[k], b = conj(spectrum[half_ - k]);
    const Complex even = 0.5 * (a + b), odd = 0.5 * ((a - b) * conj(root(k)));
    scratch.a[static_cast<std::size_t>(k)] = conj(Complex{even.re - odd.im, even.im + odd.re});
  }
  transform(scratch);
  const double scale = 1.0 / static_cast<double>(half_);
  for (int64_t j = 0; j < half_; ++j) {
    const Complex z = scratch.a[static_cast<std::size_t>(j)];
    x[2 * j] = z.re * scale;
    x[2 * j + 1] = -z.im * scale;
  }
}

}  // namespace halo::cpu
