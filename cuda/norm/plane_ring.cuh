// The march through rows of planes (plane_ring.h). One thread of a block has the copy engine fill the ring, as far
// ahead as there are slots; the other warps sum over their pieces as they arrive, tell each other by st.async, and
// write. PTX:
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-st-async
#pragma once

#include "../device/ring.cuh"
#include "../device/widen.cuh"
#include "../launch.h"
#include "plane_ring.h"

namespace halo::cuda {

/// Writes to what lies at the place of `slot`, in shared memory, in block `rank` of the cluster, and tells the barrier
/// at the place of `barrier` there. Only for grids that were launched in clusters.
__device__ __forceinline__ void store_in_block(uint32_t rank, uint32_t slot, double value, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f64 [%0], %1, [%2];" ::"r"(
                   device::barrier_of_block(slot, rank)),
               "d"(value), "r"(device::barrier_of_block(barrier, rank))
               : "memory");
}

/// Piece `number` of a row.
template <class T>
struct RingPiece {
  static constexpr int kSize = kWide<T>;
  int64_t plane;  ///< of all rows
  int channel, part_of_plane;
  RunPiece run;

  RingPiece() = default;
  __device__ RingPiece(const RingPlan& plan, int64_t row, int number) {
    uint32_t rest, group;
    const auto of_row = static_cast<int>(plan.by_pieces.divide(static_cast<uint32_t>(number), rest));
    plan.by_groups.divide(static_cast<uint32_t>(row), group);
    part_of_plane = static_cast<int>(rest);
    plane = row * plan.planes + of_row;
    channel = static_cast<int>(group) * plan.planes + of_row;
    const int64_t begin = plane * plan.positions, end = begin + plan.positions;
    const int64_t cut = (begin & ~int64_t{kSize - 1}) + part_of_plane * plan.piece;
    run =
        RunPiece::of<kSize>(part_of_plane == 0 ? begin : cut, part_of_plane + 1 == plan.each ? end : cut + plan.piece);
  }
  __device__ int64_t end() const { return run.tail_at + run.edges - run.head; }
  /// The same elements with packs that lie at granules where element 0 lies `lead` elements behind one.
  __device__ RunPiece behind(int lead) const { return RunPiece::of<kSize>(run.begin, end(), lead); }
};

/// Operand k's place in a slot, where elements from `begin` on set out: at the same place within a line as in memory,
/// or the copy engine would read most lines twice.
template <class F>
__device__ __forceinline__ unsigned char* place_in_slot(const RingPlan& plan, const F& f, unsigned char* memory, int at,
                                                        int k, int64_t begin) {
  const auto lead = static_cast<int>(reinterpret_cast<uintptr_t>(f.operand(k) + begin) % RingPlan::kLine);
  return memory + at * plan.slot_bytes + k * (plan.slot_bytes / F::kOperands) +
         lead / device::kGranule * device::kGranule;
}

/// One warp: fills the ring with the block's pieces of the cluster's rows. A lane finds where a piece is, all wait for
/// its slot.
template <class F>
__device__ __forceinline__ void fill_ring(const RingPlan& plan, const F& f, int64_t first_row, int64_t step, int first,
                                          int own, unsigned char* memory, uint32_t full, uint32_t empty) {
  using T = typename F::Element;
  constexpr int kOperands = F::kOperands, kLanes = 32;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  RingSlot slot;
  int fresh = plan.slots;  // that nobody has to leave first
  for (int64_t row = first_row; row < plan.rows; row += step) {
#pragma unroll 1
    for (int begin = 0; begin < own; begin += kLanes) {
      const RingPiece<T> piece(plan, row, first + min(begin + lane, own - 1));
      RingCopy<T> copies[kOperands];
      uint32_t bytes = 0;
#pragma unroll
      for (int k = 0; k < kOperands; ++k) {
        copies[k] = RingCopy<T>(f.operand(k), piece.run.begin, piece.end(), plan.rows * plan.length);
        bytes += copies[k].bytes;
      }
      const auto start = [&](int at) {
        const auto to = [&](int k) { return place_in_slot(plan, f, memory, at, k, piece.run.begin); };
#pragma unroll
        for (int k = 0; k < kOperands; ++k) copies[k].copy_rest(to(k));
        device::barrier_expect(full + at * 8, bytes);
#pragma unroll
        for (int k = 0; k < kOperands; ++k) copies[k].start(to(k), full + at * 8);
      };
      const int count = min(kLanes, own - begin);
      if (count <= fresh) {
        fresh -= count;
        if (lane < count) start(slot.ahead(lane, plan.slots).at);
        slot = slot.ahead(count, plan.slots);
        continue;
      }
      fresh = 0;
#pragma unroll 1
      for (int j = 0; j < count; ++j, slot = slot.ahead(1, plan.slots)) {
        device::barrier_wait(empty + slot.at * 8, slot.parity ^ 1);
        if (lane == j) start(slot.at);
      }
    }
  }
}

/// F has
///   Element, kOperands, kSums, operand(k)
///   Row row(row)                                      what is needed of a row, loaded ahead of its turn
///   void sum<kPacks>(row, piece, sums, values...)     sums over a piece, for all lanes of its warp
///   Result result(number, row, sums, write)           from the sums of the whole row; one thread of all has to `write`
///   void store<kPacks>(piece, run, result, values...) writes it; packs of `run` are granules of what is written
/// kPacks: all operands begin at granules. Sums are of the same packs of elements if not, so that bits do not depend on
/// it.
template <class F, bool kPacks>
__global__ void __launch_bounds__((RingPlan::kMostWarps + 1) * 32, 2)
    plane_ring_kernel(const __grid_constant__ RingPlan plan, const __grid_constant__ F f) {
  using T = typename F::Element;
  constexpr int kSums = F::kSums, kOperands = F::kOperands;
  extern __shared__ __align__(128) unsigned char memory[];  // [slots][operands], sums of pieces in turn, barriers
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int part = static_cast<int>(blockIdx.x) % plan.parts, first = plan.first(part),
            own = plan.first(part + 1) - first;
  const int64_t cluster = static_cast<int>(blockIdx.x) / plan.parts, step = plan.clusters;
  double* const all_sums = reinterpret_cast<double*>(memory + plan.slots * plan.slot_bytes);  // [2][pieces][kSums]
  const uint32_t known = static_cast<uint32_t>(__cvta_generic_to_shared(all_sums + 2 * plan.pieces * kSums)),
                 full = known + 16, empty = full + plan.slots * 8;
  for (int barrier = static_cast<int>(threadIdx.x); barrier < 2 + 2 * plan.slots;
       barrier += static_cast<int>(blockDim.x)) {
    device::barrier_init(known + barrier * 8, barrier < 2 && plan.parts == 1 ? plan.pieces : 1);
    device::barrier_init_fence();
  }
  if (plan.parts > 1) {
    device::cluster_sync();
  } else {
    __syncthreads();
  }
  if (warp == plan.warps) {
    return fill_ring(plan, f, cluster, step, first, own, memory, full, empty);
  }
  if (warp >= own) return;  // has no piece: nobody would wait for it
  const auto staged = [&](const RingSlot& slot, const RingPiece<T>& piece, int k) {
    return staged_piece(place_in_slot(plan, f, memory, slot.at, k, piece.run.begin), f.operand(k), piece.run.begin);
  };
  RingSlot base;
  auto next = f.row(cluster);
  uint32_t turn = 0;
#pragma unroll 1
  for (int64_t row = cluster; row < plan.rows; row += step, base = base.ahead(own, plan.slots), ++turn) {
    const auto of_row = next;
    if (row + step < plan.rows) next = f.row(row + step);
    // Whoever sends what is for this turn has had all of the last one, which none sends before it has read those two
    // turns ago: two places are enough.
    const uint32_t here = turn % 2, known_here = known + here * 8;
    if (plan.parts > 1 && threadIdx.x == 0) {
      device::barrier_expect(known_here, static_cast<uint32_t>(plan.pieces) * kSums * 8);
    }
    RingPiece<T> piece;
#pragma unroll 1
    for (int j = warp; j < own; j += plan.warps) {
      const RingSlot slot = base.ahead(j, plan.slots);
      piece = RingPiece<T>(plan, row, first + j);
      double sums[kSums];
      device::barrier_wait(full + slot.at * 8, slot.parity);
      if constexpr (kOperands == 1) {
        f.template sum<kPacks>(of_row, piece, sums, staged(slot, piece, 0));
      } else {
        f.template sum<kPacks>(of_row, piece, sums, staged(slot, piece, 0), staged(slot, piece, 1));
      }
      double* const place = all_sums + (here * plan.pieces + first + j) * kSums;
      if (plan.parts == 1) {
        if (lane == 0) {
#pragma unroll
          for (int k = 0; k < kSums; ++k) place[k] = sums[k];
          device::barrier_arrive(known_here);
        }
      } else if (lane < kSums * plan.parts) {  // a lane a sum and block
        const int k = lane % kSums;
        double value = sums[0];
#pragma unroll
        for (int other = 1; other < kSums; ++other) value = k == other ? sums[other] : value;
        store_in_block(static_cast<uint32_t>(lane / kSums), static_cast<uint32_t>(__cvta_generic_to_shared(place + k)),
                       value, known_here);
      }
    }
    device::barrier_wait(known_here, turn / 2 % 2);
    double totals[kSums] = {};
#pragma unroll 1
    for (int i = lane; i < plan.pieces; i += 32) {
#pragma unroll
      for (int k = 0; k < kSums; ++k) totals[k] += all_sums[(here * plan.pieces + i) * kSums + k];
    }
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) {
#pragma unroll
      for (double& total : totals) total += __shfl_xor_sync(~0u, total, mask);
    }
    const auto result = f.result(row, of_row, totals, part == 0 && threadIdx.x == 0);
#pragma unroll 1
    for (int j = warp; j < own; j += plan.warps) {
      const RingSlot slot = base.ahead(j, plan.slots);
      if (own > plan.warps) piece = RingPiece<T>(plan, row, first + j);
      const RunPiece run = kPacks ? piece.run : piece.behind(plan.lead);
      if constexpr (kOperands == 1) {
        f.template store<kPacks>(piece, run, result, staged(slot, piece, 0));
      } else {
        f.template store<kPacks>(piece, run, result, staged(slot, piece, 0), staged(slot, piece, 1));
      }
      __syncwarp();
      if (lane == 0) device::barrier_arrive(empty + slot.at * 8);
    }
  }
}

/// As many packs as lie before `at` in its line of memory, as a negative number: stores of a warp from there are whole
/// lines.
template <class T>
__device__ __forceinline__ int packs_into_line(const T* at) {
  return -static_cast<int>(reinterpret_cast<uintptr_t>(at) % 128 / 16);
}

/// visit(number of the first element, pack of each) for the lane's packs of a piece, and packs of one for the elements
/// outside them.
template <bool kPacks, class T, class Visit, class... More>
__device__ __forceinline__ void each_pack_of_piece(const RunPiece& run, int first, const Visit& visit, const T* values,
                                                   const More*... more) {
  // Packs between granules take twice the registers.
  constexpr int kBatch = (kPacks ? 4 : 2) / (1 + static_cast<int>(sizeof...(More))), kLanes = 32;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  each_batch_from<kPacks, kBatch>(
      first, run,
      [&](int begin, const auto&... batch) {
        // The same for all lanes, so that only the last batch asks which packs there are.
        const bool whole = begin >= 0 && begin + kLanes * kBatch <= run.packs;
#pragma unroll
        for (int u = 0; u < kBatch; ++u) {
          const int pack = begin + u * kLanes + lane;
          if (whole || static_cast<unsigned>(pack) < static_cast<unsigned>(run.packs))
            visit(run.packs_at + pack * kWide<T>, batch.at[u]...);
        }
      },
      [&](int64_t i, auto... elements) { visit(i, Pack<T, 1>{elements}...); }, values, more...);
}

/// Clusters that the GPU has room for at once: others would begin when the first have done all their rows.
template <class Kernel>
unsigned clusters_at_once(const char* name, Kernel* kernel, const RingPlan& plan, std::size_t bytes) {
  allow_shared_memory(reinterpret_cast<const void*>(kernel), bytes, name);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(plan.parts), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = plan.clusters * plan.parts;
  config.blockDim = plan.threads();
  config.dynamicSmemBytes = bytes;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int count = 0;
  check(cudaOccupancyMaxActiveClusters(&count, kernel, &config), name);
  return std::clamp(static_cast<unsigned>(count), 1u, plan.clusters);
}

/// `out`: what is written.
template <class F, class T>
void march_planes(const char* name, RingPlan plan, const F& f, cudaStream_t stream, const T* out) {
  plan.lead = static_cast<int>(reinterpret_cast<uintptr_t>(out) % device::kGranule / sizeof(T));
  bool packs = plan.lead == 0;
  for (int k = 0; k < F::kOperands; ++k) packs = packs && is_aligned<T, kWide<T>>(f.operand(k));
  auto* const kernel = packs ? plane_ring_kernel<F, true> : plane_ring_kernel<F, false>;
  const auto bytes = static_cast<std::size_t>(plan.memory(plan.slots));
  if (plan.parts > 1) plan.clusters = clusters_at_once(name, kernel, plan, bytes);
  launch_with({.cluster = static_cast<unsigned>(plan.parts)}, name, kernel, plan.clusters * plan.parts, plan.threads(),
              bytes, stream, plan, f);
}

}  // namespace halo::cuda
