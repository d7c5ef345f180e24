// The dense engine's kernel: float32-accurate or TF32 convolution on Hopper tensor cores as an implicit GEMM.
//
// Rows are output positions, columns output channels (and grouped positions), depth (channel, window tap). A work item
// is one tile of rows x one column tile. Some warpgroups multiply, the next one copies:
//   warps 0..2  fill the halo tile of a chunk of source channels; outside the tensor is zero, which is the padding.
//               Where rows are multiples of 16 bytes, one lane asks the copy engine for the whole chunk as a box. Else
//               with cp.async, 16, 8 or 4 bytes at a time; global offsets of the tile's pieces are worked out once an
//               item and kept in shared memory. Half types lie there as they are; where no four bytes of theirs are
//               aligned, they come through registers (store_halos.cuh).
//   warp 3      brings the prepared weights, four k8 steps at a time, with bulk copies.
// A fragments are gathered from the halo tile straight into registers, as float32: thread (g, c) of a warp reads rows g
// and g + 8, depth c and c + 4, at row base + table[step][c]. Tiles are made of runs of 8 neighbouring positions along
// width, so a row base is fixed for the whole kernel. No im2col exists anywhere, and any tap order is a table.
//
// Flat tiles: where lines of outputs are short, a tile takes positions of whole lines one after the other, as many as
// it has rows, and begins anywhere in a line. Then nothing is lost but where planes end; a thread works out its rows'
// bases for each item and keeps them in registers.
//
// Float32 accuracy: operands are split into high and low TF32 parts, three products (low*high + high*low + high*high),
// and since the tensor core truncates each addition, its partial sums go to float32 registers every four steps: error
// 2.4e-7. With 128 columns, sums of at least kLongSteps steps go every eight: 4.6e-7, where a plain chain has as much.
// The split is unguarded (tf32_split.cuh) and columns share taps they do not use as zero weights, so an input that is
// infinite, NaN or above 3.40e38 may turn results into NaN or infinity that should be neither. Every result that is
// not finite is therefore computed again as a plain float32 chain, which gives what plain float32 gives.
//
// Results: the multiplying warps store their item before they begin the next (store.cuh). Or, where halos come as
// boxes, they leave it in shared memory as it is, and a further warpgroup stores it meanwhile (storer.cuh); in
// TF32 consume_tf32.cuh is then their main loop.
//
// Pairs: results of 128 columns leave room for three stages of weights. Then two blocks of a cluster take neighbouring
// tiles and bring half of each stage to both, which halves the weights' way through the second-level cache. A stage is
// empty when both have read it.
//
// Hand-overs (phases as in mbarrier.cuh): a stage is written after its `empty` barrier, read after its `full` one.
// Halo stages are read by ordinary loads, so the release follows the last load; weight stages are read by wgmma, so
// the release follows the wait for the group.
#pragma once

#include <type_traits>

#include "consume.cuh"
#include "consume_windows.cuh"
#include "store_halos.cuh"
#include "storer.cuh"

namespace halo::cuda::conv {

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    dense_kernel(const __grid_constant__ DenseParams p, const __grid_constant__ PlainSumOf<typename Traits::Type> plain,
                 const __grid_constant__ CUtensorMap source_map) {
  extern __shared__ __align__(128) float shared[];
  const DenseShared s(p, Traits::kStageFloats, (Traits::kStorers ? 1 : Traits::kWarpgroups) * Traits::kColumns,
                      Traits::kRows, Traits::kResultWords, device::shared_address(shared), Traits::kElement);
  const int thread = static_cast<int>(threadIdx.x);
  device::release_next_grid();
  if (thread == 0) {
    for (int i = 0; i < p.weight_stages; ++i) {
      device::barrier_init(s.weights_full(i), 1);
      device::barrier_init(s.weights_empty(i), Traits::kWarpgroups * 4 << (Traits::kPairs ? p.pair : 0));
    }
    for (int i = 0; i < p.halo_stages; ++i) {
      device::barrier_init(s.halo_full(p, i), p.boxed ? 1 : Traits::kFillThreads);
      device::barrier_init(s.halo_empty(p, i), Traits::kWarpgroups * 4);
    }
    if constexpr (Traits::kStorers) {
      device::barrier_init(s.results_full(p), Traits::kWarpgroups * 4);
      device::barrier_init(s.results_empty(p), DenseStorer<Traits>::kWarps);
    }
    device::barrier_init_fence();
  }
  build_table(p, s.table, Traits::kElement);
  __syncthreads();
  if (Traits::kPairs && p.pair != 0) device::cluster_sync();  // the other block's barriers are ready
  if (thread >= Traits::kMultipliers + 128) {
    if constexpr (Traits::kStorers) {
      device::registers_decrease<Traits::kStorerRegisters>();
      DenseStorer<Traits>{p, plain, s, thread - Traits::kMultipliers - 128}.run();
    }
  } else if (thread >= Traits::kMultipliers) {
    device::registers_decrease<Traits::kProducerRegisters>();
    const int copier = thread - Traits::kMultipliers;
    if (copier < Traits::kFillThreads) {
      int* entries = reinterpret_cast<int*>(shared) + (s.fill - s.weights) / 4;
      const auto fill = [&]<int Words>(std::integral_constant<int, Words>) {
        if constexpr (Words * Traits::kElement < 4) {
          store_halos<Traits>(p, s, entries, copier);
        } else {
          fill_halos<Traits, Words>(p, s, entries, copier);
        }
      };
      if (Traits::kStorers || p.boxed) {
        if (copier == 0) fetch_halos<Traits>(p, s, source_map);
      } else if (Traits::kElement == 2 && p.fill_words == 8) {
        if constexpr (Traits::kElement == 2) fill(std::integral_constant<int, 8>());
      } else if (p.fill_words == 4) {
        fill(std::integral_constant<int, 4>());
      } else if (p.fill_words == 2) {
        fill(std::integral_constant<int, 2>());
      } else {
        fill(std::integral_constant<int, 1>());
      }
    } else if (copier == Traits::kFillThreads) {
      fetch_weights<Traits>(p, s);
    }
  } else {
    device::registers_increase<Traits::kConsumerRegisters>();
    device::wait_for_previous_grid();  // which lays out the weights; the halo does not need it
    constexpr bool kQuick = Traits::kStorers && Traits::kProducts == 1;
    using Quick =
        std::conditional_t<(Traits::kWindowTaps > 0), DenseConsumerWindows<Traits>, DenseConsumerTf32<Traits>>;
    std::conditional_t<kQuick, Quick, DenseConsumer<Traits>> consumer(p, s);
    if constexpr (Traits::kStorers) {
      uint32_t parity = 1;
      for (DenseWalk<Traits> at(p); at.more(p); at.next(p), parity ^= 1) {
        consumer.accumulate(at.item(p));
        device::barrier_wait(s.results_empty(p), parity);
        hand_over<Traits>(s.turn, consumer.sum);
        consumer.release(s.results_full(p));
      }
    } else {
      DenseStore<Traits> store(p, plain, s);
      for (DenseWalk<Traits> at(p); at.more(p); at.next(p)) {
        const DenseItem item = at.item(p);
        store.describe_rows(item);
        consumer.accumulate(item);
        store.all(item, consumer.sum);
      }
    }
  }
  if (Traits::kPairs && p.pair != 0) device::cluster_sync();  // the other block may still write here
}

}  // namespace halo::cuda::conv
