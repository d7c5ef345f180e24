// Fourier transforms of real sequences, built once for each instruction set.
//
// A real sequence of length 2M is one complex sequence of length M (even values real, odd ones imaginary). The complex
// transform is Stockham's: each pass splits off one radix and writes in sorted order, so that nothing is permuted. A
// value is a vector: one lane for each of the sequences that are transformed side by side.
#include <utility>

#include "isa_vector.h"

namespace halo::cpu::HALO_ISA {
namespace {

using Doubles = Vector<double>;

template <class V>
constexpr int64_t kWidth = sizeof(V) / sizeof(double);
template <class V>
V get(const double* from) {
  V v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <class V>
struct Complex {
  V re, im;
};
template <class V>
Complex<V> get_complex(const double* from, int64_t k) {
  return {get<V>(from + 2 * k * kWidth<V>), get<V>(from + (2 * k + 1) * kWidth<V>)};
}
template <class V>
void put(double* to, int64_t k, const Complex<V>& v) {
  std::memcpy(to + 2 * k * kWidth<V>, &v, sizeof v);
}
template <class V>
Complex<V> operator+(Complex<V> a, Complex<V> b) {
  return {a.re + b.re, a.im + b.im};
}
template <class V>
Complex<V> operator-(Complex<V> a, Complex<V> b) {
  return {a.re - b.re, a.im - b.im};
}
template <class A, class V>
Complex<V> operator*(Complex<A> a, Complex<V> b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
template <class V>
Complex<V> operator*(double a, Complex<V> b) {
  return {a * b.re, a * b.im};
}
template <class V>
Complex<V> conj(Complex<V> a) {
  return {a.re, -a.im};
}

/// exp(-2 pi i k / size) for k < size / 2.
Complex<double> root(const FftTables& t, int64_t k) { return {t.roots[2 * k], t.roots[2 * k + 1]}; }

/// The transform of 2, 3, 4 or 5 points, in place.
template <int Radix, class V>
void butterfly(Complex<V> (&v)[Radix]) {
  using C = Complex<V>;
  if constexpr (Radix == 2) {
    const C a = v[0], b = v[1];
    v[0] = a + b;
    v[1] = a - b;
  } else if constexpr (Radix == 4) {
    const C a = v[0] + v[2], b = v[0] - v[2], c = v[1] + v[3], d = v[1] - v[3];
    v[0] = a + c;
    v[2] = a - c;
    v[1] = {b.re + d.im, b.im - d.re};
    v[3] = {b.re - d.im, b.im + d.re};
  } else {
    // Pairs (j, Radix - j): their sum takes the cosines, their difference times -i the sines.
    constexpr int kPairs = Radix / 2;
    C sums[kPairs], differences[kPairs];
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
    const C first = v[0];
    for (int k = 0; k < Radix; ++k) {
      C even = first, odd{};
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
template <class V, int Radix>
void pass(const FftTables& t, const double* in, double* out, int64_t length, int64_t stride) {
  // Roots of the half are every second root of the whole; those of its second half are the negatives.
  const auto root_of_half = [&](int64_t k) { return 2 * k < t.half ? root(t, 2 * k) : -1.0 * root(t, 2 * k - t.half); };
  const int64_t m = length / Radix;
  for (int64_t p = 0; p < m; ++p) {
    Complex<double> twiddles[Radix];
    for (int k = 0; k < Radix; ++k) twiddles[k] = root_of_half(p * k * stride);
    for (int64_t q = 0; q < stride; ++q) {
      Complex<V> v[Radix];
      for (int j = 0; j < Radix; ++j) v[j] = get_complex<V>(in, q + stride * (p + m * j));
      butterfly<Radix>(v);
      for (int k = 0; k < Radix; ++k) put(out, q + stride * (Radix * p + k), k == 0 ? v[0] : twiddles[k] * v[k]);
    }
  }
}

/// The transform of `a`, of t.half complex values; it ends in `a` or `b`, whichever is returned.
template <class V>
double* transform(const FftTables& t, double* a, double* b) {
  int64_t length = t.half, stride = 1;
  for (int i = 0; i < t.passes; ++i) {
    const int radix = t.radices[i];
    switch (radix) {
      case 2: pass<V, 2>(t, a, b, length, stride); break;
      case 3: pass<V, 3>(t, a, b, length, stride); break;
      case 4: pass<V, 4>(t, a, b, length, stride); break;
      default: pass<V, 5>(t, a, b, length, stride); break;
    }
    length /= radix;
    stride *= radix;
    std::swap(a, b);
  }
  return a;
}

template <class V>
void forward(const FftTables& t, const double* x, int64_t count, double* spectrum, double* a, double* b) {
  const auto value = [&](int64_t i) { return i < count ? get<V>(x + i * kWidth<V>) : V{}; };
  for (int64_t j = 0; j < t.half; ++j) put(a, j, Complex<V>{value(2 * j), value(2 * j + 1)});
  const double* const z = transform<V>(t, a, b);
  // Z = E + i O with E, O the transforms of the even and odd values; X[k] = E[k] + root(k) O[k].
  const Complex<V> first = get_complex<V>(z, 0);
  put(spectrum, 0, Complex<V>{first.re + first.im, V{}});
  put(spectrum, t.half, Complex<V>{first.re - first.im, V{}});
  for (int64_t k = 1; k < t.half; ++k) {
    const Complex<V> u = get_complex<V>(z, k), v = conj(get_complex<V>(z, t.half - k));
    const Complex<V> even = 0.5 * (u + v), difference = 0.5 * (u - v), odd{difference.im, -difference.re};
    put(spectrum, k, even + root(t, k) * odd);
  }
}

template <class V>
void inverse(const FftTables& t, const double* spectrum, double* x, double* a, double* b) {
  // The forward steps backward; the inverse transform is the forward one between conjugations.
  for (int64_t k = 0; k < t.half; ++k) {
    const Complex<V> u = get_complex<V>(spectrum, k), v = conj(get_complex<V>(spectrum, t.half - k));
    const Complex<V> even = 0.5 * (u + v), odd = 0.5 * (conj(root(t, k)) * (u - v));
    put(a, k, conj(Complex<V>{even.re - odd.im, even.im + odd.re}));
  }
  const double* const z = transform<V>(t, a, b);
  const double scale = 1.0 / static_cast<double>(t.half);
  for (int64_t j = 0; j < t.half; ++j) put(x, j, scale * conj(get_complex<V>(z, j)));
}

template <class V>
void multiply(int64_t bins, const double* a, const double* b, bool conjugate, bool add, double* out) {
  for (int64_t k = 0; k < bins; ++k) {
    const Complex<V> left = get_complex<V>(a, k);
    const Complex<V> product = (conjugate ? conj(left) : left) * get_complex<V>(b, k);
    put(out, k, add ? get_complex<V>(out, k) + product : product);
  }
}

}  // namespace

const FftKernels fft_one{1, forward<double>, inverse<double>, multiply<double>};
const FftKernels fft{kLanes<double>, forward<Doubles>, inverse<Doubles>, multiply<Doubles>};

}  // namespace halo::cpu::HALO_ISA
