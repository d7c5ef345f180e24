// The passes of the networks that make Hyena's filters: sines with their gradients summed on the side, and the window.
#include <halo/core/copy.h>
#include <halo/ops/hyena_filter_backend.h>

#include "../device/map.cuh"
#include "../device/teams.cuh"
#include "../reduce/partials.h"

namespace halo::cuda {
namespace {

/// A block's share of a dense [rows, length]: a run of one row, by packs where rows are aligned.
struct RowRuns {
  static constexpr int kPacks = 4, kRun = kPacks * kMapThreads * kPackSize;

  int64_t rows, length, runs;  ///< `runs` a row
  bool packs;

  RowRuns(int64_t row_count, int64_t row_length, bool aligned)
      : rows(row_count),
        length(row_length),
        runs((row_length + kRun - 1) / kRun),
        packs(aligned && row_length % kPackSize == 0) {}
  dim3 grid() const { return dim3(static_cast<unsigned>(rows * runs)); }

  __device__ int64_t row() const { return blockIdx.x / runs; }
  __device__ int64_t run() const { return blockIdx.x % runs; }
  /// f(column) for the first columns of this thread's packs.
  template <class F>
  __device__ void each(F&& f) const {
    const int64_t first = run() * kRun + int64_t{threadIdx.x} * kPackSize;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t column = first + p * kMapThreads * kPackSize;
      if (column < length) f(column);
    }
  }
  template <class T>
  __device__ Pack<T> load(const T* row, int64_t column) const {
    if (packs) return *reinterpret_cast<const Pack<T>*>(row + column);
    Pack<T> pack{};
#pragma unroll
    for (int k = 0; k < kPackSize; ++k) {
      if (column + k < length) pack.at[k] = row[column + k];
    }
    return pack;
  }
  template <class T>
  __device__ void store(const Pack<T>& pack, T* row, int64_t column) const {
    if (packs) {
      *reinterpret_cast<Pack<T>*>(row + column) = pack;
      return;
    }
#pragma unroll
    for (int k = 0; k < kPackSize; ++k) {
      if (column + k < length) row[column + k] = pack.at[k];
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kMapThreads)
    sine_kernel(const __grid_constant__ RowRuns runs, const T* x, const T* bias, const T* frequency, T* y) {
  const int64_t row = runs.row(), begin = row * runs.length;
  const T b = bias[row], f = frequency[row];
  runs.each([&](int64_t column) {
    Pack<T> v = runs.load(x + begin, column);
#pragma unroll
    for (int k = 0; k < kPackSize; ++k) v.at[k] = sin(f * (v.at[k] + b));
    runs.store(v, y + begin, column);
  });
}

/// Of a bias and of a frequency.
template <class T>
struct SineSums {
  T bias, frequency;
  __device__ friend SineSums operator+(const SineSums& a, const SineSums& b) {
    return {a.bias + b.bias, a.frequency + b.frequency};
  }
};

/// partials: [2][runs, rows], of biases and of frequencies. Beyond the end of a row the gradient counts as 0.
template <class T>
__global__ void __launch_bounds__(kMapThreads)
    sine_backward_kernel(const __grid_constant__ RowRuns runs, const T* g, const T* x, const T* bias,
                         const T* frequency, T* x_grad, T* partials) {
  __shared__ SineSums<T> shared[kMapThreads / Teams::kWarp];
  const int64_t row = runs.row(), begin = row * runs.length;
  const T b = bias[row], f = frequency[row];
  SineSums<T> sums{};
  runs.each([&](int64_t column) {
    const Pack<T> up = runs.load(g + begin, column);
    Pack<T> v = runs.load(x + begin, column);
#pragma unroll
    for (int k = 0; k < kPackSize; ++k) {
      const T sum = v.at[k] + b, slope = up.at[k] * cos(f * sum);
      v.at[k] = f * slope;
      sums = sums + SineSums<T>{v.at[k], sum * slope};
    }
    runs.store(v, x_grad + begin, column);
  });
  sums = combine_neighbours(kMapThreads, sums, shared, [](const auto& p, const auto& q) { return p + q; });
  if (threadIdx.x > 0) return;
  partials[runs.run() * runs.rows + row] = sums.bias;
  partials[(runs.runs + runs.run()) * runs.rows + row] = sums.frequency;
}

template <class T>
__global__ void __launch_bounds__(kMapThreads)
    window_kernel(const __grid_constant__ RowRuns runs, const T* x, const T* time, const T* decay, T shift, T* y) {
  const int64_t begin = runs.row() * runs.length;
  const T rate = fabs(decay[runs.row()]);
  runs.each([&](int64_t column) {
    const Pack<T> t = runs.load(time, column);
    Pack<T> v = runs.load(x + begin, column);
#pragma unroll
    for (int k = 0; k < kPackSize; ++k) v.at[k] *= exp(-(t.at[k] * rate)) + shift;
    runs.store(v, y + begin, column);
  });
}

}  // namespace

void bias_sine_forward(const Tensor& x, const Tensor& bias, const Tensor& frequency, const Tensor& y) {
  dispatch_float("bias_sine", x.dtype(), [&]<class T>(std::type_identity<T>) {
    const RowRuns runs(bias.numel(), x.size(-1), is_aligned(x.data<T>()) && is_aligned(y.data<T>()));
    const DeviceScope scope(x.device());
    launch("bias_sine", sine_kernel<T>, runs.grid(), kMapThreads, 0, scope.stream(), runs, x.data<T>(), bias.data<T>(),
           frequency.data<T>(), y.data<T>());
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
    const bool aligned = is_aligned(x.data<T>()) && is_aligned(g.data<T>()) && is_aligned(grads.x.data<T>());
    const RowRuns runs(bias.numel(), x.size(-1), aligned);
    const Tensor partials = empty({2, runs.runs, runs.rows}, x.options());
    T* const sums = partials.data<T>();
    const DeviceScope scope(x.device());
    launch(kName, sine_backward_kernel<T>, runs.grid(), kMapThreads, 0, scope.stream(), runs, g.data<T>(), x.data<T>(),
           bias.data<T>(), frequency.data<T>(), grads.x.data<T>(), sums);
    sum_partials(kName, sums, runs.runs, runs.rows, runs.rows, grads.bias.data<T>(), scope.stream());
    sum_partials(kName, sums + runs.runs * runs.rows, runs.runs, runs.rows, runs.rows, grads.frequency.data<T>(),
                 scope.stream());
  });
}

void decay_window(const DecayWindow& window, const Tensor& x, const Tensor& y) {
  dispatch_float("decay_window", x.dtype(), [&]<class T>(std::type_identity<T>) {
    const bool aligned = is_aligned(x.data<T>()) && is_aligned(y.data<T>()) && is_aligned(window.time.data<T>());
    const RowRuns runs(x.size(0), x.size(1), aligned);
    const DeviceScope scope(x.device());
    launch("decay_window", window_kernel<T>, runs.grid(), kMapThreads, 0, scope.stream(), runs, x.data<T>(),
           window.time.data<T>(), window.decay.data<T>(), static_cast<T>(window.shift), y.data<T>());
  });
}

}  // namespace halo::cuda
