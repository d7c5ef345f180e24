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
      const auto with_lane = [&]<int Lane>(std::integral_constant<int, Lane>) {
        plan.aligned ? start(phases_kernel<T, Lane, Phases, Shifts, true>)
                     : start(phases_kernel<T, Lane, Phases, Shifts, false>);
      };
      switch (plan.lane_positions) {
        case kNarrow: return with_lane(std::integral_constant<int, kNarrow>{});
        case kMiddle: return with_lane(std::integral_constant<int, kMiddle>{});
        default: return with_lane(std::integral_constant<int, kWide>{});
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
