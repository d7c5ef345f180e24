#include <halo/core/strided.h>

#include "../device/column_cover.cuh"
#include "../device/grid_order.cuh"
#include "../device/number.cuh"
#include "../runtime/traits.h"
#include "partials.h"
#include "sum_columns.h"

namespace halo::cuda {
namespace {

/// partials: [parts, columns].
template <class T>
__global__ void __launch_bounds__(kMapThreads)
    sum_columns_kernel(const __grid_constant__ ColumnCover cover, const T* x, double* partials) {
  using Sum = std::conditional_t<sizeof(T) == 2, float, double>;  // of one thread
  __shared__ Pack<double> sums[kMapThreads];
  Pack<Sum> sum{};
  cover.each_pack<8>(x, [&](const Pack<T>& v) {
#pragma unroll
    for (int k = 0; k < kPackSize; ++k) sum.at[k] += static_cast<Sum>(device::to_accumulator(v.at[k]));
  });
#if __CUDA_ARCH__ >= 900
  device::release_next_grid();
#endif
  store_column_sums(cover, {sum.at[0], sum.at[1], sum.at[2], sum.at[3]}, sums, partials);
}

}  // namespace

bool sum_columns(const Tensor& x, int kept, double divisor, const Tensor& out) {
  const auto axes = [&](const Shape& all, int begin, int end) {
    return Shape(std::span<const int64_t>(all.begin() + begin, all.begin() + end));
  };
  const auto loop = [&](int begin, int end) {
    return StridedLoop<1>(axes(x.shape(), begin, end), {axes(x.strides(), begin, end)});
  };
  const StridedLoop<1> columns = loop(0, kept), rows = loop(kept, x.rank());
  const bool matrix = columns.shape.rank() == 1 && columns.strides[0][0] == 1 && rows.shape.rank() == 1 &&
                      rows.strides[0][0] == columns.numel();
  if (!matrix || columns.numel() == 1) return false;
  dispatch_floating("reduce", x.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int64_t kMostParts = 528;  // fill the largest GPUs
    const ColumnCover cover(rows.numel(), columns.numel(), is_aligned(x.data<T>()), kMostParts);
    const Tensor partials = empty({cover.parts, cover.columns}, {.dtype = DType::Float64, .device = x.device()});
    const DeviceScope scope(x.device());
    launch("reduce", sum_columns_kernel<T>, cover.grid(), kMapThreads, 0, scope.stream(), cover, x.data<T>(),
           partials.data<double>());
    sum_partials("reduce", partials.data<double>(), cover.parts, cover.columns, cover.columns, out.data<T>(),
                 scope.stream(), divisor, device_traits(x.device().index).is_hopper());
  });
  return true;
}

}  // namespace halo::cuda
