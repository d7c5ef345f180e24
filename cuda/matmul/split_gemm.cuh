// The kernel of the float32-accurate matrix product (split_gemm_plan.h) on Hopper tensor cores.
//
// A block walks over tiles of 192 or 128 rows by N columns. One warpgroup loads, three or two multiply, 64 rows each:
// - Tiles of both operands are fetched by the copy engine, 32 deep, as they lie in memory.
// - Rows: consumers read wgmma A fragments out of the fetched tile, whichever way it lies, and split them into high and
//   low TF32 parts in registers.
// - Columns: the loading warpgroup splits them and stores both parts as K-major core matrices, since wgmma takes B from
//   shared memory and in TF32 only so.
// Each product is low*high + high*low + high*high. The tensor core cuts off the low bits of each of its additions, so
// its sums are moved to float32 registers after every stage. A sum that is not finite, be it that an operand is not or
// that a part overflowed, is computed again by plain multiply-adds. No atomics: the bits depend on the plan alone.
//
// Limits: those of plan_split_gemm; extents below 2^31, offsets 64-bit.
#pragma once

#include "split_gemm_load.cuh"
#include "split_gemm_multiply.cuh"

namespace halo::cuda {
namespace split_gemm {

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1) multiply(const __grid_constant__ SplitGemmParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char memory[];
  const Shared<Tile> shared(memory);
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < Tile::kRowSlots; ++slot) barrier_init(shared.fetched(slot), 1);
    for (int slot = 0; slot < Tile::kTileSlots; ++slot) {
      barrier_init(shared.full(slot), 128);
      barrier_init(shared.empty(slot), Tile::kConsumers * 4);
    }
    barrier_init_fence();
  }
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x) / 128, thread = static_cast<int>(threadIdx.x) % 128;
  if (warpgroup == Tile::kConsumers) {
    registers_decrease<Tile::kProducerRegisters>();
    Producer<Tile>(p, shared, thread).produce();
  } else {
    registers_increase<Tile::kConsumerRegisters>();
    Consumer<Tile>{p, shared, warpgroup, thread}.consume();
  }
#endif
}

}  // namespace split_gemm
}  // namespace halo::cuda
