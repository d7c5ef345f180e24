#include <halo/core/copy.h>
#include <halo/core/parallel.h>
#include <halo/core/strided.h>
#include <halo/ops/binary_functors.h>
#include <halo/ops/index_backend.h>

#include <algorithm>
#include <vector>

#include "position.h"

namespace halo::cpu {
namespace {

/// Sums of floating values are made in float64, of integers in int64.
template <class T>
using Sum = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;

/// A dense tensor seen as [outer, extent, inner] around one axis.
struct Around {
  Around(const Tensor& t, int dim) : extent(t.shape()[dim]) {
    for (int axis = 0; axis < dim; ++axis) outer *= t.shape()[axis];
    for (int axis = dim + 1; axis < t.rank(); ++axis) inner *= t.shape()[axis];
  }
  int64_t outer = 1, extent, inner = 1;
};

}  // namespace

void index_select(const char* op, const Tensor& x, int dim, const Tensor& index, const Tensor& y) {
  check_indices(op, index, x.shape()[dim]);
  dispatch_dtype(x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const Around from(x, dim);
    const T* const in = x.data<T>();
    const int64_t* const at = index.data<int64_t>();
    T* const out = y.data<T>();
    const int64_t count = index.numel();
    parallel_for(from.outer * count, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, from.inner)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t row = begin; row < end; ++row) {
                     const int64_t source = row / count * from.extent + at[row % count];
                     std::copy_n(in + source * from.inner, from.inner, out + row * from.inner);
                   }
                 });
  });
}

void index_add(const char* op, const Tensor& g, int dim, const Tensor& index, const Tensor& y) {
  check_indices(op, index, y.shape()[dim]);
  dispatch_arithmetic_dtype(op, g.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    // A thread owns a block of columns of one outer slice and goes through the index in order.
    constexpr int64_t kBlock = 16;
    const Around to(y, dim);
    const T* const in = g.data<T>();
    const int64_t* const at = index.data<int64_t>();
    T* const out = y.data<T>();
    const int64_t count = index.numel(), blocks = (to.inner + kBlock - 1) / kBlock;
    parallel_for(to.outer * blocks, 1, [&](int64_t begin, int64_t end) {
      std::vector<Sum<T>> sum(static_cast<std::size_t>(to.extent * kBlock));
      for (int64_t task = begin; task < end; ++task) {
        const int64_t outer = task / blocks, first = task % blocks * kBlock;
        const int64_t width = std::min(kBlock, to.inner - first);
        std::fill(sum.begin(), sum.end(), Sum<T>(0));
        for (int64_t j = 0; j < count; ++j) {
          const T* row = in + (outer * count + j) * to.inner + first;
          Sum<T>* target = sum.data() + at[j] * kBlock;
          for (int64_t i = 0; i < width; ++i) target[i] += static_cast<Sum<T>>(row[i]);
        }
        for (int64_t v = 0; v < to.extent; ++v) {
          T* row = out + (outer * to.extent + v) * to.inner + first;
          for (int64_t i = 0; i < width; ++i) row[i] = static_cast<T>(sum[static_cast<std::size_t>(v * kBlock + i)]);
        }
      }
    });
  });
}

void gather(const char* op, const Tensor& x, int dim, const Tensor& index, const Tensor& y) {
  check_indices(op, index, x.shape()[dim]);
  if (y.numel() == 0) return;
  dispatch_dtype(x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    Shape strides = x.strides();  // the index takes the place of the coordinate along dim
    const int64_t step_x = strides[dim];
    strides[dim] = 0;
    const T* const in = x.data<T>();
    const int64_t* const pick = index.data<int64_t>();
    T* const out = y.data<T>();
    StridedLoop<3>(y.shape(), {y.strides(), index.strides(), strides})
        .for_each_run([&](const auto& at, const auto& step, int64_t n) {
          for (int64_t i = 0; i < n; ++i) {
            out[at[0] + i * step[0]] = in[at[2] + i * step[2] + pick[at[1] + i * step[1]] * step_x];
          }
        });
  });
}

void scatter_add(const char* op, const Tensor& g, int dim, const Tensor& index, const Tensor& y) {
  check_indices(op, index, y.shape()[dim]);
  fill(y, 0);
  if (g.numel() == 0) return;
  dispatch_arithmetic_dtype(op, g.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const T* const in = g.data<T>();
    const int64_t* const pick = index.data<int64_t>();
    T* const out = y.data<T>();
    const int64_t count = g.shape()[dim], extent = y.shape()[dim];
    const int64_t step_in = g.strides()[dim], step_pick = index.strides()[dim], step_out = y.strides()[dim];
    Shape lines = g.shape();  // a thread owns whole lines along dim
    lines[dim] = 1;
    StridedLoop<3>(lines, {y.strides(), index.strides(), g.strides()})
        .for_each_run([&](const auto& at, const auto& step, int64_t n) {
          std::vector<Sum<T>> sum(static_cast<std::size_t>(extent));
          for (int64_t line = 0; line < n; ++line) {
            std::fill(sum.begin(), sum.end(), Sum<T>(0));
            const int64_t* where = pick + at[1] + line * step[1];
            const T* source = in + at[2] + line * step[2];
            for (int64_t j = 0; j < count; ++j) {
              sum[static_cast<std::size_t>(where[j * step_pick])] += static_cast<Sum<T>>(source[j * step_in]);
            }
            T* target = out + at[0] + line * step[0];
            for (int64_t v = 0; v < extent; ++v)
              target[v * step_out] = static_cast<T>(sum[static_cast<std::size_t>(v)]);
          }
        });
  });
}

}  // namespace halo::cpu
