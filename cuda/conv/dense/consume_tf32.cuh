// The multiplying half of the dense engine's kernel (see kernel.cuh) in TF32 where another warpgroup stores
// results. One product a fragment leaves little time for everything else, so that what is between two products must be
// short: a step's products of all m64 tiles start together from fragments that are ready, and loads run two steps
// ahead of them.
#pragma once

#include "rows.cuh"

namespace halo::cuda::conv {

/// Main loop: gathers, rounds and multiplies one item's depth.
template <class Traits>
struct DenseConsumerTf32 {
  static constexpr int kTiles = Traits::kRowTiles;
  static constexpr int kRegisters = Traits::kColumns / 2;  // accumulators of one m64 tile
  static constexpr uint32_t kNone = 0x80000000u;           // instead of a barrier

  const DenseParams& p;
  const DenseShared s;
  uint32_t first_row;            // what this thread's first row reads: bytes from the start of a halo stage
  uint32_t row_step[kTiles][2];  // from there to its other rows; uniform in a warp, so that loads add it for nothing
  uint32_t first_table;          // this thread's depths in the offset table
  uint32_t weights_release;      // the first stage's barrier on which this lane arrives, or kNone
  bool first_lane;
  int halo_stages, halo_stage_bytes;
  uint32_t halo_full;  // the first stage's barrier
  RingCursor halo_ring, weight_ring;
  float sum[kTiles][kRegisters];
  float raw[kTiles][4];         // the step after the next, on its way
  uint32_t part[2][kTiles][4];  // A fragments of this step and the next

  // Where loads are in the item.
  uint32_t halo_start, halo;           // what the first row reads in the first stage, in this chunk's
  uint32_t table, entry;               // of the phase, of the step after the one that is loaded
  uint32_t near, far;                  // what the first row reads at depths c and c + 4 of the step that is loaded
  uint2 offsets;                       // at `entry`
  int steps_left, chunks_left, steps;  // of this chunk; with this chunk; of a chunk

  __device__ __forceinline__ DenseConsumerTf32(const DenseParams& params, const DenseShared& shared)
      : p(params), s(shared) {
    const int thread = static_cast<int>(threadIdx.x);
    first_row = DenseRow(p, dense_row<Traits>(thread, 0, 0), 0).halo_byte(p);
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      row_step[i / 2][i % 2] =
          __shfl_sync(~0u, DenseRow(p, dense_row<Traits>(thread, i / 2, i % 2), 0).halo_byte(p) - first_row, 0);
    }
    // What a shuffle gave stays in registers. Else the assembler works it out again wherever it is needed, from the
    // thread's number and the parameters, which takes longer than a product.
    const uint32_t lane = static_cast<uint32_t>(thread) % 32;
    const auto keep = [&](auto value) { return __shfl_sync(~0u, value, static_cast<int>(lane)); };
    first_table = keep(s.table + lane % 4 * 8);
    first_lane = keep(lane) == 0;
    halo_stages = keep(p.halo_stages);
    halo_stage_bytes = keep(p.halo_stage_words * 4);
    halo_full = keep(s.halo_full(p, 0));
    uint32_t barrier = s.weights_empty(0);  // of a pair, lane 1 arrives on the other block's
    if constexpr (Traits::kPairs) barrier = device::barrier_of_block(barrier, lane & static_cast<uint32_t>(p.pair));
    const bool arrives = lane <= (Traits::kPairs ? static_cast<uint32_t>(p.pair) : 0);
    weights_release = keep(arrives ? barrier : kNone);
  }

  __device__ __forceinline__ void release(uint32_t barrier) const {
    __syncwarp();
    if (first_lane) device::barrier_arrive(barrier);
  }

  __device__ __forceinline__ void release_halo() const {
    release(halo_full + static_cast<uint32_t>(halo_ring.stage) * 16 + 8);
  }

  __device__ __forceinline__ void release_weights(int stage) const {
    __syncwarp();
    if (weights_release & kNone) return;
    const uint32_t barrier = weights_release + static_cast<uint32_t>(stage) * 16;
    Traits::kPairs ? device::barrier_arrive_in_cluster(barrier) : device::barrier_arrive(barrier);
  }

  __device__ __forceinline__ uint32_t halo_address() const {
    return halo_start + static_cast<uint32_t>(halo_ring.stage * halo_stage_bytes);
  }

  /// Starts the loads of the next step's A fragments. What was loaded before has been converted.
  __device__ __forceinline__ void load() {
    if (__builtin_expect(steps_left == 0, 0)) next_chunk();
    near = halo + offsets.x;
    far = halo + offsets.y;
    entry += 32;
    if (--steps_left == 0) entry = table;
    offsets = load_shared_pair(entry);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      raw[m][0] = load_shared(near + row_step[m][0]);
      raw[m][1] = load_shared(near + row_step[m][1]);
      raw[m][2] = load_shared(far + row_step[m][0]);
      raw[m][3] = load_shared(far + row_step[m][1]);
    }
  }

  /// To the next chunk. Past the last one steps repeat, and are not used.
  __device__ __forceinline__ void next_chunk() {
    steps_left = steps;
    if (--chunks_left <= 0) return;
    release_halo();
    halo_ring.advance(halo_stages);
    device::barrier_wait(halo_full + static_cast<uint32_t>(halo_ring.stage) * 16, halo_ring.parity);
    halo = halo_address();
  }

  /// Rounds what load() brought.
  __device__ __forceinline__ void convert(int buffer) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) part[buffer][m][i] = device::round_tf32_by_cut(raw[m][i]);
  }

  /// The products of a step, one group; `first` starts the item's sums.
  __device__ __forceinline__ void multiply(int buffer, uint64_t b, bool first) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) device::wgmma_pin(part[buffer][m]);  // or each product becomes its own group
    device::wgmma_fence();
#pragma unroll
    for (int m = 0; m < kTiles; ++m) device::wgmma_tf32(sum[m], part[buffer][m], b, first ? 0 : 1);
    device::wgmma_commit();
  }

  /// All depth of one item into `sum`.
  __device__ __forceinline__ void accumulate(const DenseItem& item) {
    steps = p.phase[item.phase].steps;
    table = first_table + static_cast<uint32_t>(p.phase[item.phase].table) * 32;
    const int stages = item.stages(p);
    if (p.resident) {
      weight_ring.stage = static_cast<int>(item.first_weight(p, Traits::kStageFloats) / Traits::kStageFloats);
      weight_ring.parity = 0;
    }
    entry = table;
    steps_left = steps;
    chunks_left = item.end_chunk - item.first_chunk;
    offsets = load_shared_pair(entry);
    halo_start = s.halo + halo_shift(p, item) * 4 + first_row;
    halo = halo_address();
    device::barrier_wait(halo_full + static_cast<uint32_t>(halo_ring.stage) * 16, halo_ring.parity);
    load();
    convert(0);
    load();
    bool ready = false;  // the stage's weights are there
    int last = 0;        // the stage before
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
      if (!ready) device::barrier_wait(s.weights_full(weight_ring.stage), weight_ring.parity);
      const uint64_t weights = device::core_matrix_descriptor(
          s.weights + static_cast<uint32_t>(weight_ring.stage * Traits::kStageFloats) * 4);
#pragma unroll
      for (int u = 0; u < kStepsPerStage; ++u) {
        multiply(u % 2, device::descriptor_after(weights, static_cast<uint32_t>(u) * Traits::kStepFloats * 4),
                 u == 0 && stage == 0);
        device::wgmma_wait<1>();  // the step before this one: its fragments may be overwritten
        if (u == kStepsPerStage - 1) {
          last = weight_ring.stage;
          weight_ring.advance(p.weight_stages);
          ready = device::barrier_done(s.weights_full(weight_ring.stage), weight_ring.parity);  // takes its time
        }
        convert(1 - u % 2);
        load();  // past the last step: repeats, and is not used
        if (u == 0 && stage > 0) release_weights(last);
      }
    }
    device::wgmma_wait<0>();
#pragma unroll
    for (int m = 0; m < kTiles; ++m) device::wgmma_pin(sum[m]);
    release_weights(last);
    release_halo();
    halo_ring.advance(halo_stages);
  }
};

}  // namespace halo::cuda::conv
