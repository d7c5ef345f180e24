#include <halo/autograd/node.h>
#include <halo/autograd/pool.h>
#include <halo/ops/pool.h>

namespace halo {
namespace {

using autograd::BackwardContext;
using autograd::record;
using autograd::SavedTensor;
using Grads = std::vector<Tensor>;

// For given places of the maxima, max pooling is a gather; its adjoint is a scatter, and theirs are each other.
Tensor max_pool_gather(const PoolProblem& problem, const Tensor& offsets, const Tensor& x);

Tensor max_pool_scatter(const PoolProblem& problem, const Tensor& offsets, const Tensor& g) {
  return record("max_pool_scatter", {g}, ops::max_pool_scatter(problem, offsets, g),
                [=](const Tensor& up, const BackwardContext&) { return Grads{max_pool_gather(problem, offsets, up)}; });
}

Tensor max_pool_gather(const PoolProblem& problem, const Tensor& offsets, const Tensor& x) {
  return record("max_pool_gather", {x}, ops::max_pool_gather(problem, offsets, x),
                [=](const Tensor& g, const BackwardContext&) { return Grads{max_pool_scatter(problem, offsets, g)}; });
}

Tensor avg_pool_backward(const PoolProblem& problem, const Tensor& g) {
  return record("avg_pool_backward", {g}, ops::avg_pool_backward(problem, g),
                [=](const Tensor& up, const BackwardContext&) { return Grads{avg_pool(problem, up)}; });
}

Tensor record_max(const PoolProblem& problem, const Tensor& x, const ops::MaxPoolResult& result) {
  return record("max_pool", {x}, result.y,
                [problem, offsets = SavedTensor(result.offsets)](const Tensor& g, const BackwardContext& context) {
                  return Grads{max_pool_scatter(problem, offsets.unpack(context), g)};
                });
}

}  // namespace

Tensor max_pool(const PoolProblem& problem, const Tensor& x) {
  return record_max(problem, x, ops::max_pool_forward(problem, x, autograd::should_record({x})));
}

MaxPoolOutput max_pool_with_indices(const PoolProblem& problem, const Tensor& x) {
  const auto result = ops::max_pool_forward(problem, x, true);
  return {record_max(problem, x, result), ops::max_pool_indices(problem, result.offsets)};
}

Tensor avg_pool(const PoolProblem& problem, const Tensor& x) {
  return record("avg_pool", {x}, ops::avg_pool_forward(problem, x),
                [=](const Tensor& g, const BackwardContext&) { return Grads{avg_pool_backward(problem, g)}; });
}

namespace {

/// x where pooling takes it: of a floating dtype.
const Shape& pooled(const char* op, const Tensor& input) {
  check_floating(op, {{"input", input}});
  return input.shape();
}

Tensor max_pool(const char* op, int rank, const Tensor& input, const IntList& kernel_size,
                const MaxPoolOptions& options) {
  return max_pool(PoolProblem::max(op, rank, pooled(op, input), kernel_size, options), input);
}

MaxPoolOutput max_pool_with_indices(const char* op, int rank, const Tensor& input, const IntList& kernel_size,
                                    const MaxPoolOptions& options) {
  return max_pool_with_indices(PoolProblem::max(op, rank, pooled(op, input), kernel_size, options), input);
}

Tensor avg_pool(const char* op, int rank, const Tensor& input, const IntList& kernel_size,
                const AvgPoolOptions& options) {
  return avg_pool(PoolProblem::average(op, rank, pooled(op, input), kernel_size, options), input);
}

PoolProblem adaptive(const char* op, int rank, const Tensor& input, const IntList& output_size) {
  return PoolProblem::adaptive(op, rank, pooled(op, input), output_size);
}

}  // namespace

Tensor max_pool1d(const Tensor& input, const IntList& kernel_size, const MaxPoolOptions& options) {
  return max_pool("max_pool1d", 1, input, kernel_size, options);
}
Tensor max_pool2d(const Tensor& input, const IntList& kernel_size, const MaxPoolOptions& options) {
  return max_pool("max_pool2d", 2, input, kernel_size, options);
}
Tensor max_pool3d(const Tensor& input, const IntList& kernel_size, const MaxPoolOptions& options) {
  return max_pool("max_pool3d", 3, input, kernel_size, options);
}
MaxPoolOutput max_pool1d_with_indices(const Tensor& input, const IntList& kernel_size, const MaxPoolOptions& options) {
  return max_pool_with_indices("max_pool1d_with_indices", 1, input, kernel_size, options);
}
MaxPoolOutput max_pool2d_with_indices(const Tensor& input, const IntList& kernel_size, const MaxPoolOptions& options) {
  return max_pool_with_indices("max_pool2d_with_indices", 2, input, kernel_size, options);
}
MaxPoolOutput max_pool3d_with_indices(const Tensor& input, const IntList& kernel_size, const MaxPoolOptions& options) {
  return max_pool_with_indices("max_pool3d_with_indices", 3, input, kernel_size, options);
}
Tensor avg_pool1d(const Tensor& input, const IntList& kernel_size, const AvgPoolOptions& options) {
  return avg_pool("avg_pool1d", 1, input, kernel_size, options);
}
Tensor avg_pool2d(const Tensor& input, const IntList& kernel_size, const AvgPoolOptions& options) {
  return avg_pool("avg_pool2d", 2, input, kernel_size, options);
}
Tensor avg_pool3d(const Tensor& input, const IntList& kernel_size, const AvgPoolOptions& options) {
  return avg_pool("avg_pool3d", 3, input, kernel_size, options);
}
Tensor adaptive_avg_pool1d(const Tensor& input, const IntList& output_size) {
  return avg_pool(adaptive("adaptive_avg_pool1d", 1, input, output_size), input);
}
Tensor adaptive_avg_pool2d(const Tensor& input, const IntList& output_size) {
  return avg_pool(adaptive("adaptive_avg_pool2d", 2, input, output_size), input);
}
Tensor adaptive_avg_pool3d(const Tensor& input, const IntList& output_size) {
  return avg_pool(adaptive("adaptive_avg_pool3d", 3, input, output_size), input);
}
Tensor adaptive_max_pool1d(const Tensor& input, const IntList& output_size) {
  return max_pool(adaptive("adaptive_max_pool1d", 1, input, output_size), input);
}
Tensor adaptive_max_pool2d(const Tensor& input, const IntList& output_size) {
  return max_pool(adaptive("adaptive_max_pool2d", 2, input, output_size), input);
}
Tensor adaptive_max_pool3d(const Tensor& input, const IntList& output_size) {
  return max_pool(adaptive("adaptive_max_pool3d", 3, input, output_size), input);
}
MaxPoolOutput adaptive_max_pool1d_with_indices(const Tensor& input, const IntList& output_size) {
  return max_pool_with_indices(adaptive("adaptive_max_pool1d_with_indices", 1, input, output_size), input);
}
MaxPoolOutput adaptive_max_pool2d_with_indices(const Tensor& input, const IntList& output_size) {
  return max_pool_with_indices(adaptive("adaptive_max_pool2d_with_indices", 2, input, output_size), input);
}
MaxPoolOutput adaptive_max_pool3d_with_indices(const Tensor& input, const IntList& output_size) {
  return max_pool_with_indices(adaptive("adaptive_max_pool3d_with_indices", 3, input, output_size), input);
}

}  // namespace halo
