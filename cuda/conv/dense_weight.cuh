// Dense convolution weight gradient on Hopper tensor cores. The geometry is in dense_weight_plan.h; here it is
// executed.
//
// A block computes up to 384 rows (input channel, tap) by N columns (output channels) of the gradient over one range of
// positions (a split). One warpgroup loads, three multiply:
// - The gathered operand (rows): a float32 halo tile per stage, fetched by the copy engine. Consumers read wgmma A
//   fragments out of it at any tap offset, straight into registers, and split them there: no im2col is ever written.
// - The streamed operand (columns): fetched by the copy engine too, then split by the loading warpgroup into high and
//   low TF32 parts, stored as K-major core matrices, since wgmma takes B only from shared memory.
// The copy engine sees flat channel planes (dense_weight_plan.h), so any width and alignment will do; what a box holds
// beyond the end of a line is the next line. Where a window may see that, the loading warpgroup writes the padding's
// zeros; positions that do not exist are zero in the streamed tile and masked in the gathered fragments.
// The tensor core cuts off the low bits of each of its additions, so its sums are moved to float32 registers every
// 4 k8 steps, and those to float64 in the workspace every `flush_stages` stages: the error stays put at any
// length. A second kernel adds the splits in order. No atomics: the bits depend on the plan alone.
//
// Limits: float32 storage, both operands dense; channel planes below 2^28 floats, offsets 64-bit; a halo tile of 64
// rows must fit in shared memory beside the streamed tile and its lines in 256 words (`valid == false` from
// plan_dense_weight otherwise, which happens for large dilations along the width, and the dispatcher falls back).
#pragma once

#include "../launch.h"
#include "dense_weight_consumer.cuh"
#include "dense_weight_launch.h"
#include "dense_weight_producer.cuh"

namespace halo::cuda::conv {
namespace dense_weight {

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1) accumulate(const __grid_constant__ DenseWeightParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(128) unsigned char memory[];
  const Block block(p.geometry, Tile::kColumns);
  const Shared shared(p.geometry, memory);
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kMaxStages; ++slot) {
      barrier_init(shared.fetched(slot), 1);
      barrier_init(shared.full(slot), 128);
      barrier_init(shared.empty(slot), kConsumers * 4);
    }
    barrier_init_fence();
  }
  fill_column_table(p.geometry, block, shared, Tile::kColumns);
  __syncthreads();
  const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128;
  if (warpgroup == kConsumers) {
    registers_decrease<Tile::kProducerRegisters>();
    Producer<Tile>(p, block, shared, thread).produce();
  } else {
    registers_increase<Tile::kConsumerRegisters>();
    Consumer<Tile>(p, block, warpgroup, thread).consume(shared);
  }
#endif
}

}  // namespace dense_weight

template <int Columns, bool Split>
void launch_dense_weight(const DenseWeightPlan& plan, const float* gathered, const float* streamed, double* partial,
                         cudaStream_t stream) {
  using Tile = DenseWeightTile<Columns, Split>;
  const TensorMap x = plane_matrix_map(plan.geometry.gathered, gathered);
  const TensorMap y = plane_matrix_map(plan.geometry.streamed, streamed);
  const DenseWeightParams params{x.map, y.map, gathered, streamed, x.shift, y.shift, partial, plan.geometry};
  launch("dense_weight", dense_weight::accumulate<Tile>, dim3(static_cast<unsigned>(plan.blocks)), dim3(Tile::kThreads),
         plan.shared_bytes, stream, params);
}

}  // namespace halo::cuda::conv
