// The multiplying half of the dense engine's kernel (see dense_kernel.cuh): main loop and epilogue.
#pragma once

#include <cfloat>

#include "dense_kernel.cuh"

namespace halo::cuda::conv {

/// Where a row of the tile lies; the same for every item.
struct DenseRow {
  int d, h, w;
  bool inside;  ///< the tile may have fewer rows than the kernel computes

  __device__ DenseRow(const DenseParams& p, int row) {
    uint32_t run, line;
    const uint32_t slice = p.by_tile_height.divide(p.by_tile_runs.divide(static_cast<uint32_t>(row) / 8, run), line);
    d = static_cast<int>(slice);
    h = static_cast<int>(line);
    w = static_cast<int>(run) * 8 + row % 8;
    inside = d < p.tile[0];
  }
  /// Bytes from the start of a halo stage to what the row reads at offset 0.
  __device__ uint32_t halo_byte(const DenseParams& p) const {
    if (!inside) return 0;
    const int word = (d * p.in_step[0] * p.halo_height + h * p.in_step[1]) * p.halo_pitch + w * p.in_step[2];
    return static_cast<uint32_t>(word) * 4;
  }
};

/// Where a row's outputs go in one item, and how many grouped positions of it exist.
struct DenseRowTarget {
  static constexpr uint32_t kGuards = 512u | 512u << 10 | 512u << 20;
  int64_t position;  ///< flat position of the row's first output
  uint32_t limit;    ///< three fields of 511 + (positions that exist, at most 512)
  uint32_t skip;     ///< three fields: positions before the first that exists

  DenseRowTarget() = default;
  __device__ DenseRowTarget(const DenseParams& p, const DenseItem& item, const DenseRow& row) {
    const DensePhase& phase = p.phase[item.phase];
    const int at[3] = {(item.q0[0] + row.d) * p.out_step[0] + phase.j0[0],
                       (item.q0[1] + row.h) * p.out_step[1] + phase.j0[1],
                       (item.q0[2] + row.w) * p.out_step[2] + phase.j0[2]};
    position = (int64_t{at[0]} * p.target_extent[1] + at[1]) * p.target_extent[2] + at[2];
    limit = skip = 0;
    for (int axis = 0; axis < 3; ++axis) {
      const int exist = row.inside ? min(max(p.target_extent[axis] - at[axis], 0), 512) : 0;
      limit |= static_cast<uint32_t>(511 + exist) << (20 - 10 * axis);
      skip |= static_cast<uint32_t>(min(max(-at[axis], 0), 512)) << (20 - 10 * axis);
    }
  }
  /// Whether the position `j` (DenseColumn) further on exists: no field falls below its guard bit.
  __device__ bool has(uint32_t j) const { return ((limit - j) & ((j | kGuards) - skip) & kGuards) == kGuards; }
};

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
  float sum[kTiles][kRegisters];
  float part[kAccurate ? kTiles : 1][kRegisters];  // since the last promotion
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

  /// Row of accumulator half `h` of m64 tile `m`.
  __device__ __forceinline__ int row_of(int m, int h) const {
    return (thread / 128 * kTiles + m) * 64 + thread % 128 / 32 * 16 + h * 8 + thread % 32 / 4;
  }

  __device__ __forceinline__ void release(uint32_t barrier) const {
    __syncwarp();
    if (thread % 32 == 0) device::barrier_arrive(barrier);
  }

  /// Gathers and splits the A fragments of m64 tile `m` at the depth that `offsets` stands for.
  __device__ __forceinline__ void gather(int buffer, int m, uint32_t halo, uint2 offsets) {
    const uint32_t near = halo + offsets.x, far = halo + offsets.y;
    const float value[4] = {load_shared(row_byte[m][0] + near), load_shared(row_byte[m][1] + near),
                            load_shared(row_byte[m][0] + far), load_shared(row_byte[m][1] + far)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kAccurate) {
        const device::Tf32Pair pair = device::split_tf32_unguarded(value[i]);
        high[buffer][i] = pair.high;
        low[buffer][i] = pair.low;
      } else {
        high[buffer][i] = device::round_tf32(value[i]);
      }
    }
  }

  /// The products of one k8 step for m64 tile `m`; `first` starts new sums.
  __device__ __forceinline__ void multiply(int buffer, int m, uint32_t weights, bool first) {
    const uint64_t b_high = device::core_matrix_descriptor(weights);
    device::wgmma_fence();
    if constexpr (kAccurate) {
      const uint64_t b_low = device::core_matrix_descriptor(weights + Traits::kColumns * 32);
      device::wgmma_tf32(part[m], low[buffer], b_high, first ? 0 : 1);
      device::wgmma_tf32(part[m], high[buffer], b_low, 1);
      device::wgmma_tf32(part[m], high[buffer], b_high, 1);
    } else {
      device::wgmma_tf32(sum[m], high[buffer], b_high, first ? 0 : 1);
    }
    device::wgmma_commit();
  }

  /// All depth of one item into `sum`.
  __device__ __forceinline__ void accumulate(const DenseItem& item) {
    const int steps = p.phase[item.phase].steps;
    const uint32_t table = s.table + static_cast<uint32_t>(p.phase[item.phase].table * 4 + thread % 4) * 8;
    const int stages = item.stages(p);
    if (p.resident) {
      weight_ring.stage = static_cast<int>(item.first_weight(p, Traits::kStageFloats) / Traits::kStageFloats);
      weight_ring.parity = 0;
    }
    device::barrier_wait(s.halo_full(p, halo_ring.stage), halo_ring.parity);
    uint32_t halo = s.halo + static_cast<uint32_t>(halo_ring.stage * p.halo_stage_words) * 4;
    uint32_t entry = table;
    int step = 0, chunks_left = item.end_chunk - item.first_chunk;
    uint2 offsets = load_shared_pair(entry);
    gather(0, 0, halo, offsets);
    if constexpr (kAccurate) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
#pragma unroll
        for (int i = 0; i < kRegisters; ++i) sum[m][i] = 0;
    }
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
      device::barrier_wait(s.weights_full(weight_ring.stage), weight_ring.parity);
      const uint32_t weights = s.weights + static_cast<uint32_t>(weight_ring.stage * Traits::kStageFloats) * 4;
#pragma unroll
      for (int u = 0; u < kStepsPerStage; ++u) {
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          const int buffer = (u * kTiles + m) % 2;
          multiply(buffer, m, weights + static_cast<uint32_t>(u) * Traits::kStepFloats * 4,
                   kAccurate ? u == 0 : stage + u == 0);
          device::wgmma_wait<1>();  // the unit before this one: its fragments may be overwritten
          if (!kAccurate && u == 0 && m == 0 && stage > 0) release_weights(1);
          if (m == kTiles - 1) {
            entry += 32;
            if (++step == steps) {
              step = 0;
              entry = table;
              if (--chunks_left > 0) halo = next_halo();
            }
            offsets = load_shared_pair(entry);
          }
          gather(1 - buffer, (m + 1) % kTiles, halo, offsets);  // past the last step: repeats, and is not used
        }
      }
      if constexpr (kAccurate) {
        device::wgmma_wait<0>();
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

  /// Hands the current halo stage back and waits for the next.
  __device__ __forceinline__ uint32_t next_halo() {
    release(s.halo_empty(p, halo_ring.stage));
    halo_ring.advance(p.halo_stages);
    device::barrier_wait(s.halo_full(p, halo_ring.stage), halo_ring.parity);
    return s.halo + static_cast<uint32_t>(halo_ring.stage * p.halo_stage_words) * 4;
  }

  /// Bias, (leaky) relu, stores; finish() does what is rare: smooth activations and results that are not finite.
  __device__ __forceinline__ void store(const DenseItem& item) {
    const DenseColumn* columns = p.columns + column_of(item, thread % 4 * 2);
    float* target = target_of(item);
    DenseRowTarget rows[kTiles][2];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      rows[m][0] = DenseRowTarget(p, item, DenseRow(p, row_of(m, 0)));
      rows[m][1] = DenseRowTarget(p, item, DenseRow(p, row_of(m, 1)));
    }
    bool all_finite = true;
#pragma unroll
    for (int i = 0; i < kRegisters; i += 4) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int4 words = __ldg(reinterpret_cast<const int4*>(columns + i * 2 + e));
        const int64_t offset = (int64_t{words.y} << 32) | static_cast<uint32_t>(words.x);
        if (offset < 0) continue;
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            if (!rows[m][h].has(static_cast<uint32_t>(words.z))) continue;
            const float value = sum[m][i + 2 * h + e];
            all_finite = all_finite && is_finite(value);
            const float biased = value + __int_as_float(words.w);
            target[rows[m][h].position + offset] =
                biased < 0 && p.negative_slope < 1 ? fmaf(biased, p.negative_slope, 0.0f) : biased;
          }
        }
      }
    }
    if (p.repair && !(all_finite && p.negative_slope <= 1)) finish(item, p.negative_slope > 1);
  }

  __device__ __forceinline__ int64_t column_of(const DenseItem& item, int column) const {
    return (int64_t{item.group} * p.column_tiles.divisor + item.column_tile) * Traits::kColumns + column;
  }
  __device__ __forceinline__ float* target_of(const DenseItem& item) const {
    const int64_t channel = (int64_t{item.n} * p.groups.divisor + item.group) * p.target_channels;
    return p.target + item.split * p.target_numel + channel * p.target_plane;
  }

  /// Computes this thread's results that are not finite again, in plain float32; with `everything`, also applies the
  /// activation to the others, which store() has left as they were.
  __device__ __forceinline__ void finish(const DenseItem& item, bool everything) const {
    static_assert(kTiles * kRegisters <= 128);
    uint64_t bad[2] = {0, 0};
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int i = 0; i < kRegisters; ++i)
        if (!is_finite(sum[m][i])) bad[(m * kRegisters + i) / 64] |= uint64_t{1} << (m * kRegisters + i) % 64;
    float* target = target_of(item);
#pragma unroll 1
    for (int bit = 0; bit < kTiles * kRegisters; ++bit) {
      const bool again = ((bit < 64 ? bad[0] : bad[1]) >> bit % 64 & 1) != 0;
      if (!again && !everything) continue;
      const int i = bit % kRegisters;
      const DenseRowTarget row(p, item, DenseRow(p, row_of(bit / kRegisters, i / 2 % 2)));
      const DenseColumn& column = p.columns[column_of(item, i / 4 * 8 + thread % 4 * 2 + i % 2)];
      if (column.offset < 0 || !row.has(column.j)) continue;
      const int64_t at = row.position + column.offset;
      const int64_t channel = int64_t{item.group} * p.target_channels + at / p.target_plane;
      const float value = again ? plain.at(item.n, channel, at % p.target_plane) + column.bias : target[at];
      target[at] = device::apply_activation(p.activation, value);
    }
  }
};

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    dense_kernel(const __grid_constant__ DenseParams p, const __grid_constant__ PlainSum plain) {
  extern __shared__ __align__(128) float shared[];
  const DenseShared s(p, Traits::kStageFloats, device::shared_address(shared));
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
      fill_halos<Traits>(p, s, copier);
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
