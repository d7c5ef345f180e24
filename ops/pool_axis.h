// One axis of a pooling: which inputs a window covers, and which windows cover an input. Plain data and arithmetic, for
// CPU loops and CUDA kernels alike: the one place of these formulas.
#pragma once

#include <halo/core/host_device.h>

#include <cstdint>

namespace halo {

/// The part of a window that lies inside the input: inputs begin, begin + step, ... (`count` of them), which are the
/// taps first_tap, first_tap + 1, ... of the window.
struct PoolWindow {
  int64_t begin, count, step, first_tap;
  int64_t padded;  ///< positions of the window inside input and padding: what an average with padding divides by
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

  HALO_HOST_DEVICE PoolWindow window(int64_t o) const {
    if (adaptive) {
      const int64_t begin = o * input / output, end = ((o + 1) * input + output - 1) / output;
      return {begin, end - begin, 1, 0, end - begin};
    }
    const int64_t start = o * stride - padding_before;
    const int64_t first = start < 0 ? (-start + dilation - 1) / dilation : 0;
    const int64_t room = start >= input ? 0 : (input - 1 - start) / dilation + 1;  // taps before the input's end
    const int64_t last = room < kernel ? room : kernel;
    const int64_t reach = start + (kernel - 1) * dilation + 1, edge = input + padding_after;
    return {start + first * dilation, last > first ? last - first : 0, dilation, first,
            (reach < edge ? reach : edge) - start};
  }

  /// The windows that may hold input i: all that do are in the range (with dilation some in it do not).
  HALO_HOST_DEVICE PoolRange windows_over(int64_t i) const {
    if (adaptive) return {i * output / input, ((i + 1) * output - 1) / input};
    const int64_t at = i + padding_before, low = at - (kernel - 1) * dilation;
    const int64_t first = low <= 0 ? 0 : (low + stride - 1) / stride, last = at / stride;
    return {first, last < output ? last : output - 1};
  }

  /// The tap with which window o holds input i, or -1.
  HALO_HOST_DEVICE int64_t tap_of(int64_t o, int64_t i) const {
    const int64_t from = i - (adaptive ? o * input / output : o * stride - padding_before);
    return from < 0 || from % dilation != 0 || from / dilation >= kernel ? -1 : from / dilation;
  }

  bool operator==(const PoolAxis&) const = default;
};

}  // namespace halo
