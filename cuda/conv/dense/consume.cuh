// The multiplying half of the dense engine's kernel (see kernel.cuh).
#pragma once

#include "rows.cuh"

namespace halo::cuda::conv {

/// Main loop: gathers, splits and multiplies one item's depth. TF32 with storing warps has its own,
/// consume_tf32.cuh.
template <class Traits>
struct DenseConsumer {
  static constexpr int kTiles = Traits::kRowTiles, kElement = Traits::kElement;
  static constexpr int kRegisters = Traits::kColumns / 2;  // accumulators of one m64 tile
  static constexpr bool kAccurate = Traits::kProducts == 3;
  // Other shapes lose more by waiting at the condition than the padding of a sum's last steps costs.
  static constexpr bool kHalvesStages = kAccurate && Traits::kColumns == 96 && kTiles == 1;
  static constexpr bool kFlat = Traits::kFlat;
  static constexpr int kAhead = Traits::kEarly ? 2 : 1;  // units that loads run ahead of products
  // With fewer columns the assembler waits for the tensor core wherever promotion depends on a condition.
  static constexpr bool kHalvesPromotion = kAccurate && Traits::kColumns >= 128;

  const DenseParams& p;
  const DenseShared s;
  const int thread;
  uint32_t first_row;            // what this thread's first row reads: bytes from the start of a halo stage
  uint32_t row_step[kTiles][2];  // from there to its other rows; uniform in a warp, so that loads add it for nothing
                                 // unless tiles may be flat
  RingCursor halo_ring, weight_ring;
  uint32_t shift_bytes = 0;  // of the item's halo in its stages
  float sum[kTiles][kRegisters];
  float part[kAccurate ? kTiles : 1][kRegisters];  // since the last promotion
  float raw[kAhead][4];                            // the next units', on their way
  uint32_t high[2][4], low[kAccurate ? 2 : 1][4];  // two units of A fragments

  __device__ __forceinline__ DenseConsumer(const DenseParams& params, const DenseShared& shared)
      : p(params), s(shared), thread(static_cast<int>(threadIdx.x)) {
    locate_rows(0);
  }

  /// Where this thread's rows read; `before` of the item (DenseItem).
  __device__ __forceinline__ void locate_rows(uint32_t before) {
    first_row = kFlat ? 0 : DenseRow(p, dense_row<Traits>(thread, 0, 0), before).halo_byte(p, kElement);
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      const uint32_t step =
          DenseRow(p, dense_row<Traits>(thread, i / 2, i % 2), before).halo_byte(p, kElement) - first_row;
      row_step[i / 2][i % 2] = kFlat ? step : __shfl_sync(~0u, step, 0);
    }
  }

  __device__ __forceinline__ void release(uint32_t barrier) const {
    __syncwarp();
    if (thread % 32 == 0) device::barrier_arrive(barrier);
  }

  /// Starts the loads of the A fragments of m64 tile `m` at the depth that `offsets` stands for, into raw[slot].
  __device__ __forceinline__ void load(int m, uint32_t halo, uint2 offsets, int slot) {
    const uint32_t near = halo + offsets.x, far = halo + offsets.y;  // with first_row
    using T = typename Traits::Type;
    raw[slot][0] = device::load_shared_element<T>(near + row_step[m][0]);
    raw[slot][1] = device::load_shared_element<T>(near + row_step[m][1]);
    raw[slot][2] = device::load_shared_element<T>(far + row_step[m][0]);
    raw[slot][3] = device::load_shared_element<T>(far + row_step[m][1]);
  }

  /// Splits what load() brought.
  __device__ __forceinline__ void convert(int buffer, int slot) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kAccurate) {
        const device::Tf32Pair pair = device::split_tf32_unguarded(raw[slot][i]);
        high[buffer][i] = pair.high;
        low[buffer][i] = pair.low;
      } else {
        high[buffer][i] = device::round_tf32_by_cut(raw[slot][i]);
      }
    }
  }

  /// The products of one k8 step for m64 tile `m`; `first` starts new partial sums.
  __device__ __forceinline__ void multiply(int buffer, int m, uint64_t b_high, bool first) {
    device::wgmma_fence();
    if constexpr (kAccurate) {
      const uint64_t b_low = device::descriptor_after(b_high, Traits::kColumns * 32);
      device::wgmma_tf32(part[m], low[buffer], b_high, first ? 0 : 1);
      device::wgmma_tf32(part[m], high[buffer], b_low, 1);
      device::wgmma_tf32(part[m], high[buffer], b_high, 1);
    } else {
      device::wgmma_tf32(sum[m], high[buffer], b_high, 1);
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
    if (kFlat && p.flat) locate_rows(item.before);
    device::barrier_wait(s.halo_full(p, halo_ring.stage), halo_ring.parity);
    shift_bytes = halo_shift(p, item) * kElement;
    uint32_t halo = halo_address();
    const uint32_t table_end = table + static_cast<uint32_t>(steps) * 32;
    const auto after = [&](uint32_t entry) { return entry + 32 == table_end ? table : entry + 32; };
    uint32_t entry = after(table);
    int step = 0, chunks_left = item.end_chunk - item.first_chunk;
    uint2 offsets = load_shared_pair(table), next_offsets = load_shared_pair(entry);
    load(0, halo, offsets, 0);
    convert(0, 0);
    const auto advance = [&] {
      offsets = next_offsets;
      entry = after(entry);
      next_offsets = load_shared_pair(entry);
      if (++step == steps) {
        step = 0;
        if (--chunks_left > 0) halo = next_halo();
      }
    };
    if constexpr (kAhead == 2) {
      if (kTiles == 1) advance();
      load(1 % kTiles, halo, offsets, 1);
    }
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int i = 0; i < kRegisters; ++i) sum[m][i] = 0;
    bool fresh = true;  // partial sums begin with this stage
    const int rest = (item.end_chunk - item.first_chunk) * steps % kStepsPerStage;
    const bool half_stage = rest == 1 || rest == 2;  // at the end: what follows is padding
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
      device::barrier_wait(s.weights_full(weight_ring.stage), weight_ring.parity);
      const uint64_t weights = device::core_matrix_descriptor(
          s.weights + static_cast<uint32_t>(weight_ring.stage * Traits::kStageFloats) * 4);
#pragma unroll
      for (int u = 0; u < kStepsPerStage; ++u) {
        if (kHalvesStages && u == kStepsPerStage / 2 && half_stage && stage + 1 == stages) break;
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          const int buffer = (u * kTiles + m) % 2;
          multiply(buffer, m, device::descriptor_after(weights, static_cast<uint32_t>(u) * Traits::kStepFloats * 4),
                   u == 0 && fresh);
          // Float32: the loads come after the wait, or the assembler mixes them among the unit's three products. TF32,
          // with one product a unit, needs them earlier.
          if constexpr (kAccurate) {
            device::wgmma_wait<1>();
            if (u == 0 && m == 0 && !fresh) release_weights(1);
          }
          if ((m + kAhead) % kTiles == 0) advance();
          load((m + kAhead) % kTiles, halo, offsets, buffer % kAhead);  // past the last step: is not used
          if constexpr (!kAccurate) {
            device::wgmma_wait<1>();  // the unit before this one: its fragments may be overwritten
            if (u == 0 && m == 0 && stage > 0) release_weights(1);
          }
          convert(1 - buffer, (buffer + 1) % kAhead);
        }
      }
      if constexpr (kAccurate) {
        fresh = !(kHalvesPromotion && p.long_sums && fresh && stage + 1 < stages);  // of the next stage
        if (fresh) {
          device::wgmma_wait<0>();
#pragma unroll
          for (int m = 0; m < kTiles; ++m) device::wgmma_pin(part[m]);
          release_weights(0);
#pragma unroll
          for (int m = 0; m < kTiles; ++m)
#pragma unroll
            for (int i = 0; i < kRegisters; ++i) sum[m][i] += part[m][i];
        }
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
    const uint32_t barrier = s.weights_empty(stage < 0 ? stage + p.weight_stages : stage);
    if constexpr (Traits::kPairs) {  // both blocks of a pair are told
      __syncwarp();
      const uint32_t lane = static_cast<uint32_t>(thread) % 32;
      if (lane <= static_cast<uint32_t>(p.pair)) {
        device::barrier_arrive_in_cluster(device::barrier_of_block(barrier, lane));
      }
    } else {
      release(barrier);
    }
  }

  __device__ __forceinline__ uint32_t halo_address() const {
    return s.halo + static_cast<uint32_t>(halo_ring.stage * p.halo_stage_words * kElement) + shift_bytes + first_row;
  }

  /// Hands the current halo stage back and waits for the next.
  __device__ __forceinline__ uint32_t next_halo() {
    release(s.halo_empty(p, halo_ring.stage));
    halo_ring.advance(p.halo_stages);
    device::barrier_wait(s.halo_full(p, halo_ring.stage), halo_ring.parity);
    return halo_address();
  }
};

}  // namespace halo::cuda::conv
