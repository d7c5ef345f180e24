// Choosing the compiled kernel. Included by streams_<type>.cu, one instantiation each.
#pragma once

#include "../launch.h"
#include "streams_gather.cuh"

namespace halo::cuda::conv::streams {

template <class T>
void launch_gather(const Plan& plan, const Arguments<T>& arguments, const PlainSumOf<T>& plain, cudaStream_t stream) {
  const auto start = [&](auto kernel) {
    launch("conv streams", kernel, dim3(static_cast<unsigned>(plan.blocks)),
           dim3(static_cast<unsigned>(plan.users + 1) * 32), plan.shared_bytes, stream, plan, arguments, plain);
  };
  [&]<int... I>(std::integer_sequence<int, I...>) {
    ((plan.shape == I ? start(gather_kernel<Compiled<T, I>>) : void()), ...);
  }
  (std::make_integer_sequence<int, std::size(kShapes)>{});
}

}  // namespace halo::cuda::conv::streams
