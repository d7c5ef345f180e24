// Launching the block kernel; included by the two files that list its sizes.
#pragma once

#include <halo/core/error.h>
#include <halo/cuda/launch.h>

#include "block_kernel.cuh"

namespace halo::cuda::long_conv {

/// BlockShapes<Real>::with(block, f) calls f with the BlockShape of that many points.
template <class Real>
struct BlockShapes;

template <class Real>
BlockGeometry block_geometry(int block) {
  BlockGeometry geometry{};
  BlockShapes<Real>::with(block, [&](auto shape) {
    using Shape = decltype(shape);
    geometry = {Shape::kRows, Shape::kBlocksPerMultiprocessor};
  });
  return geometry;
}

template <class Real>
void launch_block(const BlockArgs<Real>& args, int grid, cudaStream_t stream) {
  BlockShapes<Real>::with(args.sizes.block, [&](auto shape) {
    using Shape = decltype(shape);
    auto* kernel = block_kernel<Shape, false>;
    if constexpr (Shape::kSize == kLargestBlock) {
      if (args.sizes.log_residues > 0) kernel = block_kernel<Shape, true>;
    }
    const std::size_t shared = Shape::kSharedBytes + (args.weight_grad ? Shape::kNearBytes : 0);
    launch("long_conv_block", kernel, dim3(static_cast<unsigned>(grid)), dim3(Shape::kBlock), shared, stream, args);
  });
}

}  // namespace halo::cuda::long_conv
