// Dense convolution weight gradient on Hopper tensor cores. The geometry is in plan.h; here it is
// executed.
//
// A block computes up to 384 rows (input channel, tap) by N columns (output channels) of the gradient over one range of
// positions (a split), stage by stage down the columns of stages. One warpgroup loads, three multiply:
// - The gathered operand (rows): lines with their halo, fetched by the copy engine into a ring, so that a stage
//   fetches only the lines that the one above did not have. Consumers read wgmma A fragments out of them at any tap
//   offset, straight into registers, and split them there: no im2col is ever written.
// - The streamed operand (columns): K-major tiles of TF32 numbers in shared memory, as wgmma takes B. Where the copy
//   engine can write such tiles itself, they are only rounded in place, or, split, given a second tile of low parts;
//   else boxes are fetched as they lie and converted.
// One loading warp fetches the lines, one the boxes, and two take turns at making stages ready: each waits for nothing
// but its own ring, since a single warp's instructions take far longer than their count says.
// The copy engine sees flat channel planes (plan.h), so any width and alignment will do; what a box holds
// beyond the end of a line is the next line. Where a window may see that, padding's zeros are written over it;
// positions that do not exist are masked in the gathered fragments. If the streamed operand is not finite there, the
// results are not finite either, and such results are summed again without tensor cores (dense_weight.cu). The tensor
// core cuts off the low bits of each of its additions, so its sums are moved to float32 registers every 4 k8 steps, and
// those to float64 in the workspace every `flush_stages` stages: the error stays put at any length. A second kernel
// adds the splits in order. No atomics: the bits depend on the plan alone.
//
// Half types are exact in TF32: lines hold them as they are, and A fragments become float32 when they are read.
//
// Limits: both operands dense; channel planes below 2^28 floats or 2^27 of half types, offsets 64-bit; the lines that
// 64 rows of one stage need must fit in shared memory beside the streamed tiles, and each line in 256 words (`valid ==
// false` from plan_dense_weight otherwise, which happens for large dilations along the width, and the dispatcher falls
// back).
#pragma once

#include "../../device/grid_order.cuh"
#include "../../launch.h"
#include "consumer.cuh"
#include "convert.cuh"
#include "launch.h"

namespace halo::cuda::conv {
namespace dense_weight {

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1) accumulate(const __grid_constant__ DenseWeightParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char memory[];
  const Block block(p.geometry, Tile::kColumns);
  const Shared shared(p.geometry, memory);
  device::release_next_grid();
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kMaxStages; ++slot) {
      barrier_init(shared.lines_ready(slot), 1);
      barrier_init(shared.boxes_ready(slot), 1);
      barrier_init(shared.raw_empty(slot), p.geometry.converters());
      barrier_init(shared.full(slot), p.geometry.converters());
      barrier_init(shared.empty(slot), kConsumers * 4);
    }
    barrier_init_fence();
  }
  __syncthreads();
  const int thread = threadIdx.x % 128;
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);  // known to be the same in a whole warp
  if (warpgroup == kConsumers) {
    registers_decrease<Tile::kProducerRegisters>();
    if (thread < 32) {
      LineFetcher<Tile>(p, block, shared).run(thread);
    } else if (thread < 64) {
      BoxFetcher<Tile>(p, block, shared).run(thread - 32);
    } else {
      Converter<Tile>(p, block, shared, thread - 64).run();
    }
  } else {
    registers_increase<Tile::kConsumerRegisters>();
    Consumer<Tile>(p, block, warpgroup, thread).consume(shared);
  }
#endif
}

}  // namespace dense_weight

template <class T, int Columns, bool Split>
void launch_dense_weight(const DenseWeightPlan& plan, const void* gathered, const void* streamed, double* partial,
                         cudaStream_t stream) {
  using Tile = DenseWeightTile<Columns, Split, T>;
  const TensorMap x = plane_matrix_map(plan.geometry.gathered, gathered, false);
  const TensorMap y = plane_matrix_map(plan.geometry.streamed, streamed, plan.geometry.direct);
  const DenseWeightParams params{x.map, y.map, gathered, streamed, x.shift, y.shift, partial, plan.geometry};
  launch("dense_weight", dense_weight::accumulate<Tile>, dim3(static_cast<unsigned>(plan.blocks)), dim3(Tile::kThreads),
         plan.shared_bytes, stream, params);
}

}  // namespace halo::cuda::conv
