// Folds over any axes of tensors of any strides: the machinery of sums, extremes, variances and norms.
//
// A team of threads folds its share of an output's elements in order, and a fixed tree combines the team
// (device/teams.cuh). Where few outputs have many elements, several blocks share one output and a second kernel folds
// their results in order. How the work is divided depends on the sizes alone, so the bits do not depend on the GPU, the
// stream or the run.
//
// A fold F is a trivially copyable struct with
//   using Acc                                           trivial
//   Acc first(const int64_t (&at)[N]) const             of one element, given its offset in each operand
//   void add(Acc& acc, const int64_t (&at)[N]) const    one more
//   Acc operator()(const Acc& a, const Acc& b) const    combines
//   void write(int64_t output, const Acc& acc) const
#pragma once

#include <halo/core/storage.h>
#include <halo/core/strided.h>

#include <algorithm>
#include <array>

#include "../device/teams.cuh"
#include "../device/walk.cuh"
#include "../launch.h"
#include "../runtime/device.h"

namespace halo::cuda {

/// How the work of one fold is divided.
struct Division {
  int64_t outputs, count;  ///< results, and elements folded into each
  Teams teams;
  int64_t parts;  ///< blocks that share an output
};

/// grid.x = output tiles, grid.y = parts. Each thread of an output has at least one element, as depth and parts are
/// bounded by the count. With several parts, partial[part * outputs + o] takes the results.
template <int N, class F>
__global__ void __launch_bounds__(Teams::kThreads)
    fold_kernel(const __grid_constant__ Division work, const __grid_constant__ Walk<N> kept,
                const __grid_constant__ Walk<N> reduced, const __grid_constant__ F f, typename F::Acc* partial) {
  using Acc = typename F::Acc;
  __shared__ Acc values[Teams::kThreads];
  const int64_t o = int64_t{blockIdx.x} * work.teams.lanes + work.teams.lane();
  const int64_t begin = work.count * blockIdx.y / work.parts, end = work.count * (blockIdx.y + 1) / work.parts;
  Acc acc{};
  if (o < work.outputs) {
    int64_t start[N];
    kept.locate(o, start);
    const auto locate = [&](int64_t i, int64_t(&at)[N]) {
      reduced.locate(i, at);
#pragma unroll
      for (int k = 0; k < N; ++k) at[k] += start[k];
    };
    int64_t at[N];
    int64_t i = begin + work.teams.rank();
    locate(i, at);
    acc = f.first(at);
#pragma unroll 4
    for (i += work.teams.depth; i < end; i += work.teams.depth) {
      locate(i, at);
      f.add(acc, at);
    }
  }
  acc = combine_team(work.teams, acc, values, f);
  if (work.teams.rank() != 0 || o >= work.outputs) return;
  if (work.parts == 1) {
    f.write(o, acc);
  } else {
    partial[blockIdx.y * work.outputs + o] = acc;
  }
}

template <class F>
__global__ void __launch_bounds__(Teams::kThreads)
    fold_parts_kernel(int64_t outputs, int64_t parts, const __grid_constant__ F f, const typename F::Acc* partial) {
  const int64_t o = int64_t{blockIdx.x} * Teams::kThreads + threadIdx.x;
  if (o >= outputs) return;
  typename F::Acc acc = partial[o];
  for (int64_t part = 1; part < parts; ++part) acc = f(acc, partial[part * outputs + o]);
  f.write(o, acc);
}

inline Division divide_fold(int64_t outputs, int64_t count, bool across) {
  constexpr int64_t kBlocksWanted = 1024;   // fills the largest GPUs several times over
  constexpr int64_t kElementsAThread = 32;  // fewer are not worth another block
  const Teams teams = Teams::of(outputs, count, across);
  const int64_t useful = std::max<int64_t>(1, count / (teams.depth * kElementsAThread));
  return {outputs, count, teams, std::clamp<int64_t>(kBlocksWanted / teams.blocks(outputs), 1, useful)};
}

/// Folds N operands of one shape, `kept` leading axes of which remain; at least one output and one element.
template <int N, class F>
void fold(const char* name, Device device, const Shape& shape, const std::array<Shape, N>& strides, int kept,
          const F& f) {
  const auto loop = [&](int begin, int end) {
    const auto axes = [&](const Shape& all) {
      return Shape(std::span<const int64_t>(all.begin() + begin, all.begin() + end));
    };
    std::array<Shape, N> parts;
    for (std::size_t k = 0; k < N; ++k) parts[k] = axes(strides[k]);
    return StridedLoop<N>(axes(shape), parts);
  };
  const StridedLoop<N> outer = loop(0, kept), inner = loop(kept, shape.rank());
  const int64_t outputs = outer.numel();
  const bool across = outputs > 1 && outer.strides[0].back() < inner.strides[0].back();
  const Division work = divide_fold(outputs, inner.numel(), across);

  using Acc = typename F::Acc;
  const Storage partial(work.parts > 1 ? static_cast<std::size_t>(outputs * work.parts) * sizeof(Acc) : 0, device);
  auto* const values = static_cast<Acc*>(partial.data());
  const DeviceScope scope(device);
  const dim3 grid(work.teams.blocks(outputs), static_cast<unsigned>(work.parts));
  launch(name, fold_kernel<N, F>, grid, Teams::kThreads, 0, scope.stream(), work, Walk<N>(outer), Walk<N>(inner), f,
         values);
  if (work.parts == 1) return;
  const auto blocks = static_cast<unsigned>((outputs + Teams::kThreads - 1) / Teams::kThreads);
  launch(name, fold_parts_kernel<F>, blocks, Teams::kThreads, 0, scope.stream(), outputs, work.parts, f, values);
}

}  // namespace halo::cuda
