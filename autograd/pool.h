// Differentiable pooling of x [N, C, spatial...]. Names, defaults and window rules are PyTorch's. @throws ArgumentError
// naming the argument that does not fit: numbers for another count of axes, windows without an input, a dtype that is
// not floating.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/pool_problem.h>

namespace halo {

/// The largest input of each window; NaN wins, and padding never does. Output extents are
/// floor((L + before + after - dilation (k - 1) - 1) / stride) + 1 (ceil_mode: rounded up, see MaxPoolOptions).
/// The gradient goes to the first largest.
Tensor max_pool1d(const Tensor& input, const IntList& kernel_size, const MaxPoolOptions& options = {});
Tensor max_pool2d(const Tensor& input, const IntList& kernel_size, const MaxPoolOptions& options = {});
Tensor max_pool3d(const Tensor& input, const IntList& kernel_size, const MaxPoolOptions& options = {});

/// The maxima and their int64 positions in the input plane, (d * H + h) * W + w.
struct MaxPoolOutput {
  Tensor output, indices;
};
MaxPoolOutput max_pool1d_with_indices(const Tensor& input, const IntList& kernel_size,
                                      const MaxPoolOptions& options = {});
MaxPoolOutput max_pool2d_with_indices(const Tensor& input, const IntList& kernel_size,
                                      const MaxPoolOptions& options = {});
MaxPoolOutput max_pool3d_with_indices(const Tensor& input, const IntList& kernel_size,
                                      const MaxPoolOptions& options = {});

/// The mean of each window; see AvgPoolOptions for the divisor.
Tensor avg_pool1d(const Tensor& input, const IntList& kernel_size, const AvgPoolOptions& options = {});
Tensor avg_pool2d(const Tensor& input, const IntList& kernel_size, const AvgPoolOptions& options = {});
Tensor avg_pool3d(const Tensor& input, const IntList& kernel_size, const AvgPoolOptions& options = {});

/// Pooling to a given size: window i of O is [floor(i L / O), ceil((i + 1) L / O)). Windows may overlap, and O may pass
/// L.
Tensor adaptive_avg_pool1d(const Tensor& input, const IntList& output_size);
Tensor adaptive_avg_pool2d(const Tensor& input, const IntList& output_size);
Tensor adaptive_avg_pool3d(const Tensor& input, const IntList& output_size);
Tensor adaptive_max_pool1d(const Tensor& input, const IntList& output_size);
Tensor adaptive_max_pool2d(const Tensor& input, const IntList& output_size);
Tensor adaptive_max_pool3d(const Tensor& input, const IntList& output_size);
MaxPoolOutput adaptive_max_pool1d_with_indices(const Tensor& input, const IntList& output_size);
MaxPoolOutput adaptive_max_pool2d_with_indices(const Tensor& input, const IntList& output_size);
MaxPoolOutput adaptive_max_pool3d_with_indices(const Tensor& input, const IntList& output_size);

/// The same for a problem made by hand.
Tensor max_pool(const PoolProblem& problem, const Tensor& input);
MaxPoolOutput max_pool_with_indices(const PoolProblem& problem, const Tensor& input);
Tensor avg_pool(const PoolProblem& problem, const Tensor& input);

}  // namespace halo
