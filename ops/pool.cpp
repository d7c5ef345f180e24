#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/backend.h>
#include <halo/ops/pool.h>
#include <halo/ops/pool_backend.h>

namespace halo::ops {
namespace {

void check_offsets(const char* op, const PoolProblem& problem, const Tensor& offsets, Device device) {
  check_shape(op, "offsets", offsets, problem.y_shape());
  if (offsets.dtype() != problem.offset_dtype() || !(offsets.device() == device)) {
    fail(op, ": offsets expected ", name(problem.offset_dtype()), " on ", device, ", got ", offsets.describe());
  }
}

}  // namespace

MaxPoolResult max_pool_forward(const PoolProblem& problem, const Tensor& x, bool want_offsets) {
  check_shape("max_pool", "input", x, problem.x_shape());
  MaxPoolResult result{.y = empty(problem.y_shape(), x.options())};
  if (want_offsets) {
    result.offsets = empty(problem.y_shape(), {.dtype = problem.offset_dtype(), .device = x.device()});
  }
  const Tensor dense_x = view::dense(x);
  run_backend<HalfKernels::Cuda>("max_pool_forward", x.device(), cpu::max_pool_forward, cuda::max_pool_forward, problem,
                                 dense_x, writes(result.y), writes(result.offsets));
  return result;
}

Tensor max_pool_scatter(const PoolProblem& problem, const Tensor& offsets, const Tensor& g) {
  check_shape("max_pool_scatter", "grad_output", g, problem.y_shape());
  check_offsets("max_pool_scatter", problem, offsets, g.device());
  Tensor x = empty(problem.x_shape(), g.options());
  const Tensor dense_g = view::dense(g), dense_offsets = view::dense(offsets);
  run_backend<HalfKernels::Cuda>("max_pool_scatter", g.device(), cpu::max_pool_scatter, cuda::max_pool_scatter, problem,
                                 dense_offsets, dense_g, writes(x));
  return x;
}

Tensor max_pool_gather(const PoolProblem& problem, const Tensor& offsets, const Tensor& x) {
  check_shape("max_pool_gather", "input", x, problem.x_shape());
  check_offsets("max_pool_gather", problem, offsets, x.device());
  Tensor y = empty(problem.y_shape(), x.options());
  const Tensor dense_x = view::dense(x), dense_offsets = view::dense(offsets);
  run_backend<HalfKernels::Cuda>("max_pool_gather", x.device(), cpu::max_pool_gather, cuda::max_pool_gather, problem,
                                 dense_offsets, dense_x, writes(y));
  return y;
}

Tensor max_pool_indices(const PoolProblem& problem, const Tensor& offsets) {
  check_offsets("max_pool_indices", problem, offsets, offsets.device());
  Tensor indices = empty(problem.y_shape(), {.dtype = int64, .device = offsets.device()});
  const Tensor dense_offsets = view::dense(offsets);
  run_backend("max_pool_indices", offsets.device(), cpu::max_pool_indices, cuda::max_pool_indices, problem,
              dense_offsets, writes(indices));
  return indices;
}

Tensor avg_pool_forward(const PoolProblem& problem, const Tensor& x) {
  check_shape("avg_pool", "input", x, problem.x_shape());
  Tensor y = empty(problem.y_shape(), x.options());
  const Tensor dense_x = view::dense(x);
  run_backend<HalfKernels::Cuda>("avg_pool_forward", x.device(), cpu::avg_pool_forward, cuda::avg_pool_forward, problem,
                                 dense_x, writes(y));
  return y;
}

Tensor avg_pool_backward(const PoolProblem& problem, const Tensor& g) {
  check_shape("avg_pool_backward", "grad_output", g, problem.y_shape());
  Tensor x = empty(problem.x_shape(), g.options());
  const Tensor dense_g = view::dense(g);
  run_backend<HalfKernels::Cuda>("avg_pool_backward", g.device(), cpu::avg_pool_backward, cuda::avg_pool_backward,
                                 problem, dense_g, writes(x));
  return x;
}

}  // namespace halo::ops
