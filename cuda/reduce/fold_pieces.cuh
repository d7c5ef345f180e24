// Folds of runs in pieces that the copy engine brings (device/ring.cuh), a warp each. A block ends with its few pieces
// and another takes its place: some warps fold while others wait for memory, and no multiprocessor is left behind with
// a share of its own. Only Hopper has the copy engine.
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

struct PieceFold {
  static constexpr int kWarps = 4;   ///< of a block
  static constexpr int kBlocks = 8;  ///< of a multiprocessor, at least
  static constexpr int kLine = 128;  ///< bytes that memory is read by
  /// Of all operands, at most. Of 4 KB, setting out and combining would take longer than what lies between.
  static constexpr int64_t kPieceBytes = 6400;

  int64_t parts = 0, pieces = 0;              ///< pieces of an output, and of all
  int64_t run = 0, run_stride = 0, span = 0;  ///< elements of a run; from run to run; up to the last one of all
  bool runs_outside = false;  ///< the pieces in the order of memory: runs, outputs, pieces of a run; or outputs first
  Divide by_each{}, by_inner{};  ///< pieces of a run; outputs, or runs of an output
  int piece = 0;                 ///< elements of a piece, whole packs
  int slot_bytes = 0;            ///< of shared memory for each operand's piece

  template <class T>
  static std::optional<PieceFold> of(const StridedLoop<1>& outer, const StridedLoop<1>& inner, int operands,
                                     const DeviceTraits& traits) {
    constexpr int64_t kBytes = sizeof(T), kShortRun = 4096, kFewBytes = 8 << 20, kMostParts = 4096;
    const int64_t outputs = outer.numel(), run = inner.shape.back(), runs = inner.numel() / run;
    const int64_t each = (run * kBytes * operands + kPieceBytes - 1) / kPieceBytes, size = kWide<T>;
    PieceFold fold{.parts = runs * each, .pieces = outputs * runs * each, .run = run};
    if (!traits.is_hopper() || run * kBytes <= kShortRun || outputs * runs * run * kBytes < kFewBytes ||
        fold.parts > kMostParts) {
      return std::nullopt;
    }
    fold.piece = static_cast<int>((run / each + size) / size * size);
    if (run < (each - 1) * fold.piece + 2 * size) return std::nullopt;
    fold.run_stride = inner.shape.rank() == 2 ? inner.strides[0][0] : 0;
    fold.runs_outside = outputs > 1 && fold.run_stride > outer.strides[0].back();
    fold.by_each = Divide(each, fold.pieces);
    fold.by_inner = Divide(fold.runs_outside ? outputs : runs, fold.pieces);
    fold.span = 1;
    for (const StridedLoop<1>* loop : {&outer, &inner}) {
      for (int axis = 0; axis < loop->shape.rank(); ++axis) {
        fold.span += (loop->shape[axis] - 1) * std::max<int64_t>(0, loop->strides[0][axis]);
      }
    }
    // A piece begins anywhere within a line and ends anywhere within a granule, and a pack is read with the one behind
    // it.
    const int64_t bytes = kBytes * (fold.piece + 2 * size) + kLine;
    fold.slot_bytes = static_cast<int>((bytes + kLine - 1) / kLine * kLine);
    return fold;
  }
  unsigned blocks() const { return static_cast<unsigned>((pieces + kWarps - 1) / kWarps); }
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

/// partial[output][part of it]. kPacks: all operands begin at granules.
template <class F, bool kPacks>
__global__ void __launch_bounds__(PieceFold::kWarps * 32, PieceFold::kBlocks)
    fold_pieces_kernel(const __grid_constant__ PieceFold fold, const __grid_constant__ Walk<1> kept,
                       const __grid_constant__ F f, typename F::Acc* partial) {
#if __CUDA_ARCH__ >= 900
  using T = std::remove_cvref_t<decltype(*f.x)>;
  using Acc = typename F::Acc;
  constexpr bool kTwo = requires { f.y; };
  constexpr int kOperands = kTwo ? 2 : 1, kBatch = 4 / kOperands, kLanes = 32, kSize = kWide<T>;
  extern __shared__ __align__(128) unsigned char memory[];  // [warps][operands]
  __shared__ uint64_t barriers[PieceFold::kWarps];
  device::release_next_grid();
  const int lane = static_cast<int>(threadIdx.x) % kLanes, warp = static_cast<int>(threadIdx.x) / kLanes;
  const int64_t number = int64_t{blockIdx.x} * PieceFold::kWarps + warp;
  if (number >= fold.pieces) return;
  int64_t rest = number;
  const int64_t of_run = fold.by_each.split(rest), inside = fold.by_inner.split(rest);
  const int64_t output = fold.runs_outside ? inside : rest, run_number = fold.runs_outside ? rest : inside;
  int64_t start[1];
  kept.locate(output, start);
  const int64_t row = start[0] + run_number * fold.run_stride, row_end = row + fold.run;
  // Pieces begin at whole packs, but for the first.
  const int64_t cut = (row & ~int64_t{kSize - 1}) + of_run * fold.piece;
  const auto run =
      RunPiece::of<kSize>(of_run == 0 ? row : cut, of_run + 1 == fold.by_each.divisor ? row_end : cut + fold.piece);
  const auto full = static_cast<uint32_t>(__cvta_generic_to_shared(barriers + warp));
  const T* operands[kOperands] = {f.x};
  if constexpr (kTwo) operands[1] = f.y;
  // At the same place within a line as in memory, or a copy would read most lines twice.
  const auto slot = [&](int k) {
    const auto lead = static_cast<int>(reinterpret_cast<uintptr_t>(operands[k] + run.begin) % PieceFold::kLine);
    return memory + (warp * kOperands + k) * fold.slot_bytes + lead / device::kGranule * device::kGranule;
  };
  if (lane == 0) {
    device::barrier_init(full, 1);
    device::barrier_init_fence();
    RingCopy<T> copies[kOperands];
    uint32_t bytes = 0;
#pragma unroll
    for (int k = 0; k < kOperands; ++k) {
      copies[k] = RingCopy<T>(operands[k], run.begin, run.tail_at + (run.edges - run.head), fold.span);
      bytes += copies[k].bytes;
    }
    device::barrier_expect(full, bytes);
#pragma unroll
    for (int k = 0; k < kOperands; ++k) {
      copies[k].start(slot(k), full);
      copies[k].copy_rest(slot(k));
    }
  }
  Acc acc = f.start(output, start[0]);
  __syncwarp();
  device::barrier_wait(full, 0);
  const auto staged = [&](int k) { return staged_piece(slot(k), operands[k], run.begin); };
  const auto batch = [&](int begin, const auto&... packs) {
    const int left = run.packs - begin - lane;
    add_packs(f, acc, run.packs_at + int64_t{begin + lane} * kSize, kLanes * kSize,
              min((left + kLanes - 1) / kLanes, kBatch), packs.at...);
  };
  const auto edge = [&](int64_t at, auto... values) { f.add(acc, at, values...); };
  if constexpr (kTwo) {
    each_batch_of_piece<kPacks, kBatch>(run, batch, edge, staged(0), staged(1));
  } else {
    each_batch_of_piece<kPacks, kBatch>(run, batch, edge, staged(0));
  }
  acc = combine_neighbours(kLanes, acc, static_cast<Acc*>(nullptr), f);
  if (lane == 0) partial[output * fold.parts + run_number * fold.by_each.divisor + of_run] = acc;
#endif
}

}  // namespace halo::cuda
