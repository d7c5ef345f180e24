// Pooling layers over `Rank` spatial axes: x [N, C, spatial...] to [N, C, spatial...]; see autograd/pool.h for the
// rules. forward() throws ArgumentError where windows and input do not fit.
#pragma once

#include <halo/autograd/pool.h>
#include <halo/nn/module.h>

namespace halo::nn {

/// The largest of each window.
template <int Rank>
class MaxPool : public Module {
 public:
  explicit MaxPool(const IntList& kernel_size, const MaxPoolOptions& options = {})
      : kernel_size_(kernel_size), options_(options) {}
  Tensor forward(const Tensor& x) override {
    return max_pool(PoolProblem::max("MaxPool", Rank, x.shape(), kernel_size_, options_), x);
  }

 private:
  IntList kernel_size_;
  MaxPoolOptions options_;
};

/// The mean of each window.
template <int Rank>
class AvgPool : public Module {
 public:
  explicit AvgPool(const IntList& kernel_size, const AvgPoolOptions& options = {})
      : kernel_size_(kernel_size), options_(options) {}
  Tensor forward(const Tensor& x) override {
    return avg_pool(PoolProblem::average("AvgPool", Rank, x.shape(), kernel_size_, options_), x);
  }

 private:
  IntList kernel_size_;
  AvgPoolOptions options_;
};

/// Means over windows that make `output_size` of any input.
template <int Rank>
class AdaptiveAvgPool : public Module {
 public:
  explicit AdaptiveAvgPool(const IntList& output_size) : output_size_(output_size) {}
  Tensor forward(const Tensor& x) override {
    return avg_pool(PoolProblem::adaptive("AdaptiveAvgPool", Rank, x.shape(), output_size_), x);
  }

 private:
  IntList output_size_;
};

/// The largest of windows that make `output_size` of any input.
template <int Rank>
class AdaptiveMaxPool : public Module {
 public:
  explicit AdaptiveMaxPool(const IntList& output_size) : output_size_(output_size) {}
  Tensor forward(const Tensor& x) override {
    return max_pool(PoolProblem::adaptive("AdaptiveMaxPool", Rank, x.shape(), output_size_), x);
  }

 private:
  IntList output_size_;
};

using MaxPool1d = MaxPool<1>;
using MaxPool2d = MaxPool<2>;
using MaxPool3d = MaxPool<3>;
using AvgPool1d = AvgPool<1>;
using AvgPool2d = AvgPool<2>;
using AvgPool3d = AvgPool<3>;
using AdaptiveAvgPool1d = AdaptiveAvgPool<1>;
using AdaptiveAvgPool2d = AdaptiveAvgPool<2>;
using AdaptiveAvgPool3d = AdaptiveAvgPool<3>;
using AdaptiveMaxPool1d = AdaptiveMaxPool<1>;
using AdaptiveMaxPool2d = AdaptiveMaxPool<2>;
using AdaptiveMaxPool3d = AdaptiveMaxPool<3>;

}  // namespace halo::nn
