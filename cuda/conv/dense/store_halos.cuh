// The copying half of the dense engine's kernel for half types whose rows begin at any address: single numbers are no
// asynchronous copies, and come through registers.
#pragma once

#include "../../device/shared_words.cuh"
#include "produce.cuh"

namespace halo::cuda::conv {

/// Copies `real` channels from `base` on to `stage`, the chunk's others are zeros: four elements of `Channels` channels
/// at a time. Writes once `empty` has the given parity.
template <class Traits, int Channels>
__device__ __forceinline__ void store_halo(const DenseParams& p, const int* entries, int thread, uint32_t stage,
                                           const typename Traits::Type* base, int real, uint32_t empty,
                                           uint32_t parity) {
  constexpr int kEach = 4;
  bool waits = true;
#pragma unroll 1
  for (int first = thread; waits || first < p.halo_words; first += kEach * Traits::kFillThreads) {
    int entry[kEach];  // a thread's own; -1 where there is none
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int index = first + i * Traits::kFillThreads;
      entry[i] = index < p.halo_words ? entries[index] : -1;
    }
#pragma unroll 1
    for (int c = 0; c < p.chunk_channels; c += Channels) {
      uint16_t bits[Channels][kEach];
      const auto* from = base + c * p.source_plane;
#pragma unroll
      for (int k = 0; k < Channels; ++k, from += p.source_plane) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) bits[k][i] = c + k < real && entry[i] >= 0 ? from[entry[i]].bits : uint16_t{0};
      }
      if (waits) device::barrier_wait(empty, parity);
      waits = false;
#pragma unroll
      for (int k = 0; k < Channels; ++k) {
        const uint32_t plane = stage + static_cast<uint32_t>(plane_word(p, c + k) * Traits::kElement);
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          const int index = first + i * Traits::kFillThreads;
          if (index < p.halo_words)
            device::store_shared_half(plane + static_cast<uint32_t>(index * Traits::kElement), bits[k][i]);
        }
      }
    }
  }
}

/// fill_halos of single half numbers.
template <class Traits>
__device__ void store_halos(const DenseParams& p, const DenseShared& s, int* entries, int thread) {
  const HaloFiller<Traits, 1> filler{p, entries, thread};
  RingCursor cursor;
  for (DenseWalk<Traits> at(p); at.more(p); at.next(p)) {
    const DenseItem item = at.item(p);
    filler.locate(item);
    const int64_t first_channel = (int64_t{item.n} * p.groups.divisor + item.group) * p.channels;
    for (int chunk = item.first_chunk; chunk < item.end_chunk; ++chunk, cursor.advance(p.halo_stages)) {
      const int channel = chunk * p.chunk_channels;
      const auto* const from =
          static_cast<const typename Traits::Type*>(p.source) + (first_channel + channel) * p.source_plane;
      const uint32_t to = s.halo + static_cast<uint32_t>(cursor.stage * p.halo_stage_words * Traits::kElement);
      const int real = p.channels - channel;
      const uint32_t empty = s.halo_empty(p, cursor.stage), parity = cursor.parity ^ 1;
      if (p.chunk_channels == 8) {
        store_halo<Traits, 8>(p, entries, thread, to, from, real, empty, parity);
      } else if (p.chunk_channels == 4) {
        store_halo<Traits, 4>(p, entries, thread, to, from, real, empty, parity);
      } else {
        store_halo<Traits, 1>(p, entries, thread, to, from, real, empty, parity);
      }
      device::barrier_arrive(s.halo_full(p, cursor.stage));
    }
  }
}

}  // namespace halo::cuda::conv
