// The common poolings as windows over planes: two axes, no dilation, 32-bit arithmetic within a plane.
#pragma once

#include <halo/core/host_device.h>
#include <halo/ops/pool_problem.h>

#include <cstdint>
#include <optional>

namespace halo::cuda {

struct PoolPlaneAxis {
  int input, output, kernel, stride, before, after;

#ifdef __CUDACC__
  /// Where window o starts; before 0 in the padding.
  __device__ int start(int o) const { return o * stride - before; }
  /// Inputs of the window that starts at `from`, or, with `padded`, its taps inside input and padding.
  __device__ int count(int from, bool padded) const {
    return padded ? min(from + kernel, input + after) - from : min(from + kernel, input) - max(from, 0);
  }
#endif
};

/// `planes` planes, one behind the other.
struct PoolPlanes {
  PoolPlaneAxis height, width;
  int64_t planes;
  bool count_include_pad;
  int divisor_override;

  /// What of `p` has this form.
  static std::optional<PoolPlanes> of(const PoolProblem& p) {
    constexpr int64_t kMost = int64_t{1} << 30;
    for (const PoolAxis& a : p.axes) {
      const int64_t reach = a.input + a.padding_before + a.padding_after + a.kernel + a.stride;
      if (a.adaptive || (a.dilation != 1 && a.kernel != 1) || reach > kMost / 2) return std::nullopt;
    }
    const PoolAxis& depth = p.axes[0];
    const bool flat = depth.kernel == 1 && depth.stride == 1 && depth.input == depth.output;
    if (!flat || p.input_positions() > kMost || p.output_positions() > kMost || p.divisor_override > kMost) {
      return std::nullopt;
    }
    const auto axis = [](const PoolAxis& a) {
      return PoolPlaneAxis{static_cast<int>(a.input),          static_cast<int>(a.output),
                           static_cast<int>(a.kernel),         static_cast<int>(a.stride),
                           static_cast<int>(a.padding_before), static_cast<int>(a.padding_after)};
    };
    return PoolPlanes{axis(p.axes[1]), axis(p.axes[2]), p.planes() * depth.input, p.count_include_pad,
                      static_cast<int>(p.divisor_override)};
  }

  HALO_HOST_DEVICE int inputs() const { return height.input * width.input; }
  HALO_HOST_DEVICE int outputs() const { return height.output * width.output; }
#ifdef __CUDACC__
  /// What the average of the window that starts at (top, left) divides by.
  __device__ int divisor(int top, int left) const {
    if (divisor_override != 0) return divisor_override;
    return height.count(top, count_include_pad) * width.count(left, count_include_pad);
  }
#endif
};

}  // namespace halo::cuda
