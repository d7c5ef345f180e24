#include <halo/core/parallel.h>
#include <halo/core/scalar.h>
#include <halo/ops/pad_backend.h>

#include <algorithm>

namespace halo::cpu {
namespace {

/// The first element of the input row that output row (o0, o1) of a plane takes; -1 where it is all constant.
int64_t source_row(const PadProblem& p, int64_t o0, int64_t o1) {
  const int64_t i0 = pad_source(p.mode, o0, p.before[0], p.input[0]);
  const int64_t i1 = pad_source(p.mode, o1, p.before[1], p.input[1]);
  return i0 < 0 || i1 < 0 ? -1 : (i0 * p.input[1] + i1) * p.input[2];
}

template <class T>
void pad_row(const PadProblem& p, const T* x, T value, T* y) {
  const int64_t first = p.before[2], last = first + p.input[2];
  std::copy(x, x + p.input[2], y + first);
  for (int64_t o = 0; o < first; ++o) {
    const int64_t i = pad_source(p.mode, o, first, p.input[2]);
    y[o] = i < 0 ? value : x[i];
  }
  for (int64_t o = last; o < p.output[2]; ++o) {
    const int64_t i = pad_source(p.mode, o, first, p.input[2]);
    y[o] = i < 0 ? value : x[i];
  }
}

}  // namespace

void pad(const PadProblem& p, const Scalar& value, const Tensor& x, const Tensor& y) {
  dispatch_dtype(x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const T* const in = x.data<T>();
    T* const out = y.data<T>();
    const T constant = value.as<T>();
    const int64_t rows = p.output[0] * p.output[1], length = p.output[2];
    const int64_t plane = p.input[0] * p.input[1] * p.input[2];
    const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, length));
    parallel_for(p.outer * rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t from = source_row(p, r % rows / p.output[1], r % p.output[1]);
        if (from < 0) {
          std::fill_n(out + r * length, length, constant);
        } else {
          pad_row(p, in + r / rows * plane + from, constant, out + r * length);
        }
      }
    });
  });
}

void pad_backward(const PadProblem& p, const Tensor& g, const Tensor& x) {
  dispatch_float("pad_backward", g.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const T* const in = g.data<T>();
    T* const out = x.data<T>();
    const int64_t plane = p.input[0] * p.input[1] * p.input[2];
    const int64_t rows = p.output[0] * p.output[1], length = p.output[2];
    const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, rows * length));
    // A thread owns whole planes: their sums are made in the order of the output.
    parallel_for(p.outer, grain, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        std::fill_n(out + n * plane, plane, T(0));
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t to = source_row(p, r / p.output[1], r % p.output[1]);
          if (to < 0) continue;
          const T* up = in + (n * rows + r) * length;
          T* sum = out + n * plane + to;
          for (int64_t o = 0; o < length; ++o) {
            const int64_t i = pad_source(p.mode, o, p.before[2], p.input[2]);
            if (i >= 0) sum[i] += up[o];
          }
        }
      }
    });
  });
}

}  // namespace halo::cpu
