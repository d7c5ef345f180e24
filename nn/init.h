// Initial values. Names, formulas and defaults are PyTorch's; each function fills a tensor in place, without recording.
// Tensors of any shape and a floating dtype; a weight has two axes or more, else ArgumentError is thrown.
#pragma once

#include <halo/core/generator.h>
#include <halo/core/tensor.h>

namespace halo::nn::init {

const Tensor& constant_(const Tensor& tensor, double value);
/// Uniform in [low, high).
const Tensor& uniform_(const Tensor& tensor, double low = 0, double high = 1,
                       Generator& generator = default_generator());
const Tensor& normal_(const Tensor& tensor, double mean = 0, double std = 1,
                      Generator& generator = default_generator());

/// What one output of a weight [out, in, kernel...] sums over, and what one input goes to.
struct Fan {
  int64_t in, out;
};
/// @throws ArgumentError below two axes.
Fan fan_of(const Tensor& weight);

enum class FanMode { In, Out };

/// Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", AISTATS 2010:
/// variance gain^2 * 2 / (in + out).
const Tensor& xavier_uniform_(const Tensor& weight, double gain = 1, Generator& generator = default_generator());
const Tensor& xavier_normal_(const Tensor& weight, double gain = 1, Generator& generator = default_generator());

/// He et al., "Delving deep into rectifiers", ICCV 2015: variance 2 / ((1 + a^2) fan), `a` the slope of the leaky
/// rectifier that follows (0: relu; sqrt(5) makes the bounds 1 / sqrt(fan), the default of layers).
const Tensor& kaiming_uniform_(const Tensor& weight, double a = 0, FanMode mode = FanMode::In,
                               Generator& generator = default_generator());
const Tensor& kaiming_normal_(const Tensor& weight, double a = 0, FanMode mode = FanMode::In,
                              Generator& generator = default_generator());

}  // namespace halo::nn::init
