// The epilogue of the dense engine's kernel (see kernel.cuh): bias, activation, and results to global memory.
#pragma once

#include <cfloat>

#include "rows.cuh"

namespace halo::cuda::conv {

/// Stores unless the address is negative. Said to be global, so that loads from shared memory may pass it; past L1,
/// where the lines of a store would only push each other out.
__device__ __forceinline__ void store_global(int64_t address, float value) {
  asm volatile(
      "{\n .reg .pred p;\n setp.ge.s64 p, %0, 0;\n @p st.global.L1::no_allocate.f32 [%0], %1;\n}\n" ::"l"(address),
      "f"(value));
}

/// The same of two neighbours, and of four.
__device__ __forceinline__ void store_global_pair(int64_t address, float a, float b) {
  asm volatile(
      "{\n .reg .pred p;\n setp.ge.s64 p, %0, 0;\n @p st.global.L1::no_allocate.v2.f32 [%0], {%1, %2};\n}\n" ::"l"(
          address),
      "f"(a), "f"(b));
}
__device__ __forceinline__ void store_global_quad(int64_t address, uint4 value) {
  asm volatile(
      "{\n .reg .pred p;\n setp.ge.s64 p, %0, 0;\n @p st.global.L1::no_allocate.v4.b32 [%0], {%1, %2, %3, %4};\n}\n" ::
          "l"(address),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w));
}

/// Stores as T, unless the address is negative.
template <class T>
__device__ __forceinline__ void store_result(int64_t address, float value) {
  if constexpr (sizeof(T) == 4) {
    store_global(address, value);
  } else {
    const uint16_t bits = device::from_accumulator<T>(value).bits;
    asm volatile(
        "{\n .reg .pred p;\n setp.ge.s64 p, %0, 0;\n @p st.global.L1::no_allocate.b16 [%0], %1;\n}\n" ::"l"(address),
        "h"(bits));
  }
}

/// The same of four neighbours that lie aligned.
template <class T>
__device__ __forceinline__ void store_result_quad(int64_t address, uint4 value) {
  if constexpr (sizeof(T) == 4) {
    store_global_quad(address, value);
  } else {
    const float low[2] = {__uint_as_float(value.x), __uint_as_float(value.y)};
    const float high[2] = {__uint_as_float(value.z), __uint_as_float(value.w)};
    store_global_pair(address, __uint_as_float(device::pack_word<T>(low)), __uint_as_float(device::pack_word<T>(high)));
  }
}

__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) <= FLT_MAX; }

/// Looks at a result again that is in global memory: what is not finite is computed in plain float32, and a smooth
/// activation is applied, which the first look leaves out.
template <class T>
__device__ __forceinline__ void finish_result(const DenseParams& p, const PlainSumOf<T>& plain, uint32_t n,
                                              int64_t address, float bias) {
  T& result = *reinterpret_cast<T*>(address);
  float value = device::to_accumulator(result);
  const bool finite = is_finite(value);
  if (!finite) {
    const int64_t at = &result - static_cast<T*>(p.target), channels = int64_t{p.target_channels} * p.groups.divisor;
    value = plain.at(n, at / p.target_plane % channels, at % p.target_plane) + bias;
  }
  if (!finite || p.smooth) result = device::from_accumulator<T>(device::apply_activation(p.activation, value));
}

/// Adds the bias and applies (leaky) relu. Infinity and NaN stay what they are, for finish_result to see.
__device__ __forceinline__ float with_epilogue(const DenseParams& p, float value, float bias) {
  const float biased = value + bias;
  return fmaxf(biased, fmaf(biased, p.negative_slope, 0.0f));
}

/// A column's parts are loaded apart: a quad a lane would take four times as long as the word that is stored.
__device__ __forceinline__ int64_t column_offset(uint32_t columns, int column) {
  return __builtin_bit_cast(int64_t, load_shared_pair(columns + static_cast<uint32_t>(column) * 16));
}
__device__ __forceinline__ uint32_t column_j(uint32_t columns, int column) {
  return __float_as_uint(load_shared(columns + static_cast<uint32_t>(column) * 16 + 8));
}
__device__ __forceinline__ float column_bias(uint32_t columns, int column) {
  return load_shared(columns + static_cast<uint32_t>(column) * 16 + 12);
}

template <class Traits>
struct DenseStore {
  using T = typename Traits::Type;
  static constexpr int kTiles = Traits::kRowTiles;
  static constexpr int kRegisters = Traits::kColumns / 2;  // accumulators of one m64 tile

  const DenseParams& p;
  const PlainSumOf<T>& plain;
  const DenseShared s;
  const int thread;
  uint32_t columns_held = ~0u;  // column tile whose columns are in shared memory

  __device__ __forceinline__ DenseStore(const DenseParams& params, const PlainSumOf<T>& plain_sum,
                                        const DenseShared& shared)
      : p(params), plain(plain_sum), s(shared), thread(static_cast<int>(threadIdx.x)) {}

  /// Puts this warp's row targets into shared memory: the epilogue has no registers to work them out in.
  __device__ __forceinline__ void describe_rows(const DenseItem& item) const {
    __syncwarp();  // the last item's have been read
    for (int i = thread % 32; i < 16 * kTiles; i += 32) {
      const int row = thread / 32 * (16 * kTiles) + i;
      const DenseRowTarget target(p, item, DenseRow(p, row, Traits::kFlat ? item.before : 0u), sizeof(T));
      store_shared_quad(s.rows + static_cast<uint32_t>(row) * 16, __builtin_bit_cast(uint4, target));
    }
    __syncwarp();
  }

  // The epilogue turns blocks of 8 columns through shared memory, so that lanes store neighbouring addresses.
  static constexpr int kPair = kTiles < 2 ? 1 : 2;  // m64 tiles whose results are stored together
  // Bias and offsets are loaded a block ahead, where there are registers for it: each block would wait for them in
  // turn.
  static constexpr bool kAhead = Traits::kFlat && kTiles == 1;
  static constexpr int kStoreRows = dense_store_rows(kTiles);  // of a warp
  static constexpr int kStorePitch = kStoreRows + 4;           // words: 4 mod 16, so that turning has no bank conflicts
  static constexpr int kTurns = 8 * kStoreRows / 32;           // stores of a lane a block
  static_assert(kStoreRows == 16 * kPair && Traits::kTurnWords == 8 * kStorePitch);

  /// What lane `lane` stores in turn `i` of a block of 8 columns.
  struct Place {
    int row, column;
    __host__ __device__ __forceinline__ Place(int span_log2, int i, int lane) {
      const auto flat = static_cast<uint32_t>(i * 32 + lane);  // over (channel, row, neighbouring position)
      const uint32_t within = flat & ((uint32_t{kStoreRows} << span_log2) - 1);
      row = static_cast<int>(within >> span_log2);
      column = static_cast<int>((flat - within) / kStoreRows + (within & ((1u << span_log2) - 1)));
    }
    __device__ __forceinline__ uint32_t turn_byte() const {
      return static_cast<uint32_t>(column * kStorePitch + row) * 4;
    }
  };

  __device__ __forceinline__ DenseRowTarget row_target(int pair, int row) const {
    const int own = thread / 32 * (16 * kTiles) + pair * kStoreRows + row;
    return __builtin_bit_cast(DenseRowTarget, load_shared_quad(s.rows + static_cast<uint32_t>(own) * 16));
  }

  /// Stores an item's results through a small turning buffer a warp, since the tensor core's layout would scatter them.
  __device__ __forceinline__ void all(const DenseItem& item, const float (&sum)[kTiles][kRegisters]) {
    const uint32_t columns = own_columns(item);
    const int lane = thread % 32;
    const uint32_t turn = s.turn + static_cast<uint32_t>(thread / 32 * Traits::kTurnWords) * 4;
    const uint32_t own = turn + static_cast<uint32_t>(lane % 4 * 2 * kStorePitch + lane / 4) * 4;
    const uint32_t own_value = turn + static_cast<uint32_t>(lane / kStoreRows * kStorePitch + lane % kStoreRows) * 4;
    const uint32_t own_column = columns + static_cast<uint32_t>(lane / kStoreRows) * 16;
    float poison = 0;  // becomes NaN with the first result that is not finite
#pragma unroll
    for (int pair = 0; pair < kTiles / kPair; ++pair) {
      const DenseRowTarget row = row_target(pair, lane % kStoreRows);
      const bool partial = __any_sync(~0u, row.partial(p.last_j));
      const bool keeps_row = !partial && p.span_log2 == 0 && p.row_words < 4;  // a lane, through all columns
      float bias[2];
      const auto load_bias = [&](int j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) bias[i] = column_bias(columns, j * 8 + lane % 4 * 2 + i);
      };
      if (kAhead) load_bias(0);
#pragma unroll
      for (int j = 0; j < kRegisters / 4; ++j) {
        constexpr int kStride = 32 / kStoreRows;  // columns a turn
        int64_t offset[4];
        if (!kAhead) load_bias(j);
        if (kAhead && keeps_row) {
#pragma unroll
          for (int i = 0; i < 4; ++i) offset[i] = column_offset(own_column, j * 8 + i * kStride);
        }
        __syncwarp();  // the last block has been read
#pragma unroll
        for (int i = 0; i < 4 * kPair; ++i) {
          const float value = sum[pair * kPair + i / 4][j * 4 + i % 4];
          poison = fmaf(value, 0.0f, poison);
          store_shared(own + (i % 2 * kStorePitch + i / 4 * 16 + i / 2 % 2 * 8) * 4,
                       __float_as_uint(with_epilogue(p, value, bias[i % 2])));
        }
        if (kAhead && j + 1 < kRegisters / 4) load_bias(j + 1);
        __syncwarp();
        if (!keeps_row) {
          if (p.row_words == 4 && !partial) {
            store_quads(pair, turn, columns + j * 8 * 16);
          } else {
            store_by_rows(pair, partial, turn, columns + j * 8 * 16);
          }
          continue;
        }
#pragma unroll
        for (int first = 0; first < kTurns; first += 4) {
          float value[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (!kAhead || first > 0) offset[i] = column_offset(own_column, j * 8 + (first + i) * kStride);
            value[i] = load_shared(own_value + (first + i) * kStride * kStorePitch * 4);
          }
#pragma unroll
          for (int i = 0; kAhead && i < 4; ++i) asm volatile("" : "+f"(value[i]));  // all before the first store
#pragma unroll
          for (int i = 0; i < 4; ++i) store_result<T>(row.address + offset[i], value[i]);
        }
      }
    }
    // The vote keeps the warp together: ring positions must stay in uniform registers.
    if (p.finish && __any_sync(~0u, p.smooth || poison != poison)) {
      __syncwarp();  // other lanes may have stored what a lane looks at
      finish(item, columns);
    }
  }

  /// Stores one turned block where four neighbouring rows are 16 aligned bytes.
  __device__ __forceinline__ void store_quads(int pair, uint32_t turn, uint32_t columns) const {
    constexpr int kQuads = kStoreRows / 4;  // of a column
    const int lane = thread % 32, quad = lane % kQuads * 4;
    const int row = thread / 32 * (16 * kTiles) + pair * kStoreRows + quad;
    const int64_t address = __builtin_bit_cast(int64_t, load_shared_pair(s.rows + static_cast<uint32_t>(row) * 16));
#pragma unroll
    for (int column = 0; column < 8; column += 32 / kQuads) {
      const int own = column + lane / kQuads;
      const uint4 value = load_shared_quad(turn + static_cast<uint32_t>(own * kStorePitch + quad) * 4);
      store_result_quad<T>(address + column_offset(columns, own), value);
    }
  }

  /// Stores one turned block where rows change from turn to turn; `partial` if some of their positions do not exist.
  __device__ __forceinline__ void store_by_rows(int pair, bool partial, uint32_t turn, uint32_t columns) const {
    const uint32_t rows = s.rows + static_cast<uint32_t>(thread / 32 * (16 * kTiles) + pair * kStoreRows) * 16;
#pragma unroll 1
    for (int first = 0; first < kTurns; first += 4) {
      int64_t address[4];
      float value[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Place place(p.span_log2, first + i, thread % 32);
        const uint32_t row = rows + static_cast<uint32_t>(place.row) * 16;
        value[i] = load_shared(turn + place.turn_byte());
        address[i] = __builtin_bit_cast(int64_t, load_shared_pair(row)) + column_offset(columns, place.column);
        if (partial && !row_target(pair, place.row).has(column_j(columns, place.column))) address[i] = kDenseNowhere;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) store_result<T>(address[i], value[i]);
    }
  }

  /// finish_result of all the warp's results.
  __device__ __forceinline__ void finish(const DenseItem& item, uint32_t columns) const {
    constexpr int kAll = kTurns * (kRegisters / 4);
#pragma unroll 1
    for (int turn = 0; turn < kAll * (kTiles / kPair); ++turn) {
      const Place place(p.span_log2, turn % kTurns, thread % 32);
      const DenseRowTarget row = row_target(turn / kAll, place.row);
      const int column = turn % kAll / kTurns * 8 + place.column;
      const int64_t address = row.address + column_offset(columns, column);
      if (address < 0 || !row.has(column_j(columns, column))) continue;
      finish_result(p, plain, item.n, address, column_bias(columns, column));
    }
  }

  /// The item's columns in this warpgroup's part of shared memory, worked out when the column tile changes.
  __device__ __forceinline__ uint32_t own_columns(const DenseItem& item) {
    const uint32_t shared = s.columns + static_cast<uint32_t>(thread / 128 * Traits::kColumns) * 16;
    const uint32_t tile = item.group * p.column_tiles.divisor + item.column_tile;
    if (tile != columns_held) {
      columns_held = tile;
      device::barrier_sync(1 + thread / 128, 128);  // nobody reads the old ones any more
      if (thread % 128 < Traits::kColumns) {
        const DensePlace own = dense_place(p, static_cast<int>(item.column_tile) * Traits::kColumns + thread % 128);
        DenseColumn column = dense_column(p, own, sizeof(T));
        if (p.bias != nullptr && own.channel < p.target_channels) {
          const auto* const bias = static_cast<const T*>(p.bias);
          column.bias = device::to_accumulator(bias[int64_t{item.group} * p.target_channels + own.channel]);
        }
        store_shared_quad(shared + static_cast<uint32_t>(thread % 128) * 16, __builtin_bit_cast(uint4, column));
      }
      device::barrier_sync(1 + thread / 128, 128);
    }
    return shared;
  }
};

}  // namespace halo::cuda::conv
