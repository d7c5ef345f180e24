// LongConvProblem: sizes of a long convolution, computed and checked in one place.
//
//   y[b, h, t] = sum_k w[h, k] x[b, h, t - k + center]   x, y [batch, channels, length], w [channels, kernel]
//
// Causal: center = 0. Two-sided: center = kernel / 2 (rounded down). Output and input have the same length; the kernel
// may be shorter or longer than the input. Gates and the skip weight add no sizes of their own.
#pragma once

#include <halo/core/shape.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace halo {

/// Sizes of one long convolution, checked. Plain data: copy it, compare it.
struct LongConvProblem {
  int64_t batch = 0;
  int64_t channels = 0;
  int64_t length = 0;
  int64_t kernel = 1;
  bool causal = true;

  /// The problem of x [B, H, L] and w [H, K]. `op` names the caller in messages.
  /// @throws ArgumentError naming the argument, its shape and what was expected.
  static LongConvProblem make(const char* op, const Shape& x_shape, const Shape& w_shape, bool causal);

  /// The tap that multiplies x[t] itself.
  int64_t center() const { return causal ? 0 : kernel / 2; }
  /// True where tap `k` meets some x[t - k + center] inside the input; the other taps have a gradient of zero.
  bool reaches(int64_t k) const { return k - center() < length && center() - k < length; }

  int64_t x_numel() const { return batch * channels * length; }
  int64_t w_numel() const { return channels * kernel; }
  /// Bytes the forward pass must move: input and weight read once, output written once.
  double bytes(std::size_t element_size) const;

  bool operator==(const LongConvProblem&) const = default;

  /// One reproducible line: `long_conv x[16,768,8192] w[768,8192] causal`.
  std::string str() const;
};

}  // namespace halo
