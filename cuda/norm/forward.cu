// Normalisation, forward: statistics in one pass (reduce/moments.cuh), then y = (x - mean) rstd weight + bias.
#include <halo/core/copy.h>
#include <halo/ops/norm_backend.h>

#include "../device/stage_run.cuh"
#include "../reduce/fold_runs.cuh"
#include "../reduce/moments.cuh"
#include "../runtime/traits.h"
#include "planes.cuh"
#include "rows.h"

namespace halo::cuda {
namespace {

using device::Accumulator;
using device::to_accumulator;

/// A mean in two parts, so that differences to it are as good as in twice the digits.
template <class Value>
struct Statistic {
  Value mean, rest, rstd;
  __device__ Statistic(double exact_mean, double exact_rstd)
      : mean(static_cast<Value>(exact_mean)),
        rest(static_cast<Value>(exact_mean - static_cast<double>(mean))),
        rstd(static_cast<Value>(exact_rstd)) {}
};

/// The statistics of each output, also as kept for backward, and the running ones where they are given.
template <class T>
struct TakeStatistics {
  using Acc = Moments;
  using Value = Accumulator<T>;
  const T* x;
  Statistic<Value>* statistics;
  Value *mean, *rstd;
  double count, eps;
  T *running_mean = nullptr, *running_var = nullptr;
  double momentum = 0;
  __device__ Acc start(int64_t, int64_t at) const {
    return Moments::around(static_cast<double>(to_accumulator(x[at])));
  }
  __device__ void add(Acc& acc, int64_t, T value) const { acc.add(static_cast<double>(to_accumulator(value))); }
  __device__ void add_pack(Acc& acc, const Pack<T, 8>& pack) const requires(sizeof(T) == 2) { acc.add_halves(pack); }
  __device__ Acc operator()(const Acc& a, const Acc& b) const { return Moments::combine(a, b); }
  __device__ void write(int64_t o, const Acc& acc) const {
    const double deviation = acc.deviation(count);
    const Statistic<Value> s(acc.mean(count), 1 / sqrt(deviation / count + eps));
    statistics[o] = s;
    mean[o] = s.mean;
    rstd[o] = s.rstd;
    if (running_mean != nullptr) running_mean[o] = blend(running_mean[o], acc.mean(count));
    if (running_var != nullptr) running_var[o] = blend(running_var[o], deviation / (count - 1));
  }
  __device__ T blend(T old, double now) const {
    const double blended = (1 - momentum) * static_cast<double>(to_accumulator(old)) + momentum * now;
    return device::from_accumulator<T>(static_cast<Value>(blended));
  }
};

/// What evaluation uses: the running statistics.
template <class T>
struct RunningStatistics {
  using Value = Accumulator<T>;
  const T *running_mean, *running_var;
  Value *mean, *rstd;
  double eps;
  __device__ Statistic<Value> operator()(int64_t c) const {
    const Statistic<Value> s(static_cast<double>(to_accumulator(running_mean[c])),
                             1 / sqrt(static_cast<double>(to_accumulator(running_var[c])) + eps));
    mean[c] = s.mean;
    rstd[c] = s.rstd;
    return s;
  }
};
template <class T>
__global__ void running_kernel(int64_t count, const __grid_constant__ RunningStatistics<T> f,
                               Statistic<Accumulator<T>>* out) {
  const int64_t c = int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (c < count) out[c] = f(c);
}

template <class T>
struct Normalise {
  using Value = Accumulator<T>;
  NormPlanes planes;
  const Statistic<Value>* statistics;
  const T *weight, *bias;
  struct Plane {
    Value mean, rest, scale, shift;
    __device__ Value operator()(Value x) const { return (x - mean - rest) * scale + shift; }
  };
  __device__ Plane plane(int64_t q) const {
    const int64_t c = planes.channel(q);
    const Statistic<Value> s = statistics[planes.by_channel ? c : planes.statistic(q)];
    return {s.mean, s.rest, weight == nullptr ? s.rstd : s.rstd * to_accumulator(weight[c]),
            bias == nullptr ? Value(0) : to_accumulator(bias[c])};
  }
};

/// Device memory for `count` statistics.
template <class T>
struct Statistics {
  Storage storage;
  Statistic<Accumulator<T>>* data;
  Statistics(int64_t count, Device device)
      : storage(static_cast<std::size_t>(count) * sizeof(*data), device),
        data(static_cast<Statistic<Accumulator<T>>*>(storage.data())) {}
};

template <class T>
void normalise(const char* name, const NormPlanes& planes, const Statistics<T>& statistics, const Tensor& x,
               const Tensor& weight, const Tensor& bias, const Tensor& y) {
  map_planes(name, x.device(), x.numel(), planes.positions,
             Normalise<T>{planes, statistics.data, data_or_null<T>(weight), data_or_null<T>(bias)}, y.data<T>(),
             static_cast<const T*>(x.data<T>()));
}

/// Rows of half types leave room for more than one block.
template <class T>
inline constexpr int kRowThreads = sizeof(T) == 2 ? 512 : 1024;

/// A block a row, which it reads once, into shared memory: its statistics, then y, a stretch of the row a warp.
template <class T>
__global__ void __launch_bounds__(kRowThreads<T>, sizeof(T) == 2 ? 3 : 1)
    whole_row_kernel(const __grid_constant__ TakeStatistics<T> take, const __grid_constant__ Normalise<T> f,
                     const __grid_constant__ Divide positions, int length, bool packs, T* y) {
  constexpr int kThreads = kRowThreads<T>, kWarps = kThreads / Teams::kWarp, kSize = kWide<T>;
  __shared__ Moments shared[kWarps];
  extern __shared__ __align__(16) unsigned char staged[];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t begin = int64_t{blockIdx.x} * length, end = begin + length;
  const T* const x = device::stage_run<kThreads>(staged, take.x + begin, length) - begin;  // element i of all: x[i]
  auto sums = take.start(blockIdx.x, begin);
  device::copy_async_wait_all();
  __syncthreads();
  each_of_piece(
      RunPiece::of<kSize>(begin, end), thread, kThreads, packs, [&](int64_t i, T value) { take.add(sums, i, value); },
      [&](int64_t i, const Pack<T, kSize>& pack) {
        if constexpr (sizeof(T) == 2) {
          take.add_pack(sums, pack);
        } else {
#pragma unroll
          for (int k = 0; k < kSize; ++k) take.add(sums, i + k, pack.at[k]);
        }
      },
      x);
  sums = combine_neighbours(kThreads, sums, shared, take);
  if (thread == 0) take.write(blockIdx.x, sums);
  __syncthreads();
  const int warp = thread / Teams::kWarp;
  const int64_t first = begin & ~int64_t{kSize - 1}, stretch = ((end - first) / kWarps + kSize) & ~int64_t{kSize - 1};
  int64_t at = max(first + stretch * warp, begin), plane = at;
  const int64_t stop = min(first + stretch * (warp + 1), end);
  int64_t left = positions.divisor - positions.split(plane);
  for (; at < stop; at += left, left = positions.divisor, ++plane) {
    map_piece<2>(RunPiece::of<kSize>(at, min(at + left, stop)), thread % Teams::kWarp, Teams::kWarp, packs,
                 f.plane(plane), y, x);
  }
}

/// Whether blocks with a row each fill the GPU, planes are worth a warp, and shared memory has room for a row.
bool are_whole_rows(const RowNormProblem& p, std::size_t element, int device) {
  constexpr int64_t kFewRows = 96, kShortPlane = 64, kBesides = 2048;
  return p.rows >= kFewRows && p.positions >= kShortPlane &&
         p.length() * static_cast<int64_t>(element) + kBesides <=
             static_cast<int64_t>(device_traits(device).block_memory);
}

template <class T>
void batch_statistics(const BatchNormProblem& p, const Statistics<T>& statistics, const Tensor& x,
                      const Tensor& running_mean, const Tensor& running_var, const NormResult& result) {
  using Value = Accumulator<T>;
  if (p.channels == 0) return;
  if (p.count() == 0) {
    halo::fill(result.mean, 0);
    halo::fill(result.rstd, 0);
    return;
  }
  const TakeStatistics<T> f{x.data<T>(),
                            statistics.data,
                            result.mean.data<Value>(),
                            result.rstd.data<Value>(),
                            static_cast<double>(p.count()),
                            p.eps,
                            data_or_null<T>(running_mean),
                            data_or_null<T>(running_var),
                            p.momentum};
  fold_runs("batch_norm", x.device(), {p.channels, p.batch, p.positions}, {p.positions, p.channels * p.positions, 1}, 1,
            f);
}

}  // namespace

void batch_norm_forward(const BatchNormProblem& problem, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const Tensor& running_mean, const Tensor& running_var, const NormResult& result) {
  constexpr const char* kName = "batch_norm";
  dispatch_floating(kName, x.dtype(), [&]<class T>(std::type_identity<T>) {
    using Value = Accumulator<T>;
    const Statistics<T> statistics(problem.channels, x.device());
    if (problem.training) {
      batch_statistics<T>(problem, statistics, x, running_mean, running_var, result);
    } else if (problem.channels > 0) {
      const DeviceScope scope(x.device());
      launch(kName, running_kernel<T>, map_blocks(problem.channels), kMapThreads, 0, scope.stream(), problem.channels,
             RunningStatistics<T>{running_mean.data<T>(), running_var.data<T>(), result.mean.data<Value>(),
                                  result.rstd.data<Value>(), problem.eps},
             statistics.data);
    }
    normalise<T>(kName, NormPlanes(problem), statistics, x, weight, bias, result.y);
  });
}

void row_norm_forward(const RowNormProblem& problem, const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const NormResult& result) {
  if (x.numel() == 0) return;
  dispatch_floating("row_norm", x.dtype(), [&]<class T>(std::type_identity<T>) {
    using Value = Accumulator<T>;
    if (is_held_row(problem, x.dtype())) {
      const DeviceScope scope(x.device());
      return rows_forward<T>("row_norm",
                             {.rows = problem.rows,
                              .length = problem.length(),
                              .eps = problem.eps,
                              .x = x.data<T>(),
                              .weight = data_or_null<T>(weight),
                              .bias = data_or_null<T>(bias),
                              .y = result.y.data<T>(),
                              .mean = result.mean.data<Value>(),
                              .rstd = result.rstd.data<Value>()},
                             scope.stream());
    }
    const Statistics<T> statistics(problem.rows, x.device());
    const TakeStatistics<T> f{x.data<T>(),
                              statistics.data,
                              result.mean.data<Value>(),
                              result.rstd.data<Value>(),
                              static_cast<double>(problem.length()),
                              problem.eps};
    if (are_whole_rows(problem, sizeof(T), x.device().index)) {
      const bool packs = is_aligned<T, kWide<T>>(f.x) && is_aligned<T, kWide<T>>(result.y.data<T>());
      const NormPlanes planes(problem);
      const Normalise<T> normalise{planes, statistics.data, data_or_null<T>(weight), data_or_null<T>(bias)};
      const DeviceScope scope(x.device());
      return launch("row_norm", whole_row_kernel<T>, static_cast<unsigned>(problem.rows), kRowThreads<T>,
                    device::staged_bytes<T>(problem.length()), scope.stream(), f, normalise, planes.positions,
                    static_cast<int>(problem.length()), packs, result.y.data<T>());
    }
    fold_runs("row_norm", x.device(), {problem.rows, problem.length()}, {problem.length(), 1}, 1, f);
    normalise<T>("row_norm", NormPlanes(problem), statistics, x, weight, bias, result.y);
  });
}

}  // namespace halo::cuda
