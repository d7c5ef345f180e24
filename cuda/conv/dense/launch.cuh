// Body of multiply_dense, included by small files that share the compiled shapes among them, so that they compile side
// by side.
#pragma once

#include <utility>

#include "../../launch.h"
#include "kernel.cuh"
#include "launch.h"

namespace halo::cuda::conv {

/// The kernel of compiled shape `I`, with windows or without.
template <class T, std::size_t I, int Products>
auto dense_kernel_of(bool windows) {
  constexpr DenseVariant v = kDenseVariants[I];
  constexpr int kTaps = dense_may_slide(Products == 3, v.storers, v.columns) ? kWindowTaps : 0;
  return windows ? dense_kernel<DenseTraits<v.columns, v.row_tiles, v.warpgroups, v.storers, Products, kTaps, T>>
                 : dense_kernel<DenseTraits<v.columns, v.row_tiles, v.warpgroups, v.storers, Products, 0, T>>;
}

template <class T, int Products, DenseShapes Shapes>
void multiply_dense(const DensePlan& plan, const DenseParams& params, const PlainSumOf<T>& plain, int blocks,
                    const CUtensorMap& source_map, bool early, cudaStream_t stream) {
  const auto try_variant = [&]<std::size_t I>() {
    if (plan.variant != static_cast<int>(I)) return;
    constexpr DenseVariant v = kDenseVariants[I];
    if constexpr (v.shapes() == Shapes && (Products == 3 ? v.tflops_fp32 : v.tflops_tf32) > 0) {
      launch_with({.early = early, .cluster = 1u << params.pair}, "conv dense",
                  dense_kernel_of<T, I, Products>(plan.windows), dim3(static_cast<unsigned>(blocks)), v.threads(),
                  plan.shared_bytes, stream, params, plain, source_map);
    }
  };
  [&]<std::size_t... I>(std::index_sequence<I...>) { (try_variant.template operator()<I>(), ...); }
  (std::make_index_sequence<std::size(kDenseVariants)>{});
}

}  // namespace halo::cuda::conv
