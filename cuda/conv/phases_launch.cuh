// Choosing the compiled kernel. Included by phases_<type>.cu, one instantiation each.
#pragma once

#include "../launch.h"
#include "phases_kernel.cuh"

namespace halo::cuda::conv::phases {

template <class T>
void launch_phases(const Plan& plan, const Arguments<T>& arguments, const PlainSumOf<T>& plain, cudaStream_t stream) {
  const auto start = [&](auto kernel) {
    launch("conv phases", kernel, dim3(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.groups)),
           dim3(static_cast<unsigned>(plan.warps * 32)), plan.shared_bytes, stream, plan, arguments, plain);
  };
  const auto with_phases = [&]<int Phases>(std::integral_constant<int, Phases>) {
    const auto with_shifts = [&]<int Shifts>(std::integral_constant<int, Shifts>) {
      if (plan.lane_positions == kWide) {
        plan.aligned ? start(phases_kernel<T, kWide, Phases, Shifts, true>)
                     : start(phases_kernel<T, kWide, Phases, Shifts, false>);
      } else {
        plan.aligned ? start(phases_kernel<T, kNarrow, Phases, Shifts, true>)
                     : start(phases_kernel<T, kNarrow, Phases, Shifts, false>);
      }
    };
    plan.shifts == 2 ? with_shifts(std::integral_constant<int, 2>{}) : with_shifts(std::integral_constant<int, 4>{});
  };
  switch (plan.phases[2]) {
    case 1: return with_phases(std::integral_constant<int, 1>{});
    case 2: return with_phases(std::integral_constant<int, 2>{});
    case 3: return with_phases(std::integral_constant<int, 3>{});
    default: return with_phases(std::integral_constant<int, 4>{});
  }
}

}  // namespace halo::cuda::conv::phases
