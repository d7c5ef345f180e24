// A ring of slots in shared memory that the copy engine fills with pieces of runs, wherever those begin: what fills it,
// and what a warp reads of a piece.
#pragma once

#include "async_copy.cuh"
#include "mbarrier.cuh"
#include "run_piece.cuh"

namespace halo::cuda {

/// A place in the ring, and the parity of its turn.
struct RingSlot {
  int at = 0;
  uint32_t parity = 0;
  __device__ RingSlot ahead(int count, int slots) const {  // count <= slots
    RingSlot next{at + count, parity};
    if (next.at >= slots) next = {next.at - slots, parity ^ 1};
    return next;
  }
};

/// Where a piece lies in a slot: elements as in memory, so that element i is values[i].
template <class T>
__device__ __forceinline__ const T* staged_piece(const unsigned char* slot, const T* data, int64_t begin) {
  const int lead = static_cast<int>(reinterpret_cast<uintptr_t>(data + begin) % device::kGranule / sizeof(T));
  return reinterpret_cast<const T*>(slot) + (lead - begin);
}

/// What is copied of a piece: whole granules of memory, but for the last of a tensor, whose allocation may end within
/// it.
template <class T>
struct RingCopy {
  const T *from = nullptr, *end = nullptr;  ///< of the piece, from its first granule
  uint32_t bytes = 0;                       ///< of whole granules
  RingCopy() = default;
  __device__ RingCopy(const T* data, int64_t begin, int64_t end_of_piece, int64_t end_of_data)
      : from(data + begin - reinterpret_cast<uintptr_t>(data + begin) % device::kGranule / sizeof(T)),
        end(data + end_of_piece) {
    constexpr int kSize = kWide<T>;
    const int count = static_cast<int>(end - from), up = (count + kSize - 1) / kSize;
    bytes = static_cast<uint32_t>(from + up * kSize > data + end_of_data ? count / kSize : up) * device::kGranule;
  }
  /// The engine tells `full`, which has been told to expect the bytes. The rest has been copied before.
  __device__ void start(unsigned char* to, uint32_t full) const {
    if (bytes > 0) device::copy_bulk(static_cast<uint32_t>(__cvta_generic_to_shared(to)), from, bytes, full);
  }
  __device__ void copy_rest(unsigned char* to) const {
#pragma unroll 1
    for (auto at = static_cast<int>(bytes / sizeof(T)); from + at < end; ++at) reinterpret_cast<T*>(to)[at] = from[at];
  }
};

/// A warp's walk over a piece: visit(number of lane 0's first pack, batch of packs of each operand), where the packs of
/// a lane lie 32 apart and those beyond the piece's last repeat it; then edge(i, element i of each) for the elements
/// outside packs. kPacks: the operands begin at granules; packs are of the same elements where they do not. With
/// `first` below 0 the walk begins as many packs before the piece's first, so that lane 0's may begin lines of memory.
template <bool kPacks, int kBatch, class T, class Visit, class Edge, class... More>
__device__ __forceinline__ void each_batch_from(int first, const RunPiece& run, const Visit& visit, const Edge& edge,
                                                const T* values, const More*... more) {
  constexpr int kSize = kWide<T>, kLanes = 32;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  struct Batch {
    Pack<T, kSize> at[kBatch];
  };
#pragma unroll 1
  for (int begin = first; begin < run.packs; begin += kLanes * kBatch) {
    const auto load = [&](const T* from) {
      Batch batch;
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        const auto pack = static_cast<int>(
            min(static_cast<unsigned>(begin + u * kLanes + lane), static_cast<unsigned>(run.packs - 1)));
        if constexpr (kPacks) {
          batch.at[u] = reinterpret_cast<const Pack<T, kSize>*>(from + run.packs_at)[pack];
        } else {
          batch.at[u] = load_between_granules(from + run.packs_at + pack * kSize);
        }
      }
      return batch;
    };
    visit(begin, load(values), load(more)...);
  }
  if (lane < run.edges) {
    const int64_t i = run.edge(lane);
    edge(i, values[i], more[i]...);
  }
}

template <bool kPacks, int kBatch, class T, class Visit, class Edge, class... More>
__device__ __forceinline__ void each_batch_of_piece(const RunPiece& run, const Visit& visit, const Edge& edge,
                                                    const T* values, const More*... more) {
  each_batch_from<kPacks, kBatch>(0, run, visit, edge, values, more...);
}

}  // namespace halo::cuda
