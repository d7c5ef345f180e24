// Differentiable local response normalisation.
#pragma once

#include <halo/core/tensor.h>

#include <cstdint>

namespace halo {

/// Whether alpha is divided by the window size: PyTorch and Caffe do, Krizhevsky et al. 2012 do not.
enum class LrnConvention : uint8_t { DividedBySize, Paper };

struct LocalResponseNormOptions {
  double alpha = 1e-4;
  double beta = 0.75;
  double k = 1;
  LrnConvention convention = LrnConvention::DividedBySize;
};

/// y_c = x_c (k + a sum_j x_j^2)^-beta over x [N, C, ...], where j runs over the channels c - size / 2 ...
/// c + (size - 1) / 2 that exist (an even size has one more before than after), and a = alpha / size or alpha.
/// The paper's AlexNet: size 5, alpha 1e-4, beta 0.75, k 2, LrnConvention::Paper. @throws ArgumentError for a size
/// below 1, an input of fewer than two axes or of a dtype that is not floating.
Tensor local_response_norm(const Tensor& input, int64_t size, const LocalResponseNormOptions& options = {});

}  // namespace halo
