// Padding and its adjoint; which input a position takes is ops/pad.h's.
#include <halo/ops/pad_backend.h>

#include <array>
#include <bit>

#include "../device/map.cuh"
#include "../device/number.cuh"

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

/// A box of three axes within another (for each of `outer`), where 32-bit arithmetic does.
struct Box {
  int depth, height, width;  ///< of the array that is read
  int before[3];             ///< what to take from a place in the array that is written, to get one there
  FastDivide by_depth, by_height, by_width;  ///< of the array that is written

  Box(const std::array<int64_t, 3>& from, const std::array<int64_t, 3>& to, const std::array<int64_t, 3>& shift,
      int sign)
      : depth(static_cast<int>(from[0])),
        height(static_cast<int>(from[1])),
        width(static_cast<int>(from[2])),
        by_depth(divisor(to[0])),
        by_height(divisor(to[1])),
        by_width(divisor(to[2])) {
    for (std::size_t axis = 0; axis < 3; ++axis) before[axis] = sign * static_cast<int>(shift[axis]);
  }
  static uint32_t divisor(int64_t extent) { return static_cast<uint32_t>(std::max<int64_t>(extent, 1)); }
  static Box padding(const PadProblem& p) { return {p.input, p.output, p.before, 1}; }
  static Box cropping(const PadProblem& p) { return {p.output, p.input, p.before, -1}; }
  /// Whether padding and cropping by `p` can be so.
  static bool serves(const PadProblem& p) {
    constexpr int64_t kMost = int64_t{1} << 30;
    const auto few = [](int64_t a) { return a > -kMost && a < kMost; };
    return p.mode == PadMode::Constant && few(p.outer * p.input[0] * p.input[1] * p.input[2]) &&
           few(p.outer * p.output[0] * p.output[1] * p.output[2]) && few(p.before[0]) && few(p.before[1]) &&
           few(p.before[2]);
  }
  /// The row of element i of what is written: its element w is element `begin` + w - before[2] of what is read, if that
  /// has such a row and column.
  struct Row {
    int begin;
    bool is;
    uint32_t w;  ///< of element i
  };
  __device__ __forceinline__ Row row(uint32_t i) const {
    Row found;
    uint32_t h, d;
    const uint32_t outer = by_depth.divide(by_height.divide(by_width.divide(i, found.w), h), d);
    const int at = static_cast<int>(h) - before[1], plane = static_cast<int>(d) - before[0];
    found.is = static_cast<unsigned>(at) < static_cast<unsigned>(height) &&
               static_cast<unsigned>(plane) < static_cast<unsigned>(depth);
    found.begin = ((static_cast<int>(outer) * depth + plane) * height + at) * width;
    return found;
  }
};

/// y = what a box of x has, `value` outside it. A thread takes N neighbours, which lie in two rows at most.
template <class T, int N>
__global__ void __launch_bounds__(kMapThreads)
    box_kernel(const __grid_constant__ Box box, int count, T value, const T* __restrict__ x, T* __restrict__ y) {
  const int first = (static_cast<int>(blockIdx.x) * kMapThreads + static_cast<int>(threadIdx.x)) * N;
  if (first >= count) return;
  const Box::Row row = box.row(static_cast<uint32_t>(first));
  const int left = static_cast<int>(box.by_width.divisor - row.w);  // elements from there to the row's end
  const Box::Row next = box.row(static_cast<uint32_t>(min(first + left, count - 1)));
  const int column = static_cast<int>(row.w) - box.before[2];
  Pack<T, N> pack;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const bool here = k < left;
    const int c = here ? column + k : k - left - box.before[2];
    const bool inside = (here ? row.is : next.is) && static_cast<unsigned>(c) < static_cast<unsigned>(box.width);
    pack.at[k] = inside ? x[(here ? row.begin : next.begin) + c] : value;
  }
  if (first + N <= count) {
    *reinterpret_cast<Pack<T, N>*>(y + first) = pack;
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (first + k < count) y[first + k] = pack.at[k];
    }
  }
}

template <class T>
void take_box(const char* name, const Box& box, T value, const Tensor& x, const Tensor& y) {
  T* const out = static_cast<T*>(y.data());
  const auto run = [&]<int N>(std::integral_constant<int, N>) {
    const int64_t count = y.numel();
    const DeviceScope scope(y.device());
    launch(name, box_kernel<T, N>, map_blocks((count + N - 1) / N), kMapThreads, 0, scope.stream(), box,
           static_cast<int>(count), value, static_cast<const T*>(x.data()), out);
  };
  if (box.by_width.divisor >= kWide<T> && is_aligned<T, kWide<T>>(out)) {
    run(std::integral_constant<int, kWide<T>>{});
  } else {
    run(std::integral_constant<int, 1>{});
  }
}

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
    device::Accumulator<T> sum = 0;
    depths.each([&](int64_t od) {
      rows.each([&](int64_t oh) {
        const int64_t row = ((i * sizes.output[0] + od) * sizes.output[1] + oh) * sizes.output[2];
        columns.each([&](int64_t ow) { sum += device::to_accumulator(g[row + ow]); });
      });
    });
    return device::from_accumulator<T>(sum);
  }
};

}  // namespace

void pad(const PadProblem& problem, const Scalar& value, const Tensor& x, const Tensor& y) {
  dispatch_dtype(x.dtype(), [&]<class T>(std::type_identity<T>) {
    dispatch_size(x.dtype(), [&]<class Bits>(std::type_identity<Bits>) {
      if constexpr (sizeof(Bits) == sizeof(T)) {
        const auto* const in = static_cast<const Bits*>(x.data());
        const Bits fill = std::bit_cast<Bits>(value.as<T>());
        if (Box::serves(problem)) {
          return take_box<Bits>("pad", Box::padding(problem), fill, x, y);
        }
        generate<4>("pad", Pad<Bits>{Sizes(problem), fill, in}, Elements<Bits>{y});
      }
    });
  });
}

void pad_backward(const PadProblem& problem, const Tensor& g, const Tensor& x) {
  constexpr const char* kName = "pad_backward";
  if (Box::serves(problem)) {
    return dispatch_size(g.dtype(), [&]<class Bits>(std::type_identity<Bits>) {
      take_box<Bits>(kName, Box::cropping(problem), 0, g, x);
    });
  }
  dispatch_floating(kName, g.dtype(), [&]<class T>(std::type_identity<T>) {
    generate<4>(kName, PadBackward<T>{Sizes(problem), g.data<T>()}, Elements<T>{x});
  });
}

}  // namespace halo::cuda
