#include <halo/ops/softmax_backend.h>

#include "log_sum_exp.h"

namespace halo::cpu {

void softmax(bool log, const Tensor& x, int dim, const Tensor& y) {
  dispatch_float("softmax", x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const T* const in = x.data<T>();
    T* const out = y.data<T>();
    for_each_column_block(x, dim, [&](const ColumnBlock& b) {
      ShiftedSum<T> line = shifted_sum(b, in, log ? nullptr : out);
      for (double& sum : line.sum) sum = log ? std::log(sum) : sum;
      for (int64_t j = 0; j < b.length; ++j) {
        const int64_t row = b.first + j * b.stride;
        for (int64_t i = 0; i < b.width; ++i) {
          const auto at = static_cast<std::size_t>(i);
          out[row + i] = log ? in[row + i] - line.largest[at] - static_cast<T>(line.sum[at])
                             : static_cast<T>(static_cast<double>(out[row + i]) / line.sum[at]);
        }
      }
    });
  });
}

void softmax_backward(bool log, const Tensor& g, const Tensor& y, int dim, const Tensor& dx) {
  dispatch_float("softmax_backward", g.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const T *const up = g.data<T>(), *const out = y.data<T>();
    T* const result = dx.data<T>();
    for_each_column_block(y, dim, [&](const ColumnBlock& b) {
      std::array<double, ColumnBlock::kWidth> sum{};
      for (int64_t j = 0; j < b.length; ++j) {
        const int64_t row = b.first + j * b.stride;
        for (int64_t i = 0; i < b.width; ++i) {
          const auto u = static_cast<double>(up[row + i]);
          sum[static_cast<std::size_t>(i)] += log ? u : u * static_cast<double>(out[row + i]);
        }
      }
      for (int64_t j = 0; j < b.length; ++j) {
        const int64_t row = b.first + j * b.stride;
        for (int64_t i = 0; i < b.width; ++i) {
          const T s = static_cast<T>(sum[static_cast<std::size_t>(i)]), u = up[row + i], v = out[row + i];
          result[row + i] = log ? u - std::exp(v) * s : v * (u - s);
        }
      }
    });
  });
}

}  // namespace halo::cpu
