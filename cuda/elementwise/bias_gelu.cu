// gelu(x + bias): a thread takes four columns and walks down the rows of its block, so that the bias is read once and
// the gradient of the bias is summed on the side.
#include <halo/core/copy.h>
#include <halo/ops/bias_gelu_backend.h>
#include <halo/ops/unary_functors.h>

#include "../device/map.cuh"
#include "../reduce/partials.h"

namespace halo::cuda {
namespace {

constexpr int kThreads = 256;

/// How a block's threads and the grid cover [rows, columns]: `lanes` groups of four columns, rows in `parts`.
struct Cover {
  int64_t rows, columns;
  int lanes, parts;
  bool packs;

  Cover(int64_t row_count, int64_t column_count, bool packs_fit) : rows(row_count), columns(column_count) {
    constexpr int64_t kRowsAThread = 16, kMostParts = 1024;
    const int64_t groups = (columns + kPackSize - 1) / kPackSize;
    lanes = 1;
    while (lanes < kThreads && lanes < groups) lanes *= 2;
    parts = static_cast<int>(std::clamp<int64_t>(rows * lanes / (kThreads * kRowsAThread), 1, kMostParts));
    packs = packs_fit && columns % kPackSize == 0;
  }
  dim3 grid() const {
    const int64_t width = int64_t{lanes} * kPackSize;
    return {static_cast<unsigned>((columns + width - 1) / width), static_cast<unsigned>(parts)};
  }

  __device__ int lane() const { return static_cast<int>(threadIdx.x) % lanes; }
  __device__ int team() const { return static_cast<int>(threadIdx.x) / lanes; }
  __device__ int64_t column() const { return (int64_t{blockIdx.x} * lanes + lane()) * kPackSize; }
  template <class T>
  __device__ Pack<T> load(const T* row) const {
    Pack<T> pack{};
    if (packs) {
      if (column() < columns) pack = *reinterpret_cast<const Pack<T>*>(row + column());
    } else {
#pragma unroll
      for (int k = 0; k < kPackSize; ++k) pack.at[k] = column() + k < columns ? row[column() + k] : T(0);
    }
    return pack;
  }
  template <class T>
  __device__ void store(const Pack<T>& pack, T* row) const {
    if (packs) {
      if (column() < columns) *reinterpret_cast<Pack<T>*>(row + column()) = pack;
    } else {
#pragma unroll
      for (int k = 0; k < kPackSize; ++k) {
        if (column() + k < columns) row[column() + k] = pack.at[k];
      }
    }
  }
  /// f(offset) for the rows of this thread.
  template <class F>
  __device__ void each_row(F&& f) const {
    const int64_t begin = rows * blockIdx.y / parts, end = rows * (blockIdx.y + 1) / parts;
#pragma unroll 2
    for (int64_t row = begin + team(); row < end; row += kThreads / lanes) f(row * columns);
  }
};

template <class Gelu, class T>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const __grid_constant__ Cover cover, Gelu gelu, const T* x, const T* bias, T* y) {
  const Pack<T> b = cover.load(bias);
  cover.each_row([&](int64_t row) {
    Pack<T> v = cover.load(x + row);
#pragma unroll
    for (int k = 0; k < kPackSize; ++k) v.at[k] = gelu.value(v.at[k] + b.at[k]);
    cover.store(v, y + row);
  });
}

/// partials: [parts, columns].
template <class Gelu, class T>
__global__ void __launch_bounds__(kThreads) backward_kernel(const __grid_constant__ Cover cover, Gelu gelu, const T* g,
                                                            const T* x, const T* bias, T* x_grad, T* y, T* partials) {
  __shared__ Pack<T> sums[kThreads];
  const Pack<T> b = cover.load(bias);
  Pack<T> sum{};
  cover.each_row([&](int64_t row) {
    const Pack<T> up = cover.load(g + row);
    Pack<T> v = cover.load(x + row), d;
#pragma unroll
    for (int k = 0; k < kPackSize; ++k) {
      v.at[k] += b.at[k];
      d.at[k] = up.at[k] == T(0) ? T(0) : up.at[k] * gelu.first(v.at[k]);
      v.at[k] = gelu.value(v.at[k]);
      sum.at[k] += d.at[k];
    }
    cover.store(d, x_grad + row);
    cover.store(v, y + row);
  });
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (cover.team() > 0) return;
  for (int other = cover.lanes; other < kThreads; other += cover.lanes) {
#pragma unroll
    for (int k = 0; k < kPackSize; ++k) sum.at[k] += sums[threadIdx.x + other].at[k];
  }
  cover.store(sum, partials + blockIdx.y * cover.columns);
}

/// f(functor, type).
template <class F>
void dispatch(const char* name, UnaryOp form, const Tensor& x, F&& f) {
  dispatch_float(name, x.dtype(), [&]<class T>(std::type_identity<T> type) {
    if (form == UnaryOp::Gelu) return f(functor::Gelu{}, type);
    f(functor::GeluTanh{}, type);
  });
}

}  // namespace

void bias_gelu_forward(UnaryOp form, const Tensor& x, const Tensor& bias, const Tensor& y) {
  if (x.numel() == 0) return;
  dispatch("bias_gelu", form, x, [&]<class Gelu, class T>(Gelu gelu, std::type_identity<T>) {
    const Cover cover(x.size(0), x.size(1),
                      is_aligned(x.data<T>()) && is_aligned(bias.data<T>()) && is_aligned(y.data<T>()));
    const DeviceScope scope(x.device());
    launch("bias_gelu", forward_kernel<Gelu, T>, cover.grid(), kThreads, 0, scope.stream(), cover, gelu, x.data<T>(),
           bias.data<T>(), y.data<T>());
  });
}

void bias_gelu_backward(UnaryOp form, const Tensor& g, const Tensor& x, const Tensor& bias,
                        const BiasGeluGrads& grads) {
  constexpr const char* kName = "bias_gelu_backward";
  if (x.numel() == 0) return halo::fill(grads.bias, 0);
  dispatch(kName, form, x, [&]<class Gelu, class T>(Gelu gelu, std::type_identity<T>) {
    const bool aligned = is_aligned(g.data<T>()) && is_aligned(x.data<T>()) && is_aligned(bias.data<T>()) &&
                         is_aligned(grads.x.data<T>()) && is_aligned(grads.y.data<T>());
    const Cover cover(x.size(0), x.size(1), aligned);
    const Tensor partials = empty({cover.parts, cover.columns}, x.options());
    const DeviceScope scope(x.device());
    launch(kName, backward_kernel<Gelu, T>, cover.grid(), kThreads, 0, scope.stream(), cover, gelu, g.data<T>(),
           x.data<T>(), bias.data<T>(), grads.x.data<T>(), grads.y.data<T>(), partials.data<T>());
    sum_partials(kName, partials.data<T>(), cover.parts, cover.columns, cover.columns, grads.bias.data<T>(),
                 scope.stream());
  });
}

}  // namespace halo::cuda
