// Copies boxes of rows (row_box.h) into shared memory. A thread issues the copy of a whole row: on Hopper one
// instruction for the copy engine, before that a loop of 16-byte copies.
//
//   start_box of one or more boxes; box_arrive; ...; box_wait; finish_box of each; __syncthreads
#pragma once

#include <cstdint>

#include "../device/async_copy.cuh"
#include "../device/mbarrier.cuh"
#include "../device/number.cuh"
#include "../device/wgmma.cuh"
#include "row_box.h"

namespace halo::cuda::conv {

/// Where a box lies in its source. The corner may lie outside.
template <class T>
struct BoxPlace {
  const T* corner;
  const T* end;              ///< of the tensor: nothing behind it is read
  int planes;                ///< of the box that exist
  int outer, inner, column;  ///< position of the corner
};

/// Columns of the box that exist: from `first` to `last`.
struct BoxColumns {
  int first, last;
  template <class T>
  __device__ BoxColumns(const RowBox& box, const RowSource& source, const BoxPlace<T>& place)
      : first(min(max(0, -place.column), box.columns)),
        last(max(first, min(box.columns, source.width - place.column))) {}
};

struct BoxRow {
  int plane, outer, inner;
  bool exists;

  template <class T>
  __device__ BoxRow(const RowBox& box, const RowSource& source, const BoxPlace<T>& place, int row) {
    uint32_t o, i;
    plane = static_cast<int>(box.outer.divide(box.inner.divide(static_cast<uint32_t>(row), i), o));
    outer = static_cast<int>(o);
    inner = static_cast<int>(i);
    exists = static_cast<unsigned>(place.outer + outer) < static_cast<unsigned>(source.outer) &&
             static_cast<unsigned>(place.inner + inner) < static_cast<unsigned>(source.inner);
  }
  /// Bytes from the first element of the box to that of the row.
  __device__ int offset(const RowBox& box) const {
    return plane * box.plane_pitch + outer * box.outer_pitch + inner * box.inner_pitch;
  }
};

/// Bytes from the start of a box's shared memory to its first element.
template <class T>
__device__ __forceinline__ int box_shift(const BoxPlace<T>& place) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(place.corner) % device::kGranule);
}

/// Once a block, before the first start_box: `barrier` counts the copies of one turn after the other.
__device__ __forceinline__ void box_barrier_init(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0) {
    device::barrier_init(barrier, static_cast<int>(blockDim.x));
    device::barrier_init_fence();
  }
#endif
}

/// The copy of one row: whole granules, which may begin or end with elements of other rows.
struct RowCopy {
  const char* from;
  uint32_t to, bytes;

  /// Row `index` of the box; no bytes where it does not exist. `at`: shared address of the first element of the box. A
  /// last granule that is not whole inside the tensor is copied here and now.
  template <class T>
  __device__ RowCopy(const RowBox& box, const RowSource& source, const BoxPlace<T>& place, const BoxColumns& columns,
                     uint32_t at, int index)
      : from(nullptr), to(at), bytes(0) {
    const BoxRow row(box, source, place, index);
    if (!row.exists || columns.first == columns.last) return;
    const T* first = place.corner + row.plane * source.plane_pitch + row.outer * source.outer_pitch +
                     row.inner * source.inner_pitch + columns.first;
    const auto lead = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(first) % device::kGranule);
    const auto length = static_cast<uint32_t>(columns.last - columns.first) * uint32_t{sizeof(T)} + lead;
    from = reinterpret_cast<const char*>(first) - lead;
    to += static_cast<uint32_t>(row.offset(box)) + columns.first * uint32_t{sizeof(T)} - lead;
    bytes = (length + device::kGranule - 1) / device::kGranule * device::kGranule;
    if (from + bytes > reinterpret_cast<const char*>(place.end)) {
      bytes -= device::kGranule;
      for (uint32_t b = max(bytes, lead); b < length; b += uint32_t{sizeof(T)}) {
        T* const element = static_cast<T*>(__cvta_shared_to_generic(to + b));
        *element = *reinterpret_cast<const T*>(from + b);
      }
    }
  }
};

/// Starts to copy the rows of the box at `place` to `shared` (16-byte aligned). `spread`: neighbouring rows go to
/// different warps, since the copy engine takes a warp's orders one after the other, at 60 cycles each; worth it where
/// a block does nothing before the last row is there.
template <class T>
__device__ __forceinline__ void start_box(unsigned char* shared, const RowBox& box, const RowSource& source,
                                          const BoxPlace<T>& place, uint32_t barrier, bool spread = false) {
  const BoxColumns columns(box, source, place);
  if (columns.first == columns.last) return;
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(shared) + box_shift(place));
  const int rows = place.planes * static_cast<int>(box.outer.divisor * box.inner.divisor);
  const auto thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int first = spread ? thread % 32 * (threads / 32) + thread / 32 : thread;
  for (int index = first; index < rows; index += threads) {
    const RowCopy copy(box, source, place, columns, at, index);
    if (copy.bytes == 0) continue;
#if __CUDA_ARCH__ >= 900
    device::barrier_expect_more(barrier, copy.bytes);
    device::copy_bulk(copy.to, copy.from, copy.bytes, barrier);
#else
    for (uint32_t b = 0; b < copy.bytes; b += device::kGranule) {
      device::copy_async_16(copy.to + b, copy.from + b, device::kGranule);
    }
#endif
  }
}

/// All threads, after the start_box calls of one turn.
__device__ __forceinline__ void box_arrive(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  device::barrier_arrive(barrier);
#else
  device::copy_async_commit();
#endif
}

/// Waits for turn `turn` (from 0) of the barrier; on older devices for all but `later` turns that were started.
template <int Later>
__device__ __forceinline__ void box_wait(uint32_t barrier, int turn) {
#if __CUDA_ARCH__ >= 900
  device::barrier_wait(barrier, static_cast<uint32_t>(turn) % 2);
#else
  device::copy_async_wait<Later>();
  __syncthreads();
#endif
}

/// After ordinary writes to shared memory that a later copy may overwrite.
__device__ __forceinline__ void box_written() {
#if __CUDA_ARCH__ >= 900
  device::fence_async_proxy();
#endif
}

/// Writes zeros where the box is outside its source, planes that do not exist apart. True if it wrote: then the block
/// must synchronise before it reads the box. All threads of the block, or those that `thread` and `threads` tell.
template <class T>
__device__ __forceinline__ bool finish_box(unsigned char* shared, const RowBox& box, const RowSource& source,
                                           const BoxPlace<T>& place, int thread = static_cast<int>(threadIdx.x),
                                           int threads = static_cast<int>(blockDim.x)) {
  const BoxColumns columns(box, source, place);
  const int outer = static_cast<int>(box.outer.divisor), inner = static_cast<int>(box.inner.divisor);
  const bool all_rows = place.outer >= 0 && place.outer + outer <= source.outer && place.inner >= 0 &&
                        place.inner + inner <= source.inner;
  const int outside = columns.first + box.columns - columns.last;
  if (all_rows && outside == 0) return false;
  unsigned char* const at = shared + box_shift(place);
  const int rows = place.planes * outer * inner;
  const int lane = thread % 32;
  for (int first = thread - lane; first < rows; first += threads) {
    const BoxRow row(box, source, place, first + lane);
    const int offset = row.offset(box);
    const bool in_box = first + lane < rows;
    if (in_box && row.exists) {  // a thread a row: few columns are outside
      T* const to = reinterpret_cast<T*>(at + offset);
      for (int c = 0; c < columns.first; ++c) to[c] = T{};
      for (int c = columns.last; c < box.columns; ++c) to[c] = T{};
    }
    for (unsigned missing = __ballot_sync(0xffffffffu, in_box && !row.exists); missing != 0; missing &= missing - 1) {
      T* const to = reinterpret_cast<T*>(at + __shfl_sync(0xffffffffu, offset, __ffs(static_cast<int>(missing)) - 1));
      for (int c = lane; c < box.columns; c += 32) to[c] = T{};
    }
  }
  box_written();
  return true;
}

/// The boxes of a block that copies once.
class BoxCopy {
 public:
  /// By all threads. `copied`: in shared memory.
  __device__ explicit BoxCopy(uint64_t& copied) : barrier_(static_cast<uint32_t>(__cvta_generic_to_shared(&copied))) {
    box_barrier_init(barrier_);
    __syncthreads();
  }
  template <class T>
  __device__ void start(unsigned char* shared, const RowBox& box, const RowSource& source, const BoxPlace<T>& place,
                        bool spread = false) const {
    start_box(shared, box, source, place, barrier_, spread);
  }
  /// After the last start; then wait, before the boxes are read or finished.
  __device__ void arrive() const { box_arrive(barrier_); }
  __device__ void wait() const { box_wait<0>(barrier_, 0); }

 private:
  uint32_t barrier_;
};

}  // namespace halo::cuda::conv
