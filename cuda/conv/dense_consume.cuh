// The multiplying half of the dense engine's kernel (see dense_kernel.cuh): main loop and epilogue.
#pragma once

#include <cfloat>

#include "dense_rows.cuh"

namespace halo::cuda::conv {

/// Stores unless the address is negative. Said to be global, so that loads from shared memory may pass it.
__device__ __forceinline__ void store_global(int64_t address, float value) {
  asm volatile("{\n .reg .pred p;\n setp.ge.s64 p, %0, 0;\n @p st.global.f32 [%0], %1;\n}\n" ::"l"(address),
               "f"(value));
}

__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) <= FLT_MAX; }

template <class Traits>
struct DenseConsumer {
  static constexpr int kTiles = Traits::kRowTiles;
  static constexpr int kRegisters = Traits::kColumns / 2;  // accumulators of one m64 tile
  static constexpr bool kAccurate = Traits::kProducts == 3;

  const DenseParams& p;
  const PlainSum& plain;
  const DenseShared s;
  const int thread;
  uint32_t row_byte[kTiles][2];
  RingCursor halo_ring, weight_ring;
  uint32_t shift_bytes = 0;     // of the item's halo in its stages
  uint32_t columns_held = ~0u;  // column tile whose columns are in shared memory
  float sum[kTiles][kRegisters];
  float part[kAccurate ? kTiles : 1][kRegisters];  // since the last promotion
  float raw[4];                                    // the next unit's, on their way
  uint32_t high[2][4], low[kAccurate ? 2 : 1][4];  // two units of A fragments

  __device__ __forceinline__ DenseConsumer(const DenseParams& params, const PlainSum& plain_sum,
                                           const DenseShared& shared)
      : p(params), plain(plain_sum), s(shared), thread(static_cast<int>(threadIdx.x)) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      row_byte[m][0] = DenseRow(p, row_of(m, 0)).halo_byte(p);
      row_byte[m][1] = DenseRow(p, row_of(m, 1)).halo_byte(p);
    }
  }

  /// Row of accumulator half `h` of m64 tile `m`: a warp's rows are neighbours, so that it stores long runs.
  __device__ __forceinline__ int row_of(int m, int h) const {
    return thread / 32 * (16 * kTiles) + m * 16 + h * 8 + thread % 32 / 4;
  }

  __device__ __forceinline__ void release(uint32_t barrier) const {
    __syncwarp();
    if (thread % 32 == 0) device::barrier_arrive(barrier);
  }

  /// Starts the loads of the A fragments of m64 tile `m` at the depth that `offsets` stands for.
  __device__ __forceinline__ void load(int m, uint32_t halo, uint2 offsets) {
    const uint32_t near = halo + offsets.x, far = halo + offsets.y;
    raw[0] = load_shared(row_byte[m][0] + near);
    raw[1] = load_shared(row_byte[m][1] + near);
    raw[2] = load_shared(row_byte[m][0] + far);
    raw[3] = load_shared(row_byte[m][1] + far);
  }

  /// Splits what load() brought.
  __device__ __forceinline__ void convert(int buffer) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kAccurate) {
        const device::Tf32Pair pair = device::split_tf32_unguarded(raw[i]);
        high[buffer][i] = pair.high;
        low[buffer][i] = pair.low;
      } else {
        high[buffer][i] = device::round_tf32_by_cut(raw[i]);
      }
    }
  }

  /// The products of one k8 step for m64 tile `m`; `first` starts new partial sums.
  __device__ __forceinline__ void multiply(int buffer, int m, uint32_t weights, bool first) {
    const uint64_t b_high = device::core_matrix_descriptor(weights);
    device::wgmma_fence();
    if constexpr (kAccurate) {
      const uint64_t b_low = device::core_matrix_descriptor(weights + Traits::kColumns * 32);
      device::wgmma_tf32(part[m], low[buffer], b_high, first ? 0 : 1);
      device::wgmma_tf32(part[m], high[buffer], b_low, 1);
      device::wgmma_tf32(part[m], high[buffer], b_high, 1);
    } else {
      device::wgmma_tf32(sum[m], high[buffer], b_high, 1);
    }
    device::wgmma_commit();
  }

  /// Puts this warp's row targets into shared memory: the epilogue has no registers to work them out in.
  __device__ __forceinline__ void describe_rows(const DenseItem& item) const {
    __syncwarp();  // the last item's have been read
    for (int i = thread % 32; i < 16 * kTiles; i += 32) {
      const int row = thread / 32 * (16 * kTiles) + i;
      const DenseRowTarget target(p, item, DenseRow(p, row));
      store_shared_quad(s.rows + static_cast<uint32_t>(row) * 16, __builtin_bit_cast(uint4, target));
    }
    __syncwarp();
  }

  /// All depth of one item into `sum`.
  __device__ __forceinline__ void accumulate(const DenseItem& item) {
    describe_rows(item);
    const int steps = p.phase[item.phase].steps;
    const uint32_t table = s.table + static_cast<uint32_t>(p.phase[item.phase].table * 4 + thread % 4) * 8;
    const int stages = item.stages(p);
    if (p.resident) {
      weight_ring.stage = static_cast<int>(item.first_weight(p, Traits::kStageFloats) / Traits::kStageFloats);
      weight_ring.parity = 0;
    }
    device::barrier_wait(s.halo_full(p, halo_ring.stage), halo_ring.parity);
    shift_bytes = halo_shift(p, item) * 4;
    uint32_t halo = halo_address();
    const uint32_t table_end = table + static_cast<uint32_t>(steps) * 32;
    const auto after = [&](uint32_t entry) { return entry + 32 == table_end ? table : entry + 32; };
    uint32_t entry = after(table);
    int step = 0, chunks_left = item.end_chunk - item.first_chunk;
    uint2 offsets = load_shared_pair(table), next_offsets = load_shared_pair(entry);
    load(0, halo, offsets);
    convert(0);
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int i = 0; i < kRegisters; ++i) sum[m][i] = 0;
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
      device::barrier_wait(s.weights_full(weight_ring.stage), weight_ring.parity);
      const uint32_t weights = s.weights + static_cast<uint32_t>(weight_ring.stage * Traits::kStageFloats) * 4;
#pragma unroll
      for (int u = 0; u < kStepsPerStage; ++u) {
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          const int buffer = (u * kTiles + m) % 2;
          multiply(buffer, m, weights + static_cast<uint32_t>(u) * Traits::kStepFloats * 4, u == 0);
          // Float32: the loads come after the wait, or the assembler mixes them among the unit's three products. TF32,
          // with one product a unit, needs them earlier.
          if constexpr (kAccurate) device::wgmma_wait<1>();
          if (m == kTiles - 1) {
            offsets = next_offsets;
            entry = after(entry);
            next_offsets = load_shared_pair(entry);
            if (++step == steps) {
              step = 0;
              if (--chunks_left > 0) halo = next_halo();
            }
          }
          load((m + 1) % kTiles, halo, offsets);  // past the last step: repeats, and is not used
          if constexpr (!kAccurate) {
            device::wgmma_wait<1>();  // the unit before this one: its fragments may be overwritten
            if (u == 0 && m == 0 && stage > 0) release_weights(1);
          }
          convert(1 - buffer);
        }
      }
      if constexpr (kAccurate) {
        device::wgmma_wait<0>();
#pragma unroll
        for (int m = 0; m < kTiles; ++m) device::wgmma_pin(part[m]);
        release_weights(0);
#pragma unroll
        for (int m = 0; m < kTiles; ++m)
#pragma unroll
          for (int i = 0; i < kRegisters; ++i) sum[m][i] += part[m][i];
      }
      weight_ring.advance(p.weight_stages);
    }
    if constexpr (!kAccurate) {
      device::wgmma_wait<0>();
#pragma unroll
      for (int m = 0; m < kTiles; ++m) device::wgmma_pin(sum[m]);
      release_weights(1);
    }
    release(s.halo_empty(p, halo_ring.stage));
    halo_ring.advance(p.halo_stages);
  }

  /// Releases the weight stage `back` behind the current one.
  __device__ __forceinline__ void release_weights(int back) const {
    const int stage = weight_ring.stage - back;
    release(s.weights_empty(stage < 0 ? stage + p.weight_stages : stage));
  }

  __device__ __forceinline__ uint32_t halo_address() const {
    return s.halo + static_cast<uint32_t>(halo_ring.stage * p.halo_stage_words) * 4 + shift_bytes;
  }

  /// Hands the current halo stage back and waits for the next.
  __device__ __forceinline__ uint32_t next_halo() {
    release(s.halo_empty(p, halo_ring.stage));
    halo_ring.advance(p.halo_stages);
    device::barrier_wait(s.halo_full(p, halo_ring.stage), halo_ring.parity);
    return halo_address();
  }

  // The epilogue turns blocks of 8 columns through shared memory, so that lanes store neighbouring addresses.
  static constexpr int kPair = kTiles < 2 ? 1 : 2;             // m64 tiles whose results are stored together
  static constexpr int kStoreRows = dense_store_rows(kTiles);  // of a warp
  static constexpr int kStorePitch = kStoreRows + 4;           // words: 4 mod 16, so that turning has no bank conflicts
  static constexpr int kTurns = 8 * kStoreRows / 32;           // stores of a lane a block
  static_assert(kStoreRows == 16 * kPair && Traits::kTurnWords == 8 * kStorePitch);

  /// What lane `lane` stores in turn `i` of a block of 8 columns.
  struct Place {
    int row, column;
    __host__ __device__ __forceinline__ Place(int span_log2, int i, int lane) {
      const int flat = i * 32 + lane;  // over (channel, row, neighbouring position)
      const int within = flat & ((kStoreRows << span_log2) - 1);
      row = within >> span_log2;
      column = (flat - within) / kStoreRows + (within & ((1 << span_log2) - 1));
    }
    __device__ __forceinline__ uint32_t turn_byte() const {
      return static_cast<uint32_t>(column * kStorePitch + row) * 4;
    }
  };

  __device__ __forceinline__ DenseRowTarget row_target(int pair, int row) const {
    const int own = thread / 32 * (16 * kTiles) + pair * kStoreRows + row;
    return __builtin_bit_cast(DenseRowTarget, load_shared_quad(s.rows + static_cast<uint32_t>(own) * 16));
  }
  static __device__ __forceinline__ DenseColumn column_info(uint32_t columns, int column) {
    return __builtin_bit_cast(DenseColumn, load_shared_quad(columns + static_cast<uint32_t>(column) * 16));
  }

  /// Adds the bias and applies (leaky) relu. Infinity and NaN stay what they are, for finish() to see.
  __device__ __forceinline__ float with_epilogue(float value, float bias) const {
    const float biased = value + bias;
    return fmaxf(biased, fmaf(biased, p.negative_slope, 0.0f));
  }

  /// Stores the results through a small turning buffer a warp, since the tensor core's layout would scatter them.
  __device__ __forceinline__ void store(const DenseItem& item) {
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
      const bool careful = __any_sync(~0u, row.partial(p.last_j)) || p.span_log2 != 0;
#pragma unroll
      for (int j = 0; j < kRegisters / 4; ++j) {
        __syncwarp();  // the last block has been read
#pragma unroll
        for (int i = 0; i < 4 * kPair; ++i) {
          const float value = sum[pair * kPair + i / 4][j * 4 + i % 4];
          poison = fmaf(value, 0.0f, poison);
          store_shared(own + (i % 2 * kStorePitch + i / 4 * 16 + i / 2 % 2 * 8) * 4, __float_as_uint(value));
        }
        __syncwarp();
        if (careful) {
          store_carefully(pair, turn, columns + j * 8 * 16);
          continue;
        }
        // A lane keeps its row. Four loads before the stores that need them.
#pragma unroll
        for (int first = 0; first < kTurns; first += 4) {
          DenseColumn column[4];
          float value[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            constexpr int kStride = 32 / kStoreRows;  // columns a turn
            column[i] = column_info(own_column, j * 8 + (first + i) * kStride);
            value[i] = load_shared(own_value + (first + i) * kStride * kStorePitch * 4);
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            store_global(row.address + column[i].offset, with_epilogue(value[i], column[i].bias));
          }
        }
      }
    }
    // The vote keeps the warp together: ring positions must stay in uniform registers.
    if (p.finish && __any_sync(~0u, p.smooth || poison != poison)) finish(item, columns);
  }

  /// Stores one turned block where rows change from turn to turn or some of their positions do not exist.
  __device__ __forceinline__ void store_carefully(int pair, uint32_t turn, uint32_t columns) const {
#pragma unroll 1
    for (int i = 0; i < kTurns; ++i) {
      const Place place(p.span_log2, i, thread % 32);
      const DenseRowTarget row = row_target(pair, place.row);
      const DenseColumn column = column_info(columns, place.column);
      const float value = load_shared(turn + place.turn_byte());
      const int64_t address = row.address + column.offset;
      store_global(row.has(column.j) ? address : kDenseNowhere, with_epilogue(value, column.bias));
    }
  }

  /// Looks at this thread's results again: what is not finite is computed in plain float32, and a smooth activation is
  /// applied, which store() leaves out.
  __device__ __forceinline__ void finish(const DenseItem& item, uint32_t columns) const {
    constexpr int kAll = kTurns * (kRegisters / 4);
#pragma unroll 1
    for (int turn = 0; turn < kAll * (kTiles / kPair); ++turn) {
      const Place place(p.span_log2, turn % kTurns, thread % 32);
      const DenseRowTarget row = row_target(turn / kAll, place.row);
      const DenseColumn column = column_info(columns, turn % kAll / kTurns * 8 + place.column);
      const int64_t address = row.address + column.offset;
      if (address < 0 || !row.has(column.j)) continue;
      float& result = *reinterpret_cast<float*>(address);
      const bool finite = is_finite(result);
      float value = result;
      if (!finite) {
        const int64_t at = &result - p.target, channels = int64_t{p.target_channels} * p.groups.divisor;
        value = plain.at(item.n, at / p.target_plane % channels, at % p.target_plane) + column.bias;
      }
      if (!finite || p.smooth) result = device::apply_activation(p.activation, value);
    }
  }

  /// The item's columns in this warpgroup's part of shared memory, brought there when the column tile changes.
  __device__ __forceinline__ uint32_t own_columns(const DenseItem& item) {
    const uint32_t shared = s.columns + static_cast<uint32_t>(thread / 128 * Traits::kColumns) * 16;
    const uint32_t tile = item.group * p.column_tiles.divisor + item.column_tile;
    if (tile != columns_held) {
      columns_held = tile;
      device::barrier_sync(1 + thread / 128, 128);  // nobody reads the old ones any more
      if (thread % 128 < Traits::kColumns) {
        store_shared_quad(
            shared + static_cast<uint32_t>(thread % 128) * 16,
            __ldg(reinterpret_cast<const uint4*>(p.columns) + int64_t{tile} * Traits::kColumns + thread % 128));
      }
      device::barrier_sync(1 + thread / 128, 128);
    }
    return shared;
  }
};

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    dense_kernel(const __grid_constant__ DenseParams p, const __grid_constant__ PlainSum plain) {
  extern __shared__ __align__(128) float shared[];
  const DenseShared s(p, Traits::kStageFloats, Traits::kWarpgroups * Traits::kColumns, Traits::kRows,
                      Traits::kWarpgroups * 4 * Traits::kTurnWords, device::shared_address(shared));
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int i = 0; i < p.weight_stages; ++i) {
      device::barrier_init(s.weights_full(i), 1);
      device::barrier_init(s.weights_empty(i), Traits::kWarpgroups * 4);
    }
    for (int i = 0; i < p.halo_stages; ++i) {
      device::barrier_init(s.halo_full(p, i), Traits::kFillThreads);
      device::barrier_init(s.halo_empty(p, i), Traits::kWarpgroups * 4);
    }
    device::barrier_init_fence();
  }
  build_table(p, s.table);
  __syncthreads();
  if (thread >= Traits::kWarpgroups * 128) {
    device::registers_decrease<Traits::kProducerRegisters>();
    const int copier = thread - Traits::kWarpgroups * 128;
    if (copier < Traits::kFillThreads) {
      int* entries = reinterpret_cast<int*>(shared) + (s.fill - s.weights) / 4;
      if (p.fill_words == 4) {
        fill_halos<Traits, 4>(p, s, entries, copier);
      } else if (p.fill_words == 2) {
        fill_halos<Traits, 2>(p, s, entries, copier);
      } else {
        fill_halos<Traits, 1>(p, s, entries, copier);
      }
    } else if (copier == Traits::kFillThreads) {
      fetch_weights<Traits>(p, s);
    }
  } else {
    device::registers_increase<Traits::kConsumerRegisters>();
    DenseConsumer<Traits> consumer(p, plain, s);
    for (uint32_t work = blockIdx.x; work < static_cast<uint32_t>(p.work_items); work += gridDim.x) {
      const DenseItem item(p, work);
      consumer.accumulate(item);
      consumer.store(item);
    }
  }
}

}  // namespace halo::cuda::conv
