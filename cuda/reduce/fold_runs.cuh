// Folds over any axes of a tensor of any strides, or of two alike, which read runs in batches: the machinery of sums,
// extremes, variances and norms.
//
// A team of threads folds its share of an output's elements in order, and a fixed tree combines the team
// (device/teams.cuh). Where few outputs have many elements, several blocks share one output and a second kernel folds
// their results in order. On Hopper, long runs are folded by pieces (fold_pieces.cuh). How the work is divided depends
// on the sizes alone, and on that, so the bits do not depend on where operands begin, the stream or the run.
//
// A fold F is a trivially copyable struct with
//   using Acc                                              trivial
//   const T* x                                             the operand; there may be another of the same strides, `y`
//   Acc start(int64_t output, int64_t at) const            before any element; `at`: the offset of the output's first
//   void add(Acc& acc, int64_t at, T x) const              one more; add(acc, at, x, y) where there are two
//   void add_pack(Acc& acc, const Pack<T, kWide<T>>& x) const     if it has it: neighbours at once
//   void add_packs(Acc& acc, int count, const Pack<T, kWide<T>> (&x)[N]) const     if it has it instead: the first
//                                                          `count` of several packs at once
//   Acc operator()(const Acc& a, const Acc& b) const       combines
//   void write(int64_t output, const Acc& acc) const
#pragma once

#include <halo/core/storage.h>
#include <halo/core/strided.h>

#include <algorithm>
#include <array>
#include <utility>

#include "../device/async_copy.cuh"
#include "../device/grid_order.cuh"
#include "../device/run_piece.cuh"
#include "../device/shares.h"
#include "../device/teams.cuh"
#include "../device/walk.cuh"
#include "../launch.h"
#include "../runtime/device.h"
#include "fold_pieces.cuh"

namespace halo::cuda {

/// How the work of one fold is divided.
struct RunDivision {
  int64_t outputs, count;  ///< results, and elements folded into each
  Teams teams;
  int64_t parts;    ///< blocks that share an output
  Shares shares{};  ///< of its elements, or pieces
  int64_t run = 0;  ///< elements that lie one behind the other (the whole of the last axis); 0: do not read by runs
  int64_t run_stride = 0;  ///< from run to run
  int64_t piece = 0;       ///< runs are cut into pieces of so many elements, but for the last
  Divide pieces{};         ///< by the pieces of a run
  int64_t all_pieces = 0;  ///< of an output
  int piece_depth = 1;     ///< threads of a team on one piece

  __device__ int64_t begin() const { return shares.begin(blockIdx.y); }
  __device__ int64_t end() const { return shares.begin(blockIdx.y + 1); }
  /// Of the threads that share a piece.
  __device__ int rank_in_piece() const { return teams.rank() % piece_depth; }
  /// Packs that a thread has of its next batch, with `left` packs from its first to the piece's end.
  template <int kBatch>
  __device__ int packs_of_batch(int left) const {
    int count = 0;
#pragma unroll
    for (int u = 0; u < kBatch; ++u) count += u * piece_depth < left ? 1 : 0;
    return count;
  }
};

/// Where a thread is in its share of runs: pack `pack` of a piece.
template <int kSize>
struct RunCursor {
  RunPiece piece;
  int64_t q;  ///< the piece's number
  int pack;

  /// Piece `at`, if there is one.
  __device__ __forceinline__ RunCursor(const RunDivision& work, int64_t start, int64_t at) : piece{}, q(at), pack(0) {
    if (!more(work)) return;
    int64_t r = q;
    const int64_t number = work.pieces.split(r), row = start + r * work.run_stride, row_end = row + work.run;
    // Pieces begin at whole packs, but for the first.
    const int64_t cut = (row & ~int64_t{kSize - 1}) + number * work.piece;
    piece =
        RunPiece::of<kSize>(number == 0 ? row : cut, number + 1 == work.pieces.divisor ? row_end : cut + work.piece);
    pack = work.rank_in_piece();
  }
  __device__ __forceinline__ bool more(const RunDivision& work) const { return q < work.end(); }
};

/// Packs that a thread has on their way, and as many that it works on: slots in shared memory that no other thread
/// uses.
struct RunSlots {
  static constexpr int kPacks = 4, kBytes = 16;
  static constexpr std::size_t kAll = std::size_t{2} * kPacks * kBytes * Teams::kThreads;
};
extern __shared__ __align__(16) unsigned char run_slots[];

/// each_of_share for runs of operands that begin at multiples of 16 bytes: visit_packs(offset, step, count, packs of
/// each) for up to a batch of packs that are `step` elements apart, and visit(offset, element of each) for the edges,
/// while the next packs are on their way.
template <class Visit, class VisitPacks, class T, class... More>
__device__ __forceinline__ void each_of_runs(const RunDivision& work, int64_t start, Visit visit,
                                             VisitPacks visit_packs, const T* x, const More*... more) {
  constexpr int kSize = kWide<T>, kOperands = 1 + static_cast<int>(sizeof...(More)),
                kBatch = RunSlots::kPacks / kOperands;
  using Packed = Pack<T, kSize>;
  using Cursor = RunCursor<kSize>;
  struct Edges {
    T at[kOperands];
  };
  const int rank = work.rank_in_piece(), depth = work.piece_depth, at_once = work.teams.depth / depth;
  const int64_t step = int64_t{depth} * kSize;
  Packed* const own = reinterpret_cast<Packed*>(run_slots) + threadIdx.x;
  const auto slot = [&](int stage, int operand, int u) {
    return own + ((stage * kOperands + operand) * kBatch + u) * Teams::kThreads;
  };
  const auto fetch = [&](const Cursor& cursor, int stage) {
    int operand = 0;
    const int left = cursor.piece.packs - cursor.pack;
    const auto copy = [&](const T* from) {
      from += cursor.piece.packs_at + int64_t{cursor.pack} * kSize;
      const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(slot(stage, operand, 0)));
#pragma unroll
      for (int u = 0; u < kBatch; ++u, from += step) {
        if (u * depth < left) {
          device::copy_async_16(to + u * Teams::kThreads * RunSlots::kBytes, from, RunSlots::kBytes);
        }
      }
      ++operand;
    };
    copy(x);
    (copy(more), ...);
    device::copy_async_commit();
  };
  // The edges of a piece set out with its first packs, and nobody waits for them before its last.
  const auto load_edges = [&](const RunPiece& piece) {
    const auto edge = [&](const T* from) { return rank < piece.edges ? from[piece.edge(rank)] : T{}; };
    return Edges{{edge(x), edge(more)...}};
  };
  Cursor next(work, start, work.begin() + work.teams.rank() / depth);
  Edges edges = load_edges(next.piece);
  fetch(next, 0);
  for (int stage = 0; next.more(work); stage ^= 1) {
    const Cursor now = next;
    if (now.pack + kBatch * depth >= now.piece.packs) {
      if (rank < now.piece.edges) {
        if constexpr (kOperands == 1) {
          visit(now.piece.edge(rank), edges.at[0]);
        } else {
          visit(now.piece.edge(rank), edges.at[0], edges.at[1]);
        }
#pragma unroll 1
        for (int i = rank + depth; i < now.piece.edges; i += depth) {
          visit(now.piece.edge(i), x[now.piece.edge(i)], more[now.piece.edge(i)]...);
        }
      }
      next = Cursor(work, start, now.q + at_once);
      edges = load_edges(next.piece);
    } else {
      next.pack += kBatch * depth;
    }
    fetch(next, stage ^ 1);
    device::copy_async_wait<1>();
    Packed packs[kOperands][kBatch];
#pragma unroll
    for (int k = 0; k < kOperands; ++k) {
#pragma unroll
      for (int u = 0; u < kBatch; ++u) packs[k][u] = *slot(stage, k, u);
    }
    const int count = work.packs_of_batch<kBatch>(now.piece.packs - now.pack);
    const int64_t at = now.piece.packs_at + int64_t{now.pack} * kSize;
    if constexpr (kOperands == 1) {
      visit_packs(at, step, count, packs[0]);
    } else {
      visit_packs(at, step, count, packs[0], packs[1]);
    }
  }
}

/// The same for operands that begin anywhere, in the same order.
template <class Visit, class VisitPacks, class T, class... More>
__device__ __forceinline__ void each_of_unaligned_runs(const RunDivision& work, int64_t start, Visit visit,
                                                       VisitPacks visit_packs, const T* x, const More*... more) {
  constexpr int kSize = kWide<T>;
  const int rank = work.rank_in_piece(), depth = work.piece_depth, at_once = work.teams.depth / depth;
  constexpr int kBatch = RunSlots::kPacks / (1 + static_cast<int>(sizeof...(More)));
  const int64_t step = int64_t{depth} * kSize;
#pragma unroll 1
  for (int64_t q = work.begin() + work.teams.rank() / depth; q < work.end(); q += at_once) {
    const RunPiece piece = RunCursor<kSize>(work, start, q).piece;
#pragma unroll 1
    for (int pack = rank, last = 0; last == 0; pack += kBatch * depth) {
      last = pack + kBatch * depth >= piece.packs;
      if (last != 0) {
#pragma unroll 1
        for (int i = rank; i < piece.edges; i += depth) visit(piece.edge(i), x[piece.edge(i)], more[piece.edge(i)]...);
      }
      if (piece.packs == 0) break;
      struct Packs {
        Pack<T, kSize> at[kBatch];
      };
      const auto load = [&](const T* from) {
        Packs packs;
#pragma unroll
        for (int u = 0; u < kBatch; ++u) {
          const int64_t number = min(pack + u * depth, piece.packs - 1);
          packs.at[u] = load_between_granules(from + piece.packs_at + number * kSize);
        }
        return packs;
      };
      const auto pass = [&](const auto&... packs) {
        visit_packs(piece.packs_at + int64_t{pack} * kSize, step, work.packs_of_batch<kBatch>(piece.packs - pack),
                    packs.at...);
      };
      pass(load(x), load(more)...);
    }
  }
}

/// visit(offset, element of each operand) for a thread's share of the elements of the output at `start`.
template <class Visit, class VisitPacks, class T, class... More>
__device__ __forceinline__ void each_of_share(const RunDivision& work, const Walk<1>& reduced, int64_t start,
                                              Visit visit, VisitPacks visit_packs, const T* x, const More*... more) {
  const int rank = work.teams.rank();
  if (work.run == 0 && reduced.rank == 1) {
    const int64_t step = reduced.stride[0][0], end = work.end();
#pragma unroll 8
    for (int64_t i = work.begin() + rank; i < end; i += work.teams.depth) {
      const int64_t at = start + i * step;
      visit(at, x[at], more[at]...);
    }
    return;
  }
  if (work.run == 0) {
    const int64_t end = work.end();
#pragma unroll 4
    for (int64_t i = work.begin() + rank; i < end; i += work.teams.depth) {
      int64_t at[1];
      reduced.locate(i, at);
      visit(start + at[0], x[start + at[0]], more[start + at[0]]...);
    }
    return;
  }
  each_of_unaligned_runs(work, start, visit, visit_packs, x, more...);
}

/// grid.x = output tiles, grid.y = parts. With several parts, partial[part * outputs + o] takes the results. kRuns:
/// aligned ones, in a kernel of their own, as the other roads take many registers.
template <class F, bool kRuns>
__global__ void __launch_bounds__(Teams::kThreads)
    fold_runs_kernel(const __grid_constant__ RunDivision work, const __grid_constant__ Walk<1> kept,
                     const __grid_constant__ Walk<1> reduced, const __grid_constant__ F f, typename F::Acc* partial) {
  using Acc = typename F::Acc;
  __shared__ Acc values[Teams::kThreads];
  const int64_t o = int64_t{blockIdx.x} * work.teams.lanes + work.teams.lane();
  Acc acc{};
  if (o < work.outputs) {
    int64_t start[1];
    kept.locate(o, start);
    acc = f.start(o, start[0]);
    const auto add = [&](int64_t at, auto... value) { f.add(acc, at, value...); };
    const auto add_several = [&](int64_t at, int64_t step, int count, const auto&... packs) {
      add_packs(f, acc, at, step, count, packs...);
    };
    const auto each = [&](const auto*... operands) {
      if constexpr (kRuns) {
        each_of_runs(work, start[0], add, add_several, operands...);
      } else {
        each_of_share(work, reduced, start[0], add, add_several, operands...);
      }
    };
    if constexpr (requires { f.y; }) {
      each(f.x, f.y);
    } else {
      each(f.x);
    }
  }
#if __CUDA_ARCH__ >= 900
  device::release_next_grid();
#endif
  acc = combine_team(work.teams, acc, values, f);
  if (work.teams.rank() != 0 || o >= work.outputs) return;
  if (work.parts == 1) {
    f.write(o, acc);
  } else {
    partial[blockIdx.y * work.outputs + o] = acc;
  }
}

/// A team folds the parts of an output; partial[part * part_step + output * output_step].
template <class F>
__global__ void __launch_bounds__(Teams::kThreads)
    fold_runs_parts_kernel(const __grid_constant__ Teams teams, int64_t outputs, int64_t parts, int64_t part_step,
                           int64_t output_step, const __grid_constant__ F f, const typename F::Acc* partial) {
  using Acc = typename F::Acc;
  __shared__ Acc values[Teams::kThreads];
  const int64_t o = int64_t{blockIdx.x} * teams.lanes + teams.lane();
  Acc acc{};
#if __CUDA_ARCH__ >= 900
  device::wait_for_previous_grid();
#endif
  if (o < outputs) {
    partial += o * output_step;
    acc = partial[teams.rank() * part_step];
#pragma unroll 4
    for (int64_t part = teams.rank() + teams.depth; part < parts; part += teams.depth) {
      acc = f(acc, partial[part * part_step]);
    }
  }
  acc = combine_team(teams, acc, values, f);
  if (teams.rank() == 0 && o < outputs) f.write(o, acc);
}

/// `wide`: elements in 16 bytes.
inline RunDivision divide_runs(const StridedLoop<1>& outer, const StridedLoop<1>& inner, int wide) {
  constexpr int64_t kBlocksWanted = 16384;  // short ones, which read memory in order
  constexpr int64_t kShortRun = 16;
  const int64_t outputs = outer.numel(), count = inner.numel();
  const bool across = outputs > 1 && outer.strides[0].back() < inner.strides[0].back();
  const Teams teams = Teams::of(outputs, count, across);
  const int64_t useful = std::max<int64_t>(1, count / (teams.depth * Teams::share(outputs * count)));
  RunDivision work{outputs, count, teams, std::clamp<int64_t>(kBlocksWanted / teams.blocks(outputs), 1, useful)};
  if (across || inner.shape.rank() > 2 || inner.strides[0].back() != 1 || inner.shape.back() < kShortRun) return work;
  // A piece: 256 bytes for each thread of a warp; shorter runs go to a part of a warp.
  work.run = inner.shape.back();
  work.run_stride = inner.shape.rank() == 2 ? inner.strides[0][0] : 0;
  work.piece = int64_t{Teams::kWarp} * 16 * wide;
  const int64_t pieces = std::max<int64_t>(1, (work.run + work.piece / 2) / work.piece);
  const auto threads = std::bit_ceil(static_cast<uint64_t>((work.run + 8 * wide - 1) / (8 * wide)));
  work.piece_depth = static_cast<int>(std::min({threads, uint64_t{Teams::kWarp}, static_cast<uint64_t>(teams.depth)}));
  work.all_pieces = count / work.run * pieces;
  while (teams.depth / work.piece_depth > work.all_pieces) work.piece_depth *= 2;
  work.pieces = Divide(pieces, work.all_pieces);
  const int64_t at_once = teams.depth / work.piece_depth;
  // Twice as long as others, so that less of their time passes before the first packs are there; and as many pieces for
  // each place of a team.
  const int64_t each = std::max<int64_t>(1, 2 * work.all_pieces / (work.parts * at_once));
  work.parts = (work.all_pieces + at_once * each - 1) / (at_once * each);
  return work;
}

/// Folds the operands of `f`, of `shape` and `strides`, `kept` leading axes of which remain; at least one output and
/// one element.
template <class F>
void fold_runs(const char* name, Device device, const Shape& shape, const Shape& strides, int kept, const F& f) {
  const auto loop = [&](int begin, int end) {
    const auto axes = [&](const Shape& all) {
      return Shape(std::span<const int64_t>(all.begin() + begin, all.begin() + end));
    };
    return StridedLoop<1>(axes(shape), {axes(strides)});
  };
  const StridedLoop<1> outer = loop(0, kept), inner = loop(kept, shape.rank());
  using T = std::remove_cvref_t<decltype(*f.x)>;
  RunDivision work = divide_runs(outer, inner, kWide<T>);
  bool aligned = work.run > 0 && is_aligned<T, kWide<T>>(f.x);
  constexpr bool kTwo = requires { f.y; };
  if constexpr (kTwo) aligned = aligned && is_aligned<T, kWide<T>>(f.y);

  using Acc = typename F::Acc;
  constexpr int kOperands = kTwo ? 2 : 1;
  const DeviceTraits& traits = device_traits(device.index);
  const DeviceScope scope(device);
  const auto fold_parts = [&](const Teams& teams, int64_t parts, int64_t part_step, int64_t output_step,
                              const Acc* values) {
    launch_with({.early = traits.is_hopper()}, name, fold_runs_parts_kernel<F>, teams.blocks(work.outputs),
                Teams::kThreads, 0, scope.stream(), teams, work.outputs, parts, part_step, output_step, f, values);
  };
  const auto side_by_side = [](int64_t parts) {
    return Teams::with_depth(std::bit_floor(static_cast<uint64_t>(std::min<int64_t>(parts, Teams::kThreads))));
  };
  if constexpr (kAddsPacks<F> || kAddsSeveralPacks<F>) {
    const auto pieces =
        work.run > 0 && work.parts > 1 ? PieceFold::of<T>(outer, inner, kOperands, traits) : std::nullopt;
    if (pieces) {
      const Storage partial(static_cast<std::size_t>(pieces->pieces) * sizeof(Acc), device);
      auto* const values = static_cast<Acc*>(partial.data());
      const std::size_t memory =
          std::size_t{PieceFold::kWarps} * kOperands * static_cast<std::size_t>(pieces->slot_bytes);
      launch(name, aligned ? fold_pieces_kernel<F, true> : fold_pieces_kernel<F, false>, pieces->blocks(),
             PieceFold::kWarps * Teams::kWarp, memory, scope.stream(), *pieces, Walk<1>(outer), f, values);
      return fold_parts(side_by_side(pieces->parts), pieces->parts, 1, pieces->parts, values);
    }
  }
  work.shares = Shares(work.run == 0 ? work.count : work.all_pieces, work.parts);
  const Storage partial(work.parts > 1 ? static_cast<std::size_t>(work.outputs * work.parts) * sizeof(Acc) : 0, device);
  auto* const values = static_cast<Acc*>(partial.data());
  const dim3 grid(work.teams.blocks(work.outputs), static_cast<unsigned>(work.parts));
  launch(name, aligned ? fold_runs_kernel<F, true> : fold_runs_kernel<F, false>, grid, Teams::kThreads,
         aligned ? RunSlots::kAll : 0, scope.stream(), work, Walk<1>(outer), Walk<1>(inner), f, values);
  if (work.parts == 1) return;
  fold_parts(work.outputs > 1 ? Teams::of(work.outputs, work.parts, true) : side_by_side(work.parts), work.parts,
             work.outputs, 1, values);
}

}  // namespace halo::cuda
