// Softmax and its logarithm along any axis: a team of threads a row.
#include <halo/ops/binary_functors.h>
#include <halo/ops/softmax_backend.h>

#include "../device/exponential.cuh"
#include "../device/team_row.cuh"
#include "../runtime/device.h"

namespace halo::cuda {
namespace {

template <class Row>
__global__ void __launch_bounds__(Teams::kThreads)
    softmax_kernel(const __grid_constant__ RowTeams teams, bool log_of_it, const typename Row::Element* x,
                   typename Row::Element* y) {
  using Value = typename Row::Value;
  __shared__ double shared_bytes[2 * Teams::kThreads];
  auto* const shared = reinterpret_cast<device::ExponentialSum<Value>*>(shared_bytes);
  Row next(teams);
  next.fetch(0, x);
  while (next.more()) {
    const Row row = next;
    const auto values = row.take(0, x);
    next.advance();
    next.fetch(0, x);
    const auto [largest, sum] = device::sum_exponentials(row, values, shared);
    const Value top = largest, scale = 1 / sum, shift = log(sum);
    row.store(
        y,
        [&](int64_t, Value value) {
          return log_of_it ? value - top - shift : device::exp_of_difference(value, top) * scale;
        },
        values);
  }
}

template <class Row>
__global__ void __launch_bounds__(Teams::kThreads)
    softmax_backward_kernel(const __grid_constant__ RowTeams teams, bool log_of_it, const typename Row::Element* g,
                            const typename Row::Element* y, typename Row::Element* dx) {
  using Value = typename Row::Value;
  // What y (g - sum) loses to cancellation is lost to the sum; the rounding of half types hides it.
  using Sum = std::conditional_t<sizeof(typename Row::Element) == 2, float, double>;
  __shared__ Sum shared[Teams::kThreads];
  Row next(teams);
  next.fetch(0, g);
  next.fetch(1, y);
  while (next.more()) {
    const Row row = next;
    const auto up = row.take(0, g), out = row.take(1, y);
    next.advance();
    next.fetch(0, g);
    next.fetch(1, y);
    Sum sum = 0;
    row.each([&](int64_t, Value u,
                 Value o) { sum += log_of_it ? static_cast<Sum>(u) : static_cast<Sum>(u) * static_cast<Sum>(o); },
             up, out);
    const Value total = static_cast<Value>(row.combine(sum, shared, functor::Add{}));
    row.store(
        dx, [&](int64_t, Value u, Value o) { return log_of_it ? u - exp(o) * total : o * (u - total); }, up, out);
  }
}

}  // namespace

void softmax(bool log, const Tensor& x, int dim, const Tensor& y) {
  if (x.numel() == 0) return;
  dispatch_floating("softmax", x.dtype(), [&]<class T>(std::type_identity<T>) {
    const DeviceScope scope(x.device());
    const T* const in = x.data<T>();
    T* const out = y.data<T>();
    with_row_class<T>(
        Rows(x, dim),
        [&]<class Row>(std::type_identity<Row>, const RowTeams& t) {
          launch("softmax", softmax_kernel<Row>, t.blocks(2112), Teams::kThreads, Row::kSlotBytes, scope.stream(), t,
                 log, in, out);
        },
        in, out);
  });
}

void softmax_backward(bool log, const Tensor& g, const Tensor& y, int dim, const Tensor& dx) {
  if (y.numel() == 0) return;
  dispatch_floating("softmax_backward", y.dtype(), [&]<class T>(std::type_identity<T>) {
    const DeviceScope scope(y.device());
    const T *const up = g.data<T>(), *const in = y.data<T>();
    T* const out = dx.data<T>();
    with_row_class<T>(
        Rows(y, dim),
        [&]<class Row>(std::type_identity<Row>, const RowTeams& t) {
          launch("softmax_backward", softmax_backward_kernel<Row>, t.blocks(2112), Teams::kThreads, 2 * Row::kSlotBytes,
                 scope.stream(), t, log, up, in, out);
        },
        up, in, out);
  });
}

}  // namespace halo::cuda
