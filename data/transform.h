// From stored pixels to what a network sees. @throws ArgumentError for images of another dtype or number of axes or
// channels, and for sizes below 1.
#pragma once

#include <halo/core/generator.h>
#include <halo/core/tensor.h>

#include <vector>

namespace halo::data {

/// Bilinear resize of [N, C, H, W] (uint8 or float32; pixel centres at half-integers, edges repeated).
Tensor resize(const Tensor& images, int64_t height, int64_t width);

/// uint8 pixels [N, C, H, W] to float32 (x / 255 - mean[c]) / std[c]. A single grey channel is repeated to as many as
/// `mean` has.
Tensor normalize(const Tensor& images, const std::vector<float>& mean, const std::vector<float>& std);

/// Random horizontal flips and shifts of uint8 [N, C, H, W] by up to `shift` pixels (edges filled with the border), one
/// draw an image. Images are changed into a new tensor; the same generator state gives the same images.
/// @throws ArgumentError for a shift below 0 or beyond 2^31 - 1.
Tensor augment(const Tensor& images, int64_t shift, bool flip, Generator& generator);

}  // namespace halo::data
