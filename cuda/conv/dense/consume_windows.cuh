// The main loop of the dense engine's kernel in TF32 where threads slide along the taps of a kernel row
// (DensePlan::windows): a thread holds four neighbouring rows, and from one tap to the next they read the same words
// moved by one. It loads them once, 16 bytes at a time, which takes a third of the shared memory's time. Neighbouring
// depths are channels there, and items begin where sources are aligned.
#pragma once

#include <numeric>
#include <utility>

#include "consume_tf32.cuh"

namespace halo::cuda::conv {

/// As DenseConsumerTf32.
template <class Traits>
struct DenseConsumerWindows : DenseConsumerTf32<Traits> {
  using Base = DenseConsumerTf32<Traits>;
  using Base::kTiles;
  using Base::p;
  using Base::s;
  using Base::sum;
  static constexpr int kTaps = Traits::kWindowTaps;
  static constexpr int kUnrolled = std::lcm(kStepsPerStage, 2 * kTaps);  // steps
  static constexpr int kQuads = (kTaps + 3 + 3) / 4;                     // of words that a depth's rows read
  static_assert(kTiles == 2);

  float words[2][kQuads * 4];  // of depths c and c + 4, the row of taps that is loaded
  uint64_t weights;            // of the stage
  bool ready;                  // they are there
  int stages_left, last;       // the stage before, or -1

  using Base::Base;

  /// Goes on to the next row of taps.
  __device__ __forceinline__ void advance() {
    if (this->steps_left == 0) Base::next_chunk();
    this->near = this->halo + this->offsets.x;
    this->far = this->halo + this->offsets.y;
    this->steps_left -= kTaps;
    this->entry = this->steps_left == 0 ? this->table : this->entry + kTaps * 32;
    this->offsets = load_shared_pair(this->entry);
  }

  /// Starts the loads that step `i` needs besides those of the steps before it, which have been converted.
  __device__ __forceinline__ void load(int i) {
    const int tap = i % kTaps;
    if (tap == 0) advance();
    if (tap == 0) load_quad(0);
    if (tap % 4 == 1 && tap / 4 + 1 < kQuads) load_quad(tap / 4 + 1);
  }

  __device__ __forceinline__ void load_quad(int quad) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint4 four = load_shared_quad((k == 0 ? this->near : this->far) + static_cast<uint32_t>(quad) * 16);
      words[k][quad * 4 + 0] = __uint_as_float(four.x);
      words[k][quad * 4 + 1] = __uint_as_float(four.y);
      words[k][quad * 4 + 2] = __uint_as_float(four.z);
      words[k][quad * 4 + 3] = __uint_as_float(four.w);
    }
  }

  /// Rounds the fragments of step `i`.
  __device__ __forceinline__ void convert(int i) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        this->part[i % 2][m][k] = device::round_tf32_by_cut(words[k / 2][2 * m + k % 2 + i % kTaps]);
  }

  /// Step `I` of the unrolled ones. False after the item's last one.
  template <int I>
  __device__ __forceinline__ bool step() {
    constexpr int u = I % kStepsPerStage;
    auto& ring = this->weight_ring;
    if (u == 0) {
      if (!ready) device::barrier_wait(s.weights_full(ring.stage), ring.parity);
      weights =
          device::core_matrix_descriptor(s.weights + static_cast<uint32_t>(ring.stage * Traits::kStageFloats) * 4);
    }
    Base::multiply(I % 2, device::descriptor_after(weights, static_cast<uint32_t>(u) * Traits::kStepFloats * 4),
                   I == 0 && last < 0);
    device::wgmma_wait<1>();  // the step before this one: its fragments may be overwritten
    const int before = last;
    if (u + 1 == kStepsPerStage) {
      last = ring.stage;
      ring.advance(p.weight_stages);
      ready = device::barrier_done(s.weights_full(ring.stage), ring.parity);  // takes its time
    }
    convert(I + 1);
    load(I + 2);
    if (u == 0 && (I > 0 || before >= 0)) Base::release_weights(before);
    return u + 1 < kStepsPerStage || --stages_left > 0;
  }

  template <int... I>
  __device__ __forceinline__ bool unrolled_steps(std::integer_sequence<int, I...>) {
    return (step<I>() && ...);
  }

  /// All depth of one item into `sum`.
  __device__ __forceinline__ void accumulate(const DenseItem& item) {
    stages_left = item.stages(p);
    if (p.resident) {
      this->weight_ring.stage = static_cast<int>(item.first_weight(p, Traits::kStageFloats) / Traits::kStageFloats);
      this->weight_ring.parity = 0;
    }
    this->steps = this->steps_left = p.phase[item.phase].steps;
    this->chunks_left = item.end_chunk - item.first_chunk;
    this->table = this->entry = this->first_table + static_cast<uint32_t>(p.phase[item.phase].table) * 32;
    this->offsets = load_shared_pair(this->entry);
    this->halo_start = s.halo + this->first_row;  // items begin where sources are aligned: nothing is moved
    this->halo = Base::halo_address();
    device::barrier_wait(this->halo_full + static_cast<uint32_t>(this->halo_ring.stage) * 16, this->halo_ring.parity);
    load(0);
    convert(0);
    load(1);
    last = -1;
    ready = false;
#pragma unroll 1
    while (unrolled_steps(std::make_integer_sequence<int, kUnrolled>{})) {
    }
    device::wgmma_wait<0>();
#pragma unroll
    for (int m = 0; m < kTiles; ++m) device::wgmma_pin(sum[m]);
    Base::release_weights(last);
    Base::release_halo();
    this->halo_ring.advance(this->halo_stages);
  }
};

}  // namespace halo::cuda::conv
