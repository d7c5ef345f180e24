// Normalisation, forward: statistics in one pass (reduce/moments.cuh), then y = (x - mean) rstd weight + bias.
#include <halo/core/copy.h>
#include <halo/ops/norm_backend.h>

#include "../device/cluster.cuh"
#include "../device/stage_run.cuh"
#include "../reduce/fold_runs.cuh"
#include "../reduce/moments.cuh"
#include "planes.cuh"
#include "row_parts.h"
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
  Statistic() = default;
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
  __device__ Statistic<Value> statistic(const Acc& acc) const {
    return {acc.mean(count), 1 / sqrt(acc.deviation(count) / count + eps)};
  }
  __device__ void write(int64_t o, const Acc& acc) const {
    const Statistic<Value> s = statistic(acc);
    statistics[o] = s;
    mean[o] = s.mean;
    rstd[o] = s.rstd;
    if (running_mean != nullptr) running_mean[o] = blend(running_mean[o], acc.mean(count));
    if (running_var != nullptr) running_var[o] = blend(running_var[o], acc.deviation(count) / (count - 1));
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
  __device__ Plane plane(int64_t q) const { return plane(q, statistics[planes.statistic(q)]); }
  __device__ Plane plane(int64_t q, const Statistic<Value>& s) const {
    const int64_t c = planes.channel(q);
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

constexpr int kRowThreads = 256;

/// A row is read once, into its blocks' shared memory: its statistics, then y, a stretch a warp.
template <class T>
__global__ void __launch_bounds__(kRowThreads, 5)
    whole_row_kernel(const __grid_constant__ TakeStatistics<T> take, const __grid_constant__ Normalise<T> f,
                     const __grid_constant__ Divide positions, const __grid_constant__ RowParts rows, bool packs,
                     T* y) {
  constexpr int kWarps = kRowThreads / Teams::kWarp, kSize = kWide<T>;
  __shared__ device::ClusterSums<kRowThreads, 2> shared;
  __shared__ Statistic<Accumulator<T>> of_row;
  extern __shared__ __align__(16) unsigned char staged[];
  if (rows.parts > 1) device::arrive_in_cluster();
  const int thread = static_cast<int>(threadIdx.x), part = static_cast<int>(blockIdx.x) % rows.parts;
  const int64_t row = static_cast<int>(blockIdx.x) / rows.parts, row_begin = row * rows.length;
  const int64_t begin = rows.begin<kSize>(row_begin, part), end = rows.begin<kSize>(row_begin, part + 1);
  const T* const x =
      device::stage_run<kRowThreads>(staged, take.x + begin, static_cast<int>(end - begin)) - begin;  // as in memory
  auto sums = take.start(row, row_begin);
  device::copy_async_wait_all();
  __syncthreads();
  const RunPiece piece = RunPiece::of<kSize>(begin, end);
#pragma unroll 2
  for (int pack = thread; pack < piece.packs; pack += kRowThreads) {
    Pack<T, kSize> values;
    if (packs) {
      values = reinterpret_cast<const Pack<T, kSize>*>(x + piece.packs_at)[pack];
    } else {
#pragma unroll
      for (int k = 0; k < kSize; ++k) values.at[k] = x[piece.packs_at + pack * kSize + k];
    }
    if constexpr (sizeof(T) == 2) {
      take.add_pack(sums, values);
    } else {
#pragma unroll
      for (int k = 0; k < kSize; ++k) take.add(sums, 0, values.at[k]);
    }
  }
  if (thread < piece.edges) take.add(sums, 0, x[piece.edge(thread)]);
  double own[] = {sums.sum, sums.squares};
  device::sum_in_cluster(rows.parts, part, own, shared, [] {});
  if (thread == 0) {
    const Moments all{sums.shift, own[0], own[1]};
    of_row = take.statistic(all);
    if (part == 0) take.write(row, all);
  }
  __syncthreads();
  const Statistic<Accumulator<T>> statistic = of_row;
  const int warp = thread / Teams::kWarp;
  const int64_t first = begin & ~int64_t{kSize - 1}, stretch = ((end - first) / kWarps + kSize) & ~int64_t{kSize - 1};
  int64_t at = max(first + stretch * warp, begin), plane = at;
  const int64_t stop = min(first + stretch * (warp + 1), end);
  int64_t left = positions.divisor - positions.split(plane);
  for (; at < stop; at += left, left = positions.divisor, ++plane) {
    map_piece<2>(RunPiece::of<kSize>(at, min(at + left, stop)), thread % Teams::kWarp, Teams::kWarp, packs,
                 f.plane(plane, statistic), y, x);
  }
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
    if (const auto parts = RowParts::of<T>(problem, 1, x.device().index)) {
      const bool packs = is_aligned<T, kWide<T>>(f.x) && is_aligned<T, kWide<T>>(result.y.data<T>());
      const NormPlanes planes(problem);
      const Normalise<T> normalise{planes, statistics.data, data_or_null<T>(weight), data_or_null<T>(bias)};
      const DeviceScope scope(x.device());
      return launch_with({.cluster = static_cast<unsigned>(parts->parts)}, "row_norm", whole_row_kernel<T>,
                         static_cast<unsigned>(problem.rows * parts->parts), kRowThreads,
                         device::staged_bytes<T>(parts->room(kWide<T>)), scope.stream(), f, normalise, planes.positions,
                         *parts, packs, result.y.data<T>());
    }
    fold_runs("row_norm", x.device(), {problem.rows, problem.length()}, {problem.length(), 1}, 1, f);
    normalise<T>("row_norm", NormPlanes(problem), statistics, x, weight, bias, result.y);
  });
}

}  // namespace halo::cuda
