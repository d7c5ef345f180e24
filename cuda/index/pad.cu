// Padding and its adjoint; which input a position takes is ops/pad.h's.
#include <halo/ops/pad_backend.h>

#include <bit>

#include "../device/map.cuh"

namespace halo::cuda {
namespace {

struct Sizes {
  PadMode mode;
  int64_t input[3], before[3], output[3];
  Divide by_input[3], by_output[3];

  explicit Sizes(const PadProblem& p) : mode(p.mode) {
    const int64_t inputs = p.outer * p.input[0] * p.input[1] * p.input[2];
    const int64_t outputs = p.outer * p.output[0] * p.output[1] * p.output[2];
    for (std::size_t axis = 0; axis < 3; ++axis) {
      input[axis] = p.input[axis];
      before[axis] = p.before[axis];
      output[axis] = p.output[axis];
      by_input[axis] = Divide(p.input[axis], inputs);
      by_output[axis] = Divide(p.output[axis], outputs);
    }
  }
};

template <class T>
struct Pad {
  Sizes sizes;
  T value;
  const T* x;
  __device__ T operator()(int64_t i) const {
    int64_t at[3];
    for (int axis = 2; axis >= 0; --axis) {
      at[axis] = pad_source(sizes.mode, sizes.by_output[axis].split(i), sizes.before[axis], sizes.input[axis]);
    }
    if (at[0] < 0 || at[1] < 0 || at[2] < 0) return value;
    return x[((i * sizes.input[0] + at[0]) * sizes.input[1] + at[1]) * sizes.input[2] + at[2]];
  }
};

/// The output positions of an axis that take input i: up to three runs, in order.
struct Takers {
  int64_t first[3], last[3];
  int runs = 0;

  __device__ Takers(const Sizes& s, int axis, int64_t i) {
    const int64_t extent = s.input[axis], before = s.before[axis], output = s.output[axis], own = before + i;
    switch (s.mode) {
      case PadMode::Constant: add(own, own); break;
      case PadMode::Reflect:
        if (i > 0 && i <= before) add(before - i, before - i);
        add(own, own);
        if (i < extent - 1 && before + 2 * (extent - 1) - i < output) {
          add(before + 2 * (extent - 1) - i, before + 2 * (extent - 1) - i);
        }
        break;
      case PadMode::Replicate: add(i == 0 ? 0 : own, i == extent - 1 ? output - 1 : own); break;
      case PadMode::Circular:
        if (own >= extent) add(own - extent, own - extent);
        add(own, own);
        if (own + extent < output) add(own + extent, own + extent);
        break;
    }
  }
  __device__ void add(int64_t from, int64_t to) {
    first[runs] = from;
    last[runs++] = to;
  }
  template <class Visit>
  __device__ void each(Visit visit) const {
    for (int run = 0; run < runs; ++run) {
      for (int64_t o = first[run]; o <= last[run]; ++o) visit(o);
    }
  }
};

template <class T>
struct PadBackward {
  Sizes sizes;
  const T* g;
  __device__ T operator()(int64_t i) const {
    const int64_t w = sizes.by_input[2].split(i), h = sizes.by_input[1].split(i), d = sizes.by_input[0].split(i);
    const Takers depths(sizes, 0, d), rows(sizes, 1, h), columns(sizes, 2, w);
    double sum = 0;
    depths.each([&](int64_t od) {
      rows.each([&](int64_t oh) {
        const int64_t row = ((i * sizes.output[0] + od) * sizes.output[1] + oh) * sizes.output[2];
        columns.each([&](int64_t ow) { sum += static_cast<double>(g[row + ow]); });
      });
    });
    return static_cast<T>(sum);
  }
};

}  // namespace

void pad(const PadProblem& problem, const Scalar& value, const Tensor& x, const Tensor& y) {
  dispatch_dtype(x.dtype(), [&]<class T>(std::type_identity<T>) {
    dispatch_size(x.dtype(), [&]<class Bits>(std::type_identity<Bits>) {
      if constexpr (sizeof(Bits) == sizeof(T)) {
        const Pad<Bits> f{Sizes(problem), std::bit_cast<Bits>(value.as<T>()), static_cast<const Bits*>(x.data())};
        generate<true>("pad", f, Elements<Bits>{y});
      }
    });
  });
}

void pad_backward(const PadProblem& problem, const Tensor& g, const Tensor& x) {
  dispatch_float("pad_backward", g.dtype(), [&]<class T>(std::type_identity<T>) {
    generate<true>("pad_backward", PadBackward<T>{Sizes(problem), g.data<T>()}, Elements<T>{x});
  });
}

}  // namespace halo::cuda
