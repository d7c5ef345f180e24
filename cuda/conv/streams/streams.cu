// Strided convolutions of few channels a group: forward, on Hopper's copy engine and tensor cores.
//
// Limits: compute capability 9.0; 3 to 16 channels a group on either side; along the width the steps and taps of
// kShapes, side by side; along the first axis of more than one position the dilation is 1 or divides the stride, no
// position is left out and as few results share one as kShapes has; at most 12 taps an axis; the rows of x that one
// height reads fit in shared memory twice; extents below 2^30; float32 (accurate whatever the precision), bfloat16 and
// float16. Any padding and alignment; bias, but no activation.
#include "../algorithms.h"
#include "../family.cuh"
#include "gather.cuh"

namespace halo::cuda::conv {

const Algorithm kStreams = gather_family<streams::plan_gather>(
    "streams", []<class T, bool Split>(const streams::Plan& plan, const GatherCall<T, Split>& call) {
      const auto& [source, weight, bias, result, activation] = call.arguments;
      const streams::Arguments<T> arguments{source, weight, bias, result};
      const auto start = [&](auto kernel) {
        launch("conv streams", kernel, dim3(static_cast<unsigned>(plan.blocks)),
               dim3(static_cast<unsigned>(plan.users + 1) * 32), plan.shared_bytes, call.stream, plan, arguments,
               call.plain);
      };
      [&]<int... I>(std::integer_sequence<int, I...>) {
        ((plan.shape == I ? start(streams::gather_kernel<streams::Compiled<T, I>>) : void()), ...);
      }
      (std::make_integer_sequence<int, std::size(streams::kShapes)>{});
    });

}  // namespace halo::cuda::conv
