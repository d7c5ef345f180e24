// Storing while the next item is multiplied (see kernel.cuh): the multiplying warps leave their accumulators in
// shared memory as they are; a warpgroup of its own adds bias and activation and writes them out.
#pragma once

#include "store.cuh"

namespace halo::cuda::conv {

/// `Words` neighbours, aligned to as many.
template <int Words>
__device__ __forceinline__ void load_shared_words(uint32_t address, float (&value)[Words]) {
  if constexpr (Words == 4) {
    const uint4 quad = load_shared_quad(address);
    value[0] = __uint_as_float(quad.x);
    value[1] = __uint_as_float(quad.y);
    value[2] = __uint_as_float(quad.z);
    value[3] = __uint_as_float(quad.w);
  } else if constexpr (Words == 2) {
    const uint2 pair = load_shared_pair(address);
    value[0] = __uint_as_float(pair.x);
    value[1] = __uint_as_float(pair.y);
  } else {
    value[0] = load_shared(address);
  }
}

template <int Words>
__device__ __forceinline__ void store_global_words(int64_t address, const float (&v)[Words]) {
  if constexpr (Words == 4) {
    store_global_quad(address, make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                                          __float_as_uint(v[3])));
  } else if constexpr (Words == 2) {
    store_global_pair(address, v[0], v[1]);
  } else {
    store_global(address, v[0]);
  }
}

/// A multiplying thread's accumulators into shared memory, column by column.
template <class Traits, int Registers>
__device__ __forceinline__ void hand_over(uint32_t results, const float (&sum)[Traits::kRowTiles][Registers]) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int row = dense_row<Traits>(thread, 0, 0);
  const uint32_t own = results + static_cast<uint32_t>(lane % 4 * 2 * Traits::kResultPitch + row) * 4;
  if constexpr (Traits::kWindowTaps > 0) {
#pragma unroll
    for (int j = 0; j < Registers / 2; ++j) {
      const int i = j / 2 * 4 + j % 2, column = j / 2 * 8 + j % 2;
      store_shared_quad(own + static_cast<uint32_t>(column * Traits::kResultPitch) * 4,
                        make_uint4(__float_as_uint(sum[0][i]), __float_as_uint(sum[0][i + 2]),
                                   __float_as_uint(sum[1][i]), __float_as_uint(sum[1][i + 2])));
    }
  } else {
#pragma unroll
    for (int m = 0; m < Traits::kRowTiles; ++m) {
#pragma unroll
      for (int i = 0; i < Registers; ++i) {
        const int column = i / 4 * 8 + i % 2, below = m * 16 + i / 2 % 2 * 8;
        store_shared(own + static_cast<uint32_t>(column * Traits::kResultPitch + below) * 4,
                     __float_as_uint(sum[m][i]));
      }
    }
  }
}

/// One thread of the storing warps.
template <class Traits>
struct DenseStorer {
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kBatch = 8;  // channels: loads before the stores that need them
  static_assert(Traits::kColumns % (8 * kBatch) == 0,
                "whole batches of channels, also of eight neighbouring positions");
  static constexpr int kBarrier = 1;

  const DenseParams& p;
  const PlainSum& plain;
  const DenseShared& s;
  const int thread;
  uint32_t columns_held = ~0u;  // column tile whose columns are in shared memory
  float poison = 0;             // becomes NaN with the item's first result that is not finite

  __device__ void run() {
    uint32_t parity = 0;
    for (DenseWalk<Traits> at(p); at.more(p); at.next(p), parity ^= 1) {
      const DenseItem item = at.item(p);
      describe(item);
      device::barrier_wait(s.results_full(p), parity);
      poison = 0;
      if (p.row_words > 1 && p.last_j == 0) {
        p.row_words == 4 ? store_rows<4>() : store_rows<2>();
      } else if (p.span_log2 == 0 && p.last_j == 0) {
        store_rows<1>();
      } else {
        store_grouped();
      }
      __syncwarp();
      if (thread % 32 == 0) device::barrier_arrive(s.results_empty(p));
      const bool look_again = device::barrier_any(kBarrier, kThreads, p.smooth || poison != poison);
      if (p.finish && look_again) {
        finish(item);
        device::barrier_sync(kBarrier, kThreads);  // before rows change
      }
    }
  }

 private:
  __device__ DenseRowTarget row_target(int row) const {
    return __builtin_bit_cast(DenseRowTarget, load_shared_quad(s.rows + static_cast<uint32_t>(row) * 16));
  }
  __device__ uint32_t result(int row, int column) const {
    return s.turn + static_cast<uint32_t>(column * Traits::kResultPitch + row) * 4;
  }

  /// Row targets, and columns where they change, into shared memory.
  __device__ void describe(const DenseItem& item) {
    for (int row = thread; row < Traits::kRows; row += kThreads) {
      DenseRowTarget target(p, item, DenseRow(p, row, Traits::kFlat ? item.before : 0u));
      if (Traits::kWindowTaps > 0 && !target.has(0)) target.address = kDenseNowhere;  // before a line's first position
      store_shared_quad(s.rows + static_cast<uint32_t>(row) * 16, __builtin_bit_cast(uint4, target));
    }
    const uint32_t tile = item.group * p.column_tiles.divisor + item.column_tile;
    if (tile != columns_held) {
      columns_held = tile;
      for (int i = thread; i < Traits::kColumns; i += kThreads) {
        const DensePlace own = dense_place(p, static_cast<int>(item.column_tile) * Traits::kColumns + i);
        DenseColumn column = dense_column(p, own);
        if (p.bias != nullptr && own.channel < p.target_channels) {
          const auto* const bias = static_cast<const float*>(p.bias);
          column.bias = __ldg(bias + int64_t{item.group} * p.target_channels + own.channel);
        }
        store_shared_quad(s.columns + static_cast<uint32_t>(i) * 16, __builtin_bit_cast(uint4, column));
      }
    }
    device::barrier_sync(kBarrier, kThreads);
  }

  __device__ __forceinline__ float finished(float value, float bias) {
    poison = fmaf(value, 0.0f, poison);
    return with_epilogue(p, value, bias);
  }

  /// A lane stores `Words` neighbouring rows of a channel; a warp takes kBatch channels in turn.
  template <int Words>
  __device__ void store_rows() {
    constexpr int kTogether = Words == 4 ? kBatch / 2 : kBatch;  // registers
#pragma unroll 1
    for (int first = 0; first < Traits::kRows; first += 32 * Words) {
      const int row = min(first + thread % 32 * Words, Traits::kRows - Words);  // beyond: stored twice
      const int64_t target = row_target(row).address;
      uint32_t at = result(row, thread / 32 * kTogether);
      uint32_t columns = s.columns + static_cast<uint32_t>(thread / 32 * kTogether) * 16;
#pragma unroll 1
      for (int c = thread / 32 * kTogether; c < Traits::kColumns; c += kWarps * kTogether) {
        float value[kTogether][Words], bias[kTogether];
        int64_t address[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          load_shared_words(at + static_cast<uint32_t>(i * Traits::kResultPitch) * 4, value[i]);
          bias[i] = column_bias(columns, i);
          address[i] = target + column_offset(columns, i);
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          for (float& v : value[i]) v = finished(v, bias[i]);
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i) store_global_words(address[i], value[i]);
        at += kWarps * kTogether * Traits::kResultPitch * 4;
        columns += kWarps * kTogether * 16;
      }
    }
  }

  /// Calls `f` with this lane's row, its target and its place among 2^span_log2 lanes that take neighbouring positions.
  template <class F>
  __device__ __forceinline__ void for_each_row(const F& f) const {
    const int lane = thread % 32, rows = 32 >> p.span_log2;
#pragma unroll 1
    for (int first = 0; first < Traits::kRows; first += rows) {
      const int row = first + (lane >> p.span_log2);
      f(row, row_target(row), lane & ((1 << p.span_log2) - 1));
    }
  }

  /// Where lanes take neighbouring positions of a group, or some of a group's positions may not exist.
  __device__ void store_grouped() {
    const uint32_t apart = 1u << p.span_log2;
    for_each_row([&](int row, const DenseRowTarget& target, int j) {
#pragma unroll 1
      for (int c = thread / 32 * kBatch; c < Traits::kColumns >> p.span_log2; c += kWarps * kBatch) {
        const int first = (c << p.span_log2) + j;
        uint32_t at = result(row, first), column = s.columns + static_cast<uint32_t>(first) * 16;
        int64_t address[kBatch];
        float value[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          value[i] = finished(load_shared(at), column_bias(column, 0));
          address[i] = target.has(column_j(column, 0)) ? target.address + column_offset(column, 0) : kDenseNowhere;
          at += apart * Traits::kResultPitch * 4;
          column += apart * 16;
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) store_global(address[i], value[i]);
      }
    });
  }

  /// finish_result of the whole item.
  __device__ void finish(const DenseItem& item) const {
    for_each_row([&](int, const DenseRowTarget& target, int j) {
      for (int c = j + (thread / 32 << p.span_log2); c < Traits::kColumns; c += kWarps << p.span_log2) {
        const int64_t address = target.address + column_offset(s.columns, c);
        if (address < 0 || !target.has(column_j(s.columns, c))) continue;
        finish_result(p, plain, item.n, address, column_bias(s.columns, c));
      }
    });
  }
};

}  // namespace halo::cuda::conv
