// The passes of the network that makes Hyena's filters: sines with their gradients summed on the side, and the window,
// which is also where positions become filters (a transposition through shared memory).
#include <halo/core/copy.h>
#include <halo/ops/hyena_filter_backend.h>

#include "../device/column_cover.cuh"
#include "../reduce/partials.h"

namespace halo::cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(kMapThreads)
    sine_kernel(const __grid_constant__ ColumnCover cover, const T* x, const T* bias, const T* frequency, T* y) {
  const Pack<T> b = cover.load(bias), f = cover.load(frequency);
  cover.each_row([&](int64_t row) {
    Pack<T> v = cover.load(x + row);
#pragma unroll
    for (int k = 0; k < kPackSize; ++k) v.at[k] = sin(f.at[k] * (v.at[k] + b.at[k]));
    cover.store(v, y + row);
  });
}

/// partials: [2][parts, columns], of bias and of frequency.
template <class T>
__global__ void __launch_bounds__(kMapThreads)
    sine_backward_kernel(const __grid_constant__ ColumnCover cover, const T* g, const T* x, const T* bias,
                         const T* frequency, T* x_grad, T* partials) {
  __shared__ Pack<T> shared[kMapThreads];
  const Pack<T> b = cover.load(bias), f = cover.load(frequency);
  Pack<T> bias_sum{}, frequency_sum{};
  cover.each_row([&](int64_t row) {
    const Pack<T> up = cover.load(g + row);
    Pack<T> v = cover.load(x + row);
#pragma unroll
    for (int k = 0; k < kPackSize; ++k) {
      const T sum = v.at[k] + b.at[k], slope = up.at[k] * cos(f.at[k] * sum);
      v.at[k] = f.at[k] * slope;
      bias_sum.at[k] += v.at[k];
      frequency_sum.at[k] += sum * slope;
    }
    cover.store(v, x_grad + row);
  });
  store_column_sums(cover, bias_sum, shared, partials);
  store_column_sums(cover, frequency_sum, shared, partials + cover.parts * cover.columns);
}

constexpr int kTile = 32, kTileRows = 8;

/// x [rows, columns] to y [columns, rows] times the window. `columns_decay`: a column of x is a channel, else a row is.
template <class T>
__global__ void __launch_bounds__(kTile* kTileRows)
    window_kernel(int64_t rows, int64_t columns, const T* x, const T* time, const T* decay, T shift, bool columns_decay,
                  T* y) {
  __shared__ T tile[kTile][kTile + 1];
  const int64_t tiles = (columns + kTile - 1) / kTile;
  const int64_t first_row = blockIdx.x / tiles * kTile, first_column = blockIdx.x % tiles * kTile;
  const int lane = static_cast<int>(threadIdx.x), start = static_cast<int>(threadIdx.y);
  for (int j = start; j < kTile; j += kTileRows) {
    const int64_t row = first_row + j, column = first_column + lane;
    if (row < rows && column < columns) tile[j][lane] = x[row * columns + column];
  }
  __syncthreads();
  for (int j = start; j < kTile; j += kTileRows) {
    const int64_t row = first_row + lane, column = first_column + j;
    if (row >= rows || column >= columns) continue;
    const T t = time[columns_decay ? row : column], rate = fabs(decay[columns_decay ? column : row]);
    y[column * rows + row] = tile[lane][j] * (exp(-(t * rate)) + shift);
  }
}

template <class T>
ColumnCover cover_of(const Tensor& x, std::initializer_list<const Tensor*> others) {
  bool aligned = is_aligned(x.data<T>());
  for (const Tensor* t : others) aligned = aligned && is_aligned(t->data<T>());
  return {x.size(0), x.size(1), aligned};
}

}  // namespace

void bias_sine_forward(const Tensor& x, const Tensor& bias, const Tensor& frequency, const Tensor& y) {
  if (x.numel() == 0) return;
  dispatch_float("bias_sine", x.dtype(), [&]<class T>(std::type_identity<T>) {
    const ColumnCover cover = cover_of<T>(x, {&bias, &frequency, &y});
    const DeviceScope scope(x.device());
    launch("bias_sine", sine_kernel<T>, cover.grid(), kMapThreads, 0, scope.stream(), cover, x.data<T>(),
           bias.data<T>(), frequency.data<T>(), y.data<T>());
  });
}

void bias_sine_backward(const Tensor& g, const Tensor& x, const Tensor& bias, const Tensor& frequency,
                        const BiasSineGrads& grads) {
  constexpr const char* kName = "bias_sine_backward";
  if (x.numel() == 0) {
    halo::fill(grads.bias, 0);
    return halo::fill(grads.frequency, 0);
  }
  dispatch_float(kName, x.dtype(), [&]<class T>(std::type_identity<T>) {
    const ColumnCover cover = cover_of<T>(x, {&g, &bias, &frequency, &grads.x});
    const Tensor partials = empty({2, cover.parts, cover.columns}, x.options());
    T* const sums = partials.data<T>();
    const DeviceScope scope(x.device());
    launch(kName, sine_backward_kernel<T>, cover.grid(), kMapThreads, 0, scope.stream(), cover, g.data<T>(),
           x.data<T>(), bias.data<T>(), frequency.data<T>(), grads.x.data<T>(), sums);
    sum_partials(kName, sums, cover.parts, cover.columns, cover.columns, grads.bias.data<T>(), scope.stream());
    sum_partials(kName, sums + cover.parts * cover.columns, cover.parts, cover.columns, cover.columns,
                 grads.frequency.data<T>(), scope.stream());
  });
}

void decay_window(const DecayWindow& window, bool backward, const Tensor& x, const Tensor& y) {
  if (x.numel() == 0) return;
  dispatch_float("decay_window", x.dtype(), [&]<class T>(std::type_identity<T>) {
    const int64_t rows = x.size(0), columns = x.size(1);
    const int64_t tiles = (rows + kTile - 1) / kTile * ((columns + kTile - 1) / kTile);
    const DeviceScope scope(x.device());
    launch("decay_window", window_kernel<T>, dim3(static_cast<unsigned>(tiles)), dim3(kTile, kTileRows), 0,
           scope.stream(), rows, columns, x.data<T>(), window.time.data<T>(), window.decay.data<T>(),
           static_cast<T>(window.shift), !backward, y.data<T>());
  });
}

}  // namespace halo::cuda
