// Choosing the compiled kernel. Included by small_groups_<type>.cu, one instantiation each.
#pragma once

#include "../launch.h"
#include "small_groups_gather.cuh"
#include "small_groups_weight.cuh"

namespace halo::cuda::conv::small_groups {

/// Calls f with the step of the width as a constant: 1, 2, or 0 for all others. Only split operands have instructions
/// to save there.
template <bool Split, class F>
void with_step(int step, F&& f) {
  if constexpr (Split) {
    if (step == 1) return f(std::integral_constant<int, 1>{});
    if (step == 2) return f(std::integral_constant<int, 2>{});
  }
  f(std::integral_constant<int, 0>{});
}

template <class T, bool Split>
void launch_gather_as(const GatherPlan& plan, const GatherArguments<T>& arguments, cudaStream_t stream) {
  const auto start = [&](auto kernel) {
    launch("conv small groups", kernel, dim3(static_cast<unsigned>(plan.blocks)),
           dim3(static_cast<unsigned>(plan.warps * 32)), plan.shared_bytes, stream, plan, arguments);
  };
  with_step<Split>(plan.problem.step[2], [&]<int Step>(std::integral_constant<int, Step>) {
    const bool few_rows = plan.row_tiles == 2;
    switch (plan.column_tiles) {
      case 1: return few_rows ? start(gather_kernel<T, Split, Step, 2, 1>) : start(gather_kernel<T, Split, Step, 4, 1>);
      case 2: return few_rows ? start(gather_kernel<T, Split, Step, 2, 2>) : start(gather_kernel<T, Split, Step, 4, 2>);
      default: return start(gather_kernel<T, Split, Step, 2, 4>);
    }
  });
}

template <class T>
void launch_gather(const GatherPlan& plan, const GatherArguments<T>& arguments, bool split, cudaStream_t stream) {
  if constexpr (sizeof(T) == 4) {
    if (split) return launch_gather_as<T, true>(plan, arguments, stream);
  }
  launch_gather_as<T, false>(plan, arguments, stream);
}

template <class T, bool Split>
void launch_weight_as(const WeightPlan& plan, const WeightArguments<T>& arguments, cudaStream_t stream) {
  const auto start = [&](auto kernel) {
    launch("conv small groups backward_weight", kernel, dim3(static_cast<unsigned>(plan.blocks)),
           dim3(static_cast<unsigned>(plan.warps * 32)), plan.shared_bytes, stream, plan, arguments);
  };
  with_step<Split>(plan.problem.step[2], [&]<int Step>(std::integral_constant<int, Step>) {
    switch (plan.column_tiles) {
      case 1: return start(weight_kernel<T, Split, Step, 7, 1>);
      case 2: return start(weight_kernel<T, Split, Step, 4, 2>);
      default: return start(weight_kernel<T, Split, Step, 2, 4>);
    }
  });
}

template <class T>
void launch_weight(const WeightPlan& plan, const WeightArguments<T>& arguments, bool split, cudaStream_t stream) {
  if constexpr (sizeof(T) == 4) {
    if (split) return launch_weight_as<T, true>(plan, arguments, stream);
  }
  launch_weight_as<T, false>(plan, arguments, stream);
}

}  // namespace halo::cuda::conv::small_groups
