#include <halo/core/parallel.h>
#include <halo/ops/binary_functors.h>
#include <halo/ops/sort_backend.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace halo::cpu {
namespace {

/// a < b with NaN above every number.
template <class T>
bool below(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return a < b || (std::isnan(b) && !std::isnan(a));
  } else {
    return a < b;
  }
}

/// Calls f(row values, row number) for each row of x [..., n], on several threads.
template <class T, class F>
void for_each_row(const Tensor& x, F f) {
  const int64_t n = x.shape().back(), rows = n == 0 ? 0 : x.numel() / n;
  const T* const in = x.data<T>();
  parallel_for(rows, std::max<int64_t>(1, 4096 / std::max<int64_t>(1, n)), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) f(in + row * n, row);
  });
}

/// Row by row: the first k elements in order, by `arrange(order, before)`, which puts the indices 0..n-1 in order.
template <class T, class Arrange>
void order_rows(const Tensor& x, bool descending, const Tensor& values, const Tensor& indices, Arrange arrange) {
  const auto n = static_cast<std::size_t>(x.shape().back());
  const int64_t k = values.shape().back();
  T* const out = values.data<T>();
  int64_t* const from = indices.data<int64_t>();
  for_each_row<T>(x, [&](const T* row, int64_t number) {
    std::vector<int64_t> order(n);
    std::iota(order.begin(), order.end(), int64_t{0});
    arrange(order, [&](int64_t a, int64_t b) { return descending ? below(row[b], row[a]) : below(row[a], row[b]); });
    for (int64_t i = 0; i < k; ++i) {
      const int64_t at = order[static_cast<std::size_t>(i)];
      out[number * k + i] = row[at];
      from[number * k + i] = at;
    }
  });
}

}  // namespace

void sort(const Tensor& x, bool descending, const Tensor& values, const Tensor& indices) {
  dispatch_arithmetic_dtype("sort", x.dtype(), [&](auto type) {
    order_rows<typename decltype(type)::type>(x, descending, values, indices, [](auto& order, auto before) {
      std::stable_sort(order.begin(), order.end(), before);
    });
  });
}

void topk(const Tensor& x, bool largest, const Tensor& values, const Tensor& indices) {
  dispatch_arithmetic_dtype("topk", x.dtype(), [&](auto type) {
    order_rows<typename decltype(type)::type>(
        x, largest, values, indices, [k = values.shape().back()](auto& order, auto before) {
          // partial_sort is not stable: the index decides between equals.
          std::partial_sort(order.begin(), order.begin() + k, order.end(),
                            [&](int64_t a, int64_t b) { return before(a, b) || (!before(b, a) && a < b); });
        });
  });
}

void arg_extreme(const Tensor& x, bool largest, const Tensor& indices) {
  dispatch_arithmetic_dtype("argmax", x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    int64_t* const out = indices.data<int64_t>();
    const int64_t n = x.shape().back();
    for_each_row<T>(x, [&](const T* row, int64_t number) {
      int64_t best = 0;
      for (int64_t i = 1; i < n; ++i) {
        if (row[best] != row[best]) break;  // the first NaN
        if (row[i] != row[i] || (largest ? row[i] > row[best] : row[i] < row[best])) best = i;
      }
      out[number] = best;
    });
  });
}

}  // namespace halo::cpu
