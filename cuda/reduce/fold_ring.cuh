// Folds of runs that the copy engine brings in pieces (device/ring.cuh), each folded by a warp: blocks that stay, so
// that memory is read without a pause, and in order. Only Hopper has it.
//
// For runs longer than kShortRun of outputs that several blocks share; others are left to fold_runs.cuh. Pieces are cut
// by the sizes alone, and a second kernel folds those of an output in order.
#pragma once

#include <halo/core/strided.h>

#include <algorithm>
#include <optional>

#include "../device/grid_order.cuh"
#include "../device/ring.cuh"
#include "../device/teams.cuh"
#include "../device/walk.cuh"
#include "../launch.h"
#include "../runtime/traits.h"

namespace halo::cuda {

struct RingFold {
  static constexpr int kMostWarps = 12;  ///< of a block that fold
  /// Of all operands, at most. Of 4 KB, setting out and combining would take longer than what lies between.
  static constexpr int64_t kPieceBytes = 6400;

  int64_t parts = 0, pieces = 0;              ///< pieces of an output, and of all
  int64_t run = 0, run_stride = 0, span = 0;  ///< elements of a run; from run to run; up to the last one of all
  bool runs_outside = false;  ///< the pieces in the order of memory: runs, outputs, pieces of a run; or outputs first
  Divide by_each{}, by_inner{};              ///< pieces of a run; outputs, or runs of an output
  int piece = 0;                             ///< elements of a piece, whole packs
  int warps = 0, slots = 0, slot_bytes = 0;  ///< warps that fold, each with as many slots of its own
  unsigned blocks = 1;

  /// `head`: bytes that a fold keeps of a piece beside its elements.
  template <class T>
  static std::optional<RingFold> of(const StridedLoop<1>& outer, const StridedLoop<1>& inner, int operands,
                                    std::size_t head, const DeviceTraits& traits) {
    constexpr int64_t kBytes = sizeof(T), kShortRun = 4096, kFewBytes = 8 << 20, kMostParts = 4096;
    const int64_t outputs = outer.numel(), run = inner.shape.back(), runs = inner.numel() / run;
    const int64_t each = (run * kBytes * operands + kPieceBytes - 1) / kPieceBytes, size = kWide<T>;
    RingFold ring{.parts = runs * each, .pieces = outputs * runs * each, .run = run};
    if (!traits.is_hopper() || run * kBytes <= kShortRun || outputs * runs * run * kBytes < kFewBytes ||
        ring.parts > kMostParts) {
      return std::nullopt;
    }
    ring.piece = static_cast<int>((run / each + size) / size * size);
    if (run < (each - 1) * ring.piece + 2 * size) return std::nullopt;
    ring.run_stride = inner.shape.rank() == 2 ? inner.strides[0][0] : 0;
    ring.runs_outside = outputs > 1 && ring.run_stride > outer.strides[0].back();
    ring.by_each = Divide(each, ring.pieces);
    ring.by_inner = Divide(ring.runs_outside ? outputs : runs, ring.pieces);
    ring.span = 1;
    for (const StridedLoop<1>* loop : {&outer, &inner}) {
      for (int axis = 0; axis < loop->shape.rank(); ++axis) {
        ring.span += (loop->shape[axis] - 1) * std::max<int64_t>(0, loop->strides[0][axis]);
      }
    }
    // A piece begins and ends anywhere within a granule, and a pack is read with the one behind it.
    ring.slot_bytes = operands * static_cast<int>(kBytes * (ring.piece + 3 * size));
    // Two blocks side by side, with room for one of the kernel that waits for them.
    const int64_t room = (static_cast<int64_t>(traits.block_memory) - 1024) / 2 - 4096;
    const auto of_slot = static_cast<int64_t>(ring.slot_bytes + head + 2 * sizeof(uint64_t));
    const auto slots = static_cast<int>(room / of_slot);
    // Slots that warps shared would let one wait for the turn after the next.
    const int own = std::max(2, (slots + kMostWarps - 1) / kMostWarps);
    ring.warps = slots / own;
    ring.slots = own * ring.warps;
    ring.blocks = static_cast<unsigned>(std::min<int64_t>(int64_t{traits.multiprocessors} * 2, ring.pieces));
    if (ring.warps == 0) return std::nullopt;
    return ring;
  }
  unsigned threads() const { return static_cast<unsigned>(warps + 1) * 32; }  // with the warp that copies
  std::size_t memory(std::size_t head) const {
    return static_cast<std::size_t>(slots) * (static_cast<std::size_t>(slot_bytes) + head + 2 * sizeof(uint64_t));
  }
};

template <class F>
using PackOf = Pack<std::remove_cvref_t<decltype(*std::declval<F>().x)>,
                    kWide<std::remove_cvref_t<decltype(*std::declval<F>().x)>>>;
template <class F>
inline constexpr bool kAddsSeveralPacks = requires(const F& f, typename F::Acc& acc, const PackOf<F> (&packs)[1]) {
  f.add_packs(acc, 1, packs);
};
template <class F>
inline constexpr bool kAddsPacks = requires {
  &F::add_pack;
};

/// Adds `count` packs, `step` elements apart, the first of which is at `at`.
template <class F, class Packed, int N, class... More>
__device__ __forceinline__ void add_packs(const F& f, typename F::Acc& acc, int64_t at, int64_t step, int count,
                                          const Packed (&packs)[N], const More&... more) {
  if constexpr (kAddsSeveralPacks<F>) {
    f.add_packs(acc, count, packs);
  } else {
#pragma unroll
    for (int u = 0; u < N; ++u) {
      if (u >= count) break;
      if constexpr (kAddsPacks<F>) {
        f.add_pack(acc, packs[u], more[u]...);
      } else {
#pragma unroll
        for (int k = 0; k < kWide<std::remove_cvref_t<decltype(*f.x)>>; ++k) {
          f.add(acc, at + u * step + k, packs[u].at[k], more[u].at[k]...);
        }
      }
    }
  }
}

/// What a warp needs of a piece: where it is, what its fold begins with, and where its result goes.
template <class F>
struct RingHead {
  RunPiece run;
  int64_t result;
  typename F::Acc acc;
};

/// One warp: fills the ring with every piece of the block. A lane finds where a piece is, all wait for its slot.
template <class F, class T, int kOperands>
__device__ __forceinline__ void fill_ring(const RingFold& ring, const Walk<1>& kept, const F& f,
                                          const T* const (&operands)[kOperands], RingHead<F>* heads,
                                          unsigned char* memory, uint32_t full, uint32_t empty) {
  constexpr int kLanes = 32, kSize = kWide<T>;
  const int lane = static_cast<int>(threadIdx.x) % kLanes, pitch = ring.slot_bytes / kOperands;
  const auto start_copies = [&](int at, const RingCopy<T>(&copies)[kOperands], uint32_t bytes) {
    device::barrier_expect_more(full + at * 8, bytes);
#pragma unroll
    for (int k = 0; k < kOperands; ++k) copies[k].start(memory + at * ring.slot_bytes + k * pitch, full + at * 8);
  };
  RingSlot slot;
#pragma unroll 1
  for (int64_t begin = blockIdx.x; begin < ring.pieces; begin += int64_t{kLanes} * gridDim.x) {
    const int64_t mine = begin + int64_t{lane} * gridDim.x;
    int64_t rest = min(mine, ring.pieces - 1);
    const int64_t of_run = ring.by_each.split(rest), inside = ring.by_inner.split(rest);
    const int64_t output = ring.runs_outside ? inside : rest, number = ring.runs_outside ? rest : inside;
    int64_t start[1];
    kept.locate(output, start);
    const int64_t row = start[0] + number * ring.run_stride, row_end = row + ring.run;
    // Pieces begin at whole packs, but for the first.
    const int64_t cut = (row & ~int64_t{kSize - 1}) + of_run * ring.piece;
    const int64_t first = of_run == 0 ? row : cut;
    const int64_t end = of_run + 1 == ring.by_each.divisor ? row_end : cut + ring.piece;
    RingCopy<T> copies[kOperands];
    uint32_t bytes = 0;
#pragma unroll
    for (int k = 0; k < kOperands; ++k) {
      copies[k] = RingCopy<T>(operands[k], first, end, ring.span);
      bytes += copies[k].bytes;
    }
    // Those of the ring's first turn set out at once.
    const bool started = begin == blockIdx.x && lane < ring.slots && mine < ring.pieces;
    if (started) start_copies(lane, copies, bytes);
    const RingHead<F> head{RunPiece::of<kSize>(first, end),
                           output * ring.parts + number * ring.by_each.divisor + of_run, f.start(output, start[0])};
    const auto count =
        static_cast<int>(min(int64_t{kLanes}, (ring.pieces - begin + int64_t{gridDim.x} - 1) / int64_t{gridDim.x}));
#pragma unroll 1
    for (int j = 0; j < count; ++j, slot = slot.ahead(1, ring.slots)) {
      device::barrier_wait(empty + slot.at * 8, slot.parity ^ 1);
      if (lane != j) continue;
      heads[slot.at] = head;
#pragma unroll
      for (int k = 0; k < kOperands; ++k) copies[k].copy_rest(memory + slot.at * ring.slot_bytes + k * pitch);
      if (!started) start_copies(slot.at, copies, bytes);
      device::barrier_arrive(full + slot.at * 8);
    }
  }
}

/// partial[output][part of it]. kPacks: all operands begin at granules.
template <class F, bool kPacks>
__global__ void __launch_bounds__((RingFold::kMostWarps + 1) * 32, 2)
    fold_ring_kernel(const __grid_constant__ RingFold ring, const __grid_constant__ Walk<1> kept,
                     const __grid_constant__ F f, typename F::Acc* partial) {
#if __CUDA_ARCH__ >= 900
  using T = std::remove_cvref_t<decltype(*f.x)>;
  using Acc = typename F::Acc;
  constexpr bool kTwo = requires { f.y; };
  constexpr int kOperands = kTwo ? 2 : 1, kBatch = 4 / kOperands, kLanes = 32;
  extern __shared__ __align__(16) unsigned char memory[];  // [slots][operands], heads, barriers: full, empty
  auto* const heads = reinterpret_cast<RingHead<F>*>(memory + ring.slots * ring.slot_bytes);
  const auto full = static_cast<uint32_t>(__cvta_generic_to_shared(heads + ring.slots)), empty = full + ring.slots * 8;
  const int lane = static_cast<int>(threadIdx.x) % kLanes, warp = static_cast<int>(threadIdx.x) / kLanes;
  if (static_cast<int>(threadIdx.x) < 2 * ring.slots) {
    device::barrier_init(full + threadIdx.x * 8, 1);
    device::barrier_init_fence();
  }
  __syncthreads();
  device::release_next_grid();
  const T* operands[kOperands] = {f.x};
  if constexpr (kOperands == 2) operands[1] = f.y;
  if (warp == ring.warps) return fill_ring(ring, kept, f, operands, heads, memory, full, empty);
  RingSlot slot = RingSlot{}.ahead(warp, ring.slots);
#pragma unroll 1
  for (int64_t number = blockIdx.x + int64_t{warp} * gridDim.x; number < ring.pieces;
       number += int64_t{ring.warps} * gridDim.x, slot = slot.ahead(ring.warps, ring.slots)) {
    device::barrier_wait(full + slot.at * 8, slot.parity);
    const RunPiece run = heads[slot.at].run;
    const int64_t result = heads[slot.at].result;
    Acc acc = heads[slot.at].acc;
    const auto staged = [&](int k) {
      return staged_piece(memory + slot.at * ring.slot_bytes + k * (ring.slot_bytes / kOperands), operands[k],
                          run.begin);
    };
    const auto batch = [&](int begin, const auto&... packs) {
      const int left = run.packs - begin - lane;
      add_packs(f, acc, run.packs_at + int64_t{begin + lane} * kWide<T>, kLanes * kWide<T>,
                min((left + kLanes - 1) / kLanes, kBatch), packs.at...);
    };
    const auto edge = [&](int64_t at, auto... values) { f.add(acc, at, values...); };
    if constexpr (kOperands == 1) {
      each_batch_of_piece<kPacks, kBatch>(run, batch, edge, staged(0));
    } else {
      each_batch_of_piece<kPacks, kBatch>(run, batch, edge, staged(0), staged(1));
    }
    __syncwarp();
    if (lane == 0) device::barrier_arrive(empty + slot.at * 8);
    acc = combine_neighbours(kLanes, acc, static_cast<Acc*>(nullptr), f);
    if (lane == 0) partial[result] = acc;
  }
#endif
}

}  // namespace halo::cuda
