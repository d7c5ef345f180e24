#include <halo/core/error.h>
#include <halo/core/parallel.h>
#include <halo/core/strided.h>
#include <halo/ops/binary_functors.h>
#include <halo/ops/reduce_backend.h>

#include <vector>

namespace halo::cpu {
namespace {

/// The offset of element `index` of the axes [begin, end) of `t`.
int64_t offset_of(const Tensor& t, int begin, int end, int64_t index) {
  int64_t offset = 0;
  for (int axis = end - 1; axis >= begin; --axis) {
    offset += index % t.shape()[axis] * t.strides()[axis];
    index /= t.shape()[axis];
  }
  return offset;
}

/// Folds the elements of one output in order, row by row of the innermost axis.
template <class Acc, class T, class Step>
Acc fold(const Tensor& x, int kept, const T* start, int64_t count, Acc first, Step step) {
  Acc acc = first;
  if (kept == x.rank()) return step(acc, *start);
  const int last = x.rank() - 1;
  const int64_t length = x.shape()[last], stride = x.strides()[last];
  for (int64_t row = 0; row < count / length; ++row) {
    const T* at = start + offset_of(x, kept, last, row);
    for (int64_t i = 0; i < length; ++i) acc = step(acc, at[i * stride]);
  }
  return acc;
}

template <class T>
void reduce_as(ReduceOp op, const Tensor& x, int kept, const Tensor& out) {
  using Acc = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;
  const T* const in = x.numel() > 0 ? x.data<T>() : nullptr;
  const int64_t outputs = out.numel(), count = outputs == 0 ? 0 : x.numel() / outputs;
  const int64_t grain = std::max<int64_t>(1, 4096 / std::max<int64_t>(1, count));
  dispatch_arithmetic_dtype("reduce", out.dtype(), [&](auto type) {
    using Out = typename decltype(type)::type;
    Out* const result = out.data<Out>();
    parallel_for(outputs, grain, [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) {
        if (count == 0) {
          result[o] = op == ReduceOp::Mean ? static_cast<Out>(std::nan("")) : Out(0);
          continue;
        }
        const T* start = in + offset_of(x, 0, kept, o);
        if (op == ReduceOp::Max) {
          result[o] = static_cast<Out>(fold(x, kept, start, count, *start, functor::Maximum{}));
        } else if (op == ReduceOp::Min) {
          result[o] = static_cast<Out>(fold(x, kept, start, count, *start, functor::Minimum{}));
        } else {
          const Acc sum = fold(x, kept, start, count, Acc(0), [](Acc a, T v) { return a + static_cast<Acc>(v); });
          result[o] = static_cast<Out>(op == ReduceOp::Mean ? sum / static_cast<Acc>(count) : sum);
        }
      }
    });
  });
}

}  // namespace

void reduce(ReduceOp op, const Tensor& x, int kept, const Tensor& out) {
  dispatch_arithmetic_dtype("reduce", x.dtype(),
                            [&](auto type) { reduce_as<typename decltype(type)::type>(op, x, kept, out); });
}

}  // namespace halo::cpu
