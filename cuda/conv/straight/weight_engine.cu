// backward_weight of half types, with rows by Hopper's copy engine.
#include "weight_taps.cuh"

namespace halo::cuda::conv::straight {

template <class T>
void launch_weight_engine(const WeightPlan& plan, const WeightArguments<T>& arguments, cudaStream_t stream) {
  launch_weight_taps<T, true>(plan, arguments, stream);
}

template void launch_weight_engine<BFloat16>(const WeightPlan&, const WeightArguments<BFloat16>&, cudaStream_t);
template void launch_weight_engine<Float16>(const WeightPlan&, const WeightArguments<Float16>&, cudaStream_t);

}  // namespace halo::cuda::conv::straight
