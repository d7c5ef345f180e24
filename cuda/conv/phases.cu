// Input gradients of strided convolutions, which are transposed convolutions, with few channels a group, on the tensor
// cores of every GPU since 8.0.
//
// Limits: 3 to 16 channels a group on either side; at most 12 taps and stride 4 an axis, some stride above 1; 48 units
// of the sum (windows of source rows in eight channels), weights that fit in shared memory as fragments; extents below
// 2^30; float32 (accurate whatever the precision: three TF32 products), bfloat16 and float16. Any padding, dilation,
// alignment, number of groups.
#include "algorithms.h"
#include "phases_kernel.cuh"
#include "storage.h"

namespace halo::cuda::conv {
namespace phases {

template <class T>
void launch_phases(const Plan& plan, const Arguments<T>& arguments, const PlainSumOf<T>& plain, cudaStream_t stream);

namespace {

bool supports(const ConvProblem& problem, const ConvConfig& config) { return plan_phases(problem, config).blocks > 0; }

std::size_t workspace_bytes(const ConvProblem&, const ConvConfig&) { return 0; }

double predict_ms(const ConvProblem& problem, const ConvConfig& config) {
  return plan_phases(problem, config).predicted_ms;
}

template <class T>
void run_as(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  const Arguments<T> arguments{static_cast<const T*>(operands.y), static_cast<const T*>(operands.w),
                               static_cast<T*>(operands.x)};
  launch_phases<T>(plan_phases(problem, config), arguments,
                   PlainSumOf<T>{Sizes(problem), arguments.source, arguments.weight, false}, stream);
}

void run(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  dispatch_storage(config.dtype, [&]<class T>(std::type_identity<T>) { run_as<T>(problem, config, operands, stream); });
}

}  // namespace
}  // namespace phases

const Algorithm kPhases{"phases", phases::supports, phases::workspace_bytes, phases::predict_ms, phases::run};

}  // namespace halo::cuda::conv
