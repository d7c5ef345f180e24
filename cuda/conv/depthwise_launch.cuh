// Choosing the compiled kernel for a shape of taps. Included by depthwise_<type>.cu, one instantiation each.
#pragma once

#include <type_traits>

#include "../launch.h"
#include "depthwise.h"
#include "depthwise_march.cuh"
#include "depthwise_weight.cuh"

namespace halo::cuda::conv::depthwise {

template <int March, int Inner, int Width>
struct Taps {};
template <class...>
struct TapsList {};

/// Kernels that are compiled; all others go to depthwise_general.cu.
using CompiledTaps = TapsList<Taps<1, 1, 2>, Taps<1, 1, 3>, Taps<1, 1, 4>, Taps<1, 1, 5>, Taps<1, 1, 7>, Taps<3, 1, 1>,
                              Taps<3, 1, 3>, Taps<3, 1, 5>, Taps<3, 1, 7>, Taps<5, 1, 5>, Taps<7, 1, 7>, Taps<3, 3, 3>>;

/// Those of forward and backward_input: half types with several rows of taps have depthwise_half.cu.
template <class T>
using MarchTaps = std::conditional_t<
    sizeof(T) == 2, TapsList<Taps<1, 1, 2>, Taps<1, 1, 3>, Taps<1, 1, 4>, Taps<1, 1, 5>, Taps<1, 1, 7>, Taps<3, 3, 3>>,
    CompiledTaps>;

/// Calls f(Taps<...>{}) for the member of the list that equals `shape`; false if none does.
template <class F, int... M, int... I, int... W>
bool with_taps(const MarchShape& shape, TapsList<Taps<M, I, W>...>, F&& f) {
  return ((shape == MarchShape{M, I, W} && (f(Taps<M, I, W>{}), true)) || ...);
}

template <class T>
void launch_march(const MarchShape& shape, const MarchParams<T>& params, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(params.geometry.tiles);
  const auto shared = static_cast<std::size_t>(params.geometry.source_box.bytes);
  with_taps(shape, MarchTaps<T>{}, [&]<int March, int Inner, int Width>(Taps<March, Inner, Width>) {
    launch("conv depthwise", depthwise_march<T, March, Inner, Width>, dim3(blocks),
           dim3(static_cast<unsigned>(params.geometry.threads)), shared, stream, params);
  });
}

template <class T>
void launch_march_weight(const MarchShape& shape, const MarchWeightParams<T>& params, cudaStream_t stream) {
  const int64_t blocks = params.channels * params.splits;
  const auto shared = static_cast<std::size_t>(params.geometry.source_box.bytes + params.geometry.result_box.bytes);
  with_taps(shape, CompiledTaps{}, [&]<int March, int Inner, int Width>(Taps<March, Inner, Width>) {
    launch("conv depthwise backward_weight", depthwise_weight<T, March, Inner, Width>,
           dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(params.geometry.threads)), shared, stream,
           params);
  });
}

}  // namespace halo::cuda::conv::depthwise
