// Ordering rows: elements become unsigned keys whose order is theirs, and one stable radix sort orders all rows.
#include <halo/core/copy.h>
#include <halo/core/view.h>
#include <halo/ops/binary_functors.h>
#include <halo/ops/sort_backend.h>

#include <bit>

#include "../device/map.cuh"
#include "order_key.cuh"
#include "radix_sort.h"
#include "sort_rows.h"

namespace halo::cuda {
namespace {

template <class T>
struct Key {
  bool descending;
  bool with_row;  ///< the row above the key's bits: elements of up to four bytes sort in one go
  Divide length;
  __device__ int64_t operator()(int64_t i, T value) const {
    uint64_t key = order_key(value, descending);
    if (with_row) key |= static_cast<uint64_t>(length.quotient(i)) << (8 * sizeof(T) % 64);
    return static_cast<int64_t>(key);
  }
};

struct Count {
  __device__ int64_t operator()(int64_t i) const { return i; }
};
struct RowOf {
  Divide length;
  __device__ int64_t operator()(int64_t i) const { return length.quotient(i); }
};
struct Column {
  Divide length;
  __device__ int64_t operator()(int64_t, int64_t flat) const { return length.split(flat); }
};
template <class T>
struct Pick {
  const T* x;
  __device__ T operator()(int64_t, int64_t flat) const { return x[flat]; }
};

/// Flat positions of x's elements, rows in place, each row in order.
template <class T>
Tensor sorted_positions(const Tensor& x, bool descending, int64_t rows, const Divide& length) {
  const TensorOptions integers{.dtype = DType::Int64, .device = x.device()};
  const Tensor keys = empty({x.numel()}, integers), places = empty({x.numel()}, integers);
  constexpr int kBits = 8 * sizeof(T);
  const int row_bits = bits_below(rows);
  const bool with_row = kBits + row_bits <= 64;
  generate("sort", Key<T>{descending, with_row && kBits < 64, length}, Elements<int64_t>{keys}, Elements<T>{x});
  generate("sort", Count{}, Elements<int64_t>{places});
  const Tensor sorted = radix_sort(keys, places, with_row ? kBits + row_bits : kBits).values;
  if (with_row) return sorted;
  // By element first, then, stably, by row.
  const Tensor row = empty({x.numel()}, integers);
  map("sort", RowOf{length}, Elements<int64_t>{row}, Elements<int64_t>{sorted});
  return radix_sort(row, sorted, row_bits).values;
}

}  // namespace

void sort(const Tensor& x, bool descending, const Tensor& values, const Tensor& indices) {
  if (x.numel() == 0 || sort_rows(x, descending, values, indices)) return;
  const int64_t n = x.rank() == 0 ? 1 : x.size(-1);
  const Divide length(n, x.numel());
  dispatch_arithmetic_dtype("sort", x.dtype(), [&]<class T>(std::type_identity<T>) {
    const Tensor sorted = sorted_positions<T>(x, descending, x.numel() / n, length);
    generate<1>("sort", Pick<T>{x.data<T>()}, Elements<T>{values}, Elements<int64_t>{sorted});
    generate("sort", Column{length}, Elements<int64_t>{indices}, Elements<int64_t>{sorted});
  });
}

void topk(const Tensor& x, bool largest, const Tensor& values, const Tensor& indices) {
  if (values.numel() == 0) return;
  const Tensor all_values = empty_like(x), all_indices = empty(x.shape(), indices.options());
  sort(x, largest, all_values, all_indices);
  const int64_t k = values.size(-1);
  halo::copy(view::slice(all_values, -1, 0, k), values);
  halo::copy(view::slice(all_indices, -1, 0, k), indices);
}

}  // namespace halo::cuda
