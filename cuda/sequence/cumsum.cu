// Running sums: one block a row, which it scans in pieces; rows that lie side by side go one a thread.
#include <halo/ops/binary_functors.h>
#include <halo/ops/cumsum_backend.h>

#include "../device/rows.h"
#include "../launch.h"
#include "../runtime/device.h"

namespace halo::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
using Total = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;

template <class T>
__global__ void __launch_bounds__(kThreads) scan_rows_kernel(int64_t length, bool reverse, const T* x, T* y) {
  __shared__ Total<T> values[kThreads];
  const int64_t begin = int64_t{blockIdx.x} * length;
  const int thread = static_cast<int>(threadIdx.x);
  Total<T> before = 0;  // the sum of all earlier pieces
  for (int64_t piece = 0; piece < length; piece += kThreads) {
    const int64_t j = piece + thread, at = begin + (reverse ? length - 1 - j : j);
    values[thread] = j < length ? static_cast<Total<T>>(x[at]) : 0;
    for (int step = 1; step < kThreads; step *= 2) {  // Hillis and Steele's scan
      __syncthreads();
      const Total<T> other = thread >= step ? values[thread - step] : 0;
      __syncthreads();
      values[thread] += other;
    }
    __syncthreads();
    if (j < length) y[at] = static_cast<T>(before + values[thread]);
    before += values[kThreads - 1];
    __syncthreads();  // values are read before the next piece writes them
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    scan_columns_kernel(const __grid_constant__ Rows rows, bool reverse, const T* x, T* y) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= rows.count) return;
  const int64_t step = reverse ? -rows.step : rows.step;
  int64_t at = rows.begin(row) + (reverse ? (rows.length - 1) * rows.step : 0);
  Total<T> sum = 0;
  for (int64_t j = 0; j < rows.length; ++j, at += step) {
    sum += static_cast<Total<T>>(x[at]);
    y[at] = static_cast<T>(sum);
  }
}

}  // namespace

void cumsum(const Tensor& x, int dim, bool reverse, const Tensor& y) {
  if (x.numel() == 0) return;
  const Rows rows(x, dim);
  dispatch_arithmetic_dtype("cumsum", x.dtype(), [&]<class T>(std::type_identity<T>) {
    const DeviceScope scope(x.device());
    if (rows.step == 1) {
      launch("cumsum", scan_rows_kernel<T>, static_cast<unsigned>(rows.count), kThreads, 0, scope.stream(), rows.length,
             reverse, x.data<T>(), y.data<T>());
    } else {
      launch("cumsum", scan_columns_kernel<T>, static_cast<unsigned>((rows.count + kThreads - 1) / kThreads), kThreads,
             0, scope.stream(), rows, reverse, x.data<T>(), y.data<T>());
    }
  });
}

}  // namespace halo::cuda
