// Choosing the compiled kernel. Included by straight_<type>.cu, one instantiation each.
#pragma once

#include "../launch.h"
#include "straight_kernel.cuh"
#include "straight_weight_taps.cuh"

namespace halo::cuda::conv::straight {

template <class T, bool Split>
void launch_straight(const Plan& plan, const Arguments<T>& arguments, const PlainSumOf<T>& plain, cudaStream_t stream) {
  const auto start = [&](auto kernel) {
    launch("conv straight", kernel,
           dim3(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.rows_of_blocks)),
           dim3(static_cast<unsigned>(plan.warps * 32)), plan.shared_bytes, stream, plan, arguments, plain);
  };
  if (plan.column_tiles == 8)
    return plan.packs ? start(straight_kernel<T, Split, 8, true>) : start(straight_kernel<T, Split, 8, false>);
  return plan.packs ? start(straight_kernel<T, Split, 4, true>) : start(straight_kernel<T, Split, 4, false>);
}

/// Of straight_weight_runs.cu.
template <class T>
void launch_weight_runs(const WeightPlan& plan, const T* x, const T* y, double* partials, cudaStream_t stream);

template <class T>
void launch_weight(const WeightPlan& plan, const T* x, const T* y, double* partials, cudaStream_t stream) {
  const WeightArguments<T> arguments{x, y, partials};
  if (!plan.packs)
    return plan.engine ? launch_weight_engine(plan, arguments, stream)
                       : launch_weight_taps<T, false>(plan, arguments, stream);
  if (plan.leads != Leads::None) return launch_weight_runs(plan, x, y, partials, stream);
  launch("conv straight backward_weight", weight_packs_kernel<T>,
         dim3(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.rows_of_blocks)), kWeightThreads,
         plan.shared_bytes, stream, plan, arguments);
}

}  // namespace halo::cuda::conv::straight
