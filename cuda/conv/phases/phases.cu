// Input gradients of strided convolutions, which are transposed convolutions, with few channels a group, on the tensor
// cores of every GPU since 8.0.
//
// Limits: 3 to 16 channels a group on either side; at most 12 taps and stride 4 an axis, some stride above 1; 48 units
// of the sum (windows of source rows in eight channels), weights that fit in shared memory as fragments; extents below
// 2^30; float32 (accurate whatever the precision: three TF32 products), bfloat16 and float16. Any padding, dilation,
// alignment, number of groups.
#include "../algorithms.h"
#include "../family.cuh"
#include "kernel.cuh"

namespace halo::cuda::conv {

const Algorithm kPhases = gather_family<phases::plan_phases>(
    "phases", []<class T, bool Split>(const phases::Plan& plan, const GatherCall<T, Split>& call) {
      using namespace phases;
      const auto start = [&](auto kernel) {
        launch("conv phases", kernel, dim3(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.groups)),
               dim3(static_cast<unsigned>(plan.warps * 32)), plan.shared_bytes, call.stream, plan, call.arguments,
               call.plain);
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
        plan.shifts == 2 ? with_shifts(std::integral_constant<int, 2>{})
                         : with_shifts(std::integral_constant<int, 4>{});
      };
      switch (plan.phases[2]) {
        case 1: return with_phases(std::integral_constant<int, 1>{});
        case 2: return with_phases(std::integral_constant<int, 2>{});
        case 3: return with_phases(std::integral_constant<int, 3>{});
        default: return with_phases(std::integral_constant<int, 4>{});
      }
    });

}  // namespace halo::cuda::conv
