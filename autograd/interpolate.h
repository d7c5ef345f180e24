// Differentiable resizing of x [N, C, spatial...] (one to three spatial axes). Names and rules are PyTorch's.
#pragma once

#include <halo/core/tensor.h>

#include <vector>

namespace halo {

/// Linear is linear, bilinear or trilinear by the number of spatial axes.
enum class InterpolateMode : uint8_t { Nearest, Linear };

/// One of `size` and `scale_factor`; one number serves all spatial axes.
struct InterpolateOptions {
  IntList size{};                      ///< extents of the result, 1 or more
  std::vector<double> scale_factor{};  ///< extents of the result are floor(L factor)
  InterpolateMode mode = InterpolateMode::Nearest;
  bool align_corners = false;  ///< Linear: the outermost elements keep their places, rather than the outer edges
};

/// Element i of an axis of O comes from the place p of one of L, where r = L / O, or 1 / factor where one is given:
/// Nearest: floor(i r). Linear: between floor(p) and the next one for p = max((i + 1/2) r - 1/2, 0), or
/// p = i (L - 1) / (O - 1) with align_corners; both are at most L - 1. Places are computed in float64 (PyTorch's
/// nearest ones in float32, so that a few differ where i r is a whole number). Shrinking averages nothing: see
/// adaptive_avg_pool2d. Gradients are sums of fixed order.
/// @throws ArgumentError for an input that is not [N, C, spatial...] of a floating dtype with spatial extents of 1 or
/// more, for neither or both of size and scale_factor or a wrong number of either, for a result without elements on a
/// spatial axis, and for align_corners beside Nearest.
Tensor interpolate(const Tensor& input, const InterpolateOptions& options);

}  // namespace halo
