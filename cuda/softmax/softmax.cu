// Softmax and its logarithm along any axis: a team of threads a row, which it reads three times, mostly from cache.
#include <halo/ops/binary_functors.h>
#include <halo/ops/softmax_backend.h>

#include "../device/rows.h"
#include "../device/teams.cuh"
#include "../launch.h"
#include "../runtime/device.h"

namespace halo::cuda {
namespace {

template <class T, bool kLog>
__global__ void __launch_bounds__(Teams::kThreads)
    softmax_kernel(const __grid_constant__ Rows rows, const __grid_constant__ Teams teams, const T* x, T* y) {
  __shared__ double values[Teams::kThreads];
  const int64_t row = int64_t{blockIdx.x} * teams.lanes + teams.lane();
  const bool active = row < rows.count;
  const int64_t begin = active ? rows.begin(row) : 0, length = active ? rows.length : 0;
  T largest = -static_cast<T>(INFINITY);
  for (int64_t j = teams.rank(); j < length; j += teams.depth) {
    largest = functor::Maximum{}(largest, x[begin + j * rows.step]);
  }
  largest = static_cast<T>(combine_team(teams, static_cast<double>(largest), values, functor::Maximum{}));
  double sum = 0;
  for (int64_t j = teams.rank(); j < length; j += teams.depth) {
    sum += static_cast<double>(exp(x[begin + j * rows.step] - largest));
  }
  sum = combine_team(teams, sum, values, functor::Add{});
  const T scale = static_cast<T>(1 / sum), shift = static_cast<T>(log(sum));
  for (int64_t j = teams.rank(); j < length; j += teams.depth) {
    const int64_t at = begin + j * rows.step;
    const T relative = x[at] - largest;
    y[at] = kLog ? relative - shift : exp(relative) * scale;
  }
}

template <class T, bool kLog>
__global__ void __launch_bounds__(Teams::kThreads)
    softmax_backward_kernel(const __grid_constant__ Rows rows, const __grid_constant__ Teams teams, const T* g,
                            const T* y, T* dx) {
  __shared__ double values[Teams::kThreads];
  const int64_t row = int64_t{blockIdx.x} * teams.lanes + teams.lane();
  const bool active = row < rows.count;
  const int64_t begin = active ? rows.begin(row) : 0, length = active ? rows.length : 0;
  double sum = 0;
  for (int64_t j = teams.rank(); j < length; j += teams.depth) {
    const int64_t at = begin + j * rows.step;
    sum += kLog ? static_cast<double>(g[at]) : static_cast<double>(g[at]) * static_cast<double>(y[at]);
  }
  const T total = static_cast<T>(combine_team(teams, sum, values, functor::Add{}));
  for (int64_t j = teams.rank(); j < length; j += teams.depth) {
    const int64_t at = begin + j * rows.step;
    dx[at] = kLog ? g[at] - exp(y[at]) * total : y[at] * (g[at] - total);
  }
}

}  // namespace

void softmax(bool log, const Tensor& x, int dim, const Tensor& y) {
  if (x.numel() == 0) return;
  const Rows rows(x, dim);
  const Teams teams = Teams::of(rows.count, rows.length, rows.step > 1);
  dispatch_float("softmax", x.dtype(), [&]<class T>(std::type_identity<T>) {
    const DeviceScope scope(x.device());
    launch("softmax", log ? softmax_kernel<T, true> : softmax_kernel<T, false>, teams.blocks(rows.count),
           Teams::kThreads, 0, scope.stream(), rows, teams, x.data<T>(), y.data<T>());
  });
}

void softmax_backward(bool log, const Tensor& g, const Tensor& y, int dim, const Tensor& dx) {
  if (y.numel() == 0) return;
  const Rows rows(y, dim);
  const Teams teams = Teams::of(rows.count, rows.length, rows.step > 1);
  dispatch_float("softmax_backward", y.dtype(), [&]<class T>(std::type_identity<T>) {
    const DeviceScope scope(y.device());
    launch("softmax_backward", log ? softmax_backward_kernel<T, true> : softmax_backward_kernel<T, false>,
           teams.blocks(rows.count), Teams::kThreads, 0, scope.stream(), rows, teams, g.data<T>(), y.data<T>(),
           dx.data<T>());
  });
}

}  // namespace halo::cuda
