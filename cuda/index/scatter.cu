// Sums by index, in a fixed order and without atomics: the index is sorted (stably), so that what goes to one place
// lies together, and each place's run is summed in order. Runs of a few places over many elements are cut into parts.
#include <halo/core/copy.h>
#include <halo/core/view.h>
#include <halo/ops/binary_functors.h>
#include <halo/ops/index_backend.h>

#include "../device/map.cuh"
#include "../device/number.cuh"
#include "../reduce/partials.h"
#include "few_places.h"
#include "radix_sort.h"

namespace halo::cuda {
namespace {

template <class T>
using Total = std::conditional_t<std::is_integral_v<T>, int64_t, double>;

/// Indices outside [0, extent) become `extent`, which sorts last and is read by nobody.
struct Clean {
  int64_t extent;
  __device__ int64_t operator()(int64_t v) const { return v < 0 || v >= extent ? extent : v; }
};
struct Count {
  __device__ int64_t operator()(int64_t i) const { return i; }
};

/// Where the run of place v begins in the sorted keys.
struct RunStart {
  const int64_t* keys;
  int64_t count;
  __device__ int64_t operator()(int64_t v) const {
    int64_t low = 0, high = count;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (keys[middle] < v) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

/// partial[part, o, v, i]: the sum over one part of the run of v. A thread takes N neighbours i.
template <class T>
struct SumParts {
  const T* g;
  const int64_t *starts, *order;
  int64_t chosen;                      ///< elements of the index
  Divide parts, inner, extent, outer;  ///< parts: of a run; inner: in packs of N
};
template <class T, int N>
__global__ void __launch_bounds__(kMapThreads)
    sum_parts_kernel(const __grid_constant__ SumParts<T> f, int64_t count, Total<T>* partial) {
  const int64_t thread = int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (thread >= count) return;
  int64_t at = thread;
  const int64_t i = f.inner.split(at), v = f.extent.split(at), o = f.outer.split(at), part = at;
  const int64_t begin = f.starts[v], length = f.starts[v + 1] - begin;
  const int64_t each = f.parts.quotient(length), longer = length - each * f.parts.divisor;
  const int64_t from = begin + each * part + min(part, longer), to = from + each + (part < longer ? 1 : 0);
  const auto* const column = reinterpret_cast<const Pack<T, N>*>(f.g) + o * f.chosen * f.inner.divisor + i;
  Pack<Total<T>, N> sum{};
#pragma unroll 8
  for (int64_t j = from; j < to; ++j) {
    const Pack<T, N> pack = column[f.order[j] * f.inner.divisor];
#pragma unroll
    for (int k = 0; k < N; ++k) sum.at[k] += static_cast<Total<T>>(device::to_accumulator(pack.at[k]));
  }
  reinterpret_cast<Pack<Total<T>, N>*>(partial)[thread] = sum;
}

/// Of integers; other sums go by reduce/partials.h.
template <class T>
struct AddParts {
  const int64_t* partial;
  int64_t parts, outputs;
  __device__ T operator()(int64_t i) const {
    int64_t sum = partial[i];
    for (int64_t part = 1; part < parts; ++part) sum += partial[part * outputs + i];
    return static_cast<T>(sum);
  }
};

/// Parts of a run: so many that a thread adds a few dozen elements on average, as far as memory for them is small.
int64_t parts_of_runs(int64_t chosen, int64_t extent, int64_t outputs) {
  constexpr int64_t kElementsAThread = 64, kMostPartials = int64_t{1} << 22;
  const int64_t wanted = chosen / (extent * kElementsAThread);
  return std::max<int64_t>(1, std::min({wanted, kMostPartials / outputs, int64_t{512}}));
}

template <class T>
void add_runs(const char* op, const Tensor& g, int64_t outer, int64_t inner, const Tensor& starts, const Tensor& order,
              const Tensor& y) {
  const int64_t chosen = order.numel(), extent = starts.numel() - 1, outputs = y.numel();
  const int64_t parts = parts_of_runs(chosen, extent, outputs);
  constexpr bool kIntegers = std::is_integral_v<T>;
  const Tensor partial =
      empty({parts, outputs}, {.dtype = kIntegers ? DType::Int64 : DType::Float64, .device = y.device()});
  auto* const sums = partial.data<Total<T>>();
  const DeviceScope scope(y.device());
  const auto run = [&]<int N>(std::integral_constant<int, N>) {
    const int64_t count = parts * outputs / N;
    const SumParts<T> f{g.data<T>(),
                        starts.data<int64_t>(),
                        order.data<int64_t>(),
                        chosen,
                        Divide(parts, chosen + 1),
                        Divide(inner / N, count),
                        Divide(extent, count),
                        Divide(outer, count)};
    launch(op, sum_parts_kernel<T, N>, map_blocks(count), kMapThreads, 0, scope.stream(), f, count, sums);
  };
  if constexpr (kIntegers) {
    run(std::integral_constant<int, 1>{});
    generate<1>(op, AddParts<T>{sums, parts, outputs}, Elements<T>{y});
  } else {
    if (inner % kPackSize == 0 && is_aligned(g.data<T>())) {
      run(std::integral_constant<int, kPackSize>{});
    } else {
      run(std::integral_constant<int, 1>{});
    }
    sum_partials(op, sums, parts, outputs, outputs, y.data<T>(), scope.stream());
  }
}

/// One line of y along the indexed axis, added to in the order of g's.
template <class T>
__global__ void __launch_bounds__(kMapThreads)
    scatter_kernel(int64_t lines, int64_t length, const __grid_constant__ Walk<2> walk, int64_t step, int64_t extent,
                   int64_t stride, const T* g, const int64_t* index, T* y) {
  const int64_t line = int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (line >= lines) return;
  int64_t at[2];
  walk.locate(line, at);
  for (int64_t j = 0; j < length; ++j) {
    const int64_t v = index[at[0] + j * step];
    if (v >= 0 && v < extent) y[at[1] + v * stride] += g[at[0] + j * step];
  }
}

}  // namespace

void index_add(const char* op, const Tensor& g, int dim, const Tensor& index, const Tensor& y) {
  if (y.numel() == 0) return;
  if (g.numel() == 0) return halo::fill(y, 0);
  if (dim == 0 && sum_few_places(op, g, index, y)) return;
  const int64_t extent = y.shape()[dim];
  int64_t inner = 1;
  for (int axis = dim + 1; axis < y.rank(); ++axis) inner *= y.shape()[axis];
  const TensorOptions integers{.dtype = DType::Int64, .device = y.device()};
  const Tensor keys = empty({index.numel()}, integers), places = empty({index.numel()}, integers);
  map(op, Clean{extent}, Elements<int64_t>{keys}, Elements<int64_t>{view::reshape(index, {index.numel()})});
  generate(op, Count{}, Elements<int64_t>{places});
  const SortedPairs sorted = radix_sort(keys, places, bits_below(extent + 1));
  const Tensor starts = empty({extent + 1}, integers);
  generate<1>(op, RunStart{sorted.keys.data<int64_t>(), index.numel()}, Elements<int64_t>{starts});
  const auto add = [&]<class T>(std::type_identity<T>) {
    add_runs<T>(op, g, y.numel() / (extent * inner), inner, starts, sorted.values, y);
  };
  if (is_half(g.dtype())) return dispatch_floating(op, g.dtype(), add);
  dispatch_arithmetic_dtype(op, g.dtype(), add);
}

void scatter_add(const char* op, const Tensor& g, int dim, const Tensor& index, const Tensor& y) {
  if (y.numel() == 0) return;
  const int64_t length = g.rank() == 0 ? 1 : g.shape()[dim], lines = g.numel() == 0 ? 0 : g.numel() / length;
  // A single line has no other lines to run beside.
  if (lines == 1 && y.numel() == y.shape()[dim]) return index_add(op, g, dim, index, y);
  halo::fill(y, 0);
  if (lines == 0) return;
  Shape others = g.shape(), from = g.strides(), to = y.strides();
  others.erase(dim);
  from.erase(dim);
  to.erase(dim);
  dispatch_arithmetic_dtype(op, g.dtype(), [&]<class T>(std::type_identity<T>) {
    const DeviceScope scope(y.device());
    launch(op, scatter_kernel<T>, map_blocks(lines), kMapThreads, 0, scope.stream(), lines, length,
           Walk<2>(StridedLoop<2>(others, {from, to})), g.strides()[dim], y.shape()[dim], y.strides()[dim], g.data<T>(),
           index.data<int64_t>(), y.data<T>());
  });
}

}  // namespace halo::cuda
