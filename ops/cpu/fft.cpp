#include "fft.h"

#include <cmath>
#include <numbers>

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

}  // namespace

RealFft::RealFft(int64_t least, bool one_lane) : kernels_(one_lane ? isa_kernels().fft_one : isa_kernels().fft) {
  half_ = least <= 2 ? 1 : (least + 1) / 2;
  while (half_ > 1 && (radices_ = factor(half_)).empty()) ++half_;
  roots_.reserve(static_cast<std::size_t>(2 * half_));
  for (int64_t k = 0; k < half_; ++k) {
    const double angle = std::numbers::pi * static_cast<double>(k) / static_cast<double>(half_);
    roots_.push_back(std::cos(angle));
    roots_.push_back(-std::sin(angle));
  }
}

RealFft::Scratch RealFft::scratch() const {
  const auto size = static_cast<std::size_t>(2 * half_ * lanes());
  return {std::vector<double>(size), std::vector<double>(size)};
}

}  // namespace halo::cpu
