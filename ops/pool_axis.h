// One axis of a pooling: which inputs a window covers, and which windows cover an input. Plain data and arithmetic, for
// CPU loops and CUDA kernels alike: the one place of these formulas.
#pragma once

#include <halo/core/host_device.h>

#include <cstdint>

namespace halo {

/// n / d of numbers that are not negative. GPUs divide short ones much faster.
HALO_HOST_DEVICE inline int64_t divide_lengths(int64_t n, int64_t d) {
  if (((n | d) >> 32) == 0) return static_cast<uint32_t>(n) / static_cast<uint32_t>(d);
  return n / d;
}

/// The part of a window that lies inside the input: inputs begin, begin + step, ... (`count` of them), which are the
/// taps first_tap, first_tap + 1, ... of the window.
struct PoolWindow {
  int64_t begin, count, step, first_tap;
  int64_t padded;  ///< taps inside input and padding: what an average that counts padding divides by

  HALO_HOST_DEVICE int64_t input_at(int64_t tap) const { return begin + (tap - first_tap) * step; }
  HALO_HOST_DEVICE int64_t tap_at(int64_t input) const { return first_tap + divide_lengths(input - begin, step); }
};

/// Windows first ... last (none where last < first).
struct PoolRange {
  int64_t first, last;
};

struct PoolAxis {
  int64_t input = 1;
  int64_t output = 1;
  int64_t kernel = 1;  ///< taps of a window; adaptive: an upper bound of the windows' extents
  int64_t stride = 1;
  int64_t dilation = 1;
  int64_t padding_before = 0;
  int64_t padding_after = 0;
  bool adaptive = false;  ///< window o is [floor(o L / O), ceil((o + 1) L / O)); stride and padding mean nothing

  /// Where tap 0 of window o lies on the input axis; before 0 in the padding.
  HALO_HOST_DEVICE int64_t start(int64_t o) const {
    return adaptive ? divide_lengths(o * input, output) : o * stride - padding_before;
  }

  HALO_HOST_DEVICE PoolWindow window(int64_t o) const {
    const int64_t from = start(o);
    if (adaptive) {
      const int64_t count = divide_lengths((o + 1) * input + output - 1, output) - from;
      return {from, count, 1, 0, count};
    }
    const int64_t last_tap = from + (kernel - 1) * dilation;
    if (from >= 0 && last_tap < input) return {from, kernel, dilation, 0, kernel};  // most windows: no division
    const int64_t first = from < 0 ? divide_lengths(-from + dilation - 1, dilation) : 0;
    const int64_t last = taps_before(from, input);
    return {from + first * dilation, last > first ? last - first : 0, dilation, first,
            taps_before(from, input + padding_after)};
  }

  /// The windows that may hold input i: all that do are in the range (with dilation some in it do not).
  HALO_HOST_DEVICE PoolRange windows_over(int64_t i) const {
    if (output == 0) return {0, -1};
    if (adaptive) return {divide_lengths(i * output, input), divide_lengths((i + 1) * output - 1, input)};
    const int64_t at = i + padding_before, low = at - (kernel - 1) * dilation;
    const int64_t first = low <= 0 ? 0 : divide_lengths(low - 1, stride) + 1, last = divide_lengths(at, stride);
    return {first, last < output ? last : output - 1};
  }

  /// The tap with which window o holds input i; -1 where it does not.
  HALO_HOST_DEVICE int64_t tap_of(int64_t o, int64_t i) const {
    const PoolWindow w = window(o);
    const int64_t from = i - w.begin;
    if (from < 0) return -1;
    const int64_t tap = divide_lengths(from, w.step);
    return tap * w.step != from || tap >= w.count ? -1 : w.first_tap + tap;
  }

  bool operator==(const PoolAxis&) const = default;

 private:
  /// How many taps of a window that starts at `from` lie before `end`.
  HALO_HOST_DEVICE int64_t taps_before(int64_t from, int64_t end) const {
    const int64_t room = from >= end ? 0 : divide_lengths(end - 1 - from, dilation) + 1;
    return room < kernel ? room : kernel;
  }
};

}  // namespace halo
