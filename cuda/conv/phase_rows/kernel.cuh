// Transposed convolutions of few channels a group, of stride 2: result channels in all phases are rows, positions q of
// a row columns of a warpgroup's products.
//
// A block marches down the height. Its warps have parts. Loaders split a row of the source once into 16 bytes of a
// position's channels, so that a neighbour's operand is the same some positions further on. Two teams multiply items in
// turn, with all weights in registers, and put the sums into shared memory as they lie in global memory: a run for each
// channel and phase of the depth. Senders give the copy engine the whole lines of the runs and pass what is left at
// their ends on to the next item's.
//
// Split operands, and zeros that stand for what does not exist, make results that are not finite where plain sums have
// finite ones: the senders compute them again, in plain float32.
#pragma once

#include "../../device/mbarrier.cuh"
#include "operands.cuh"

namespace halo::cuda::conv::phase_rows {

/// Puts a warp's sums into the lane's row of its run; whether they are all finite. Odd: the row begins in the middle of
/// a word.
template <bool Odd, class T>
__device__ __forceinline__ bool put(const float (&sums)[kPositions / 2], T* row, int width) {
  const auto t = static_cast<int>(threadIdx.x % 4);
  float poison[2] = {};
#pragma unroll
  for (int i = 0; i < kPositions / 2; i += 4) {  // columns 2 i + 2 t and the next of rows g and g + 8
    const float four[4] = {sums[i], sums[i + 2], sums[i + 1], sums[i + 3]};
    T* const to = row + 4 * i + 4 * t;
    constexpr int kOfWord = 4 / static_cast<int>(sizeof(T)), kBegin = Odd ? 1 : 0, kEnd = Odd ? 3 : 4;
    if (4 * i + 16 <= width) {
#pragma unroll
      for (int e = kBegin; e < kEnd; e += kOfWord)
        *reinterpret_cast<uint32_t*>(to + e) = device::pack_word<T>(four + e);
      if constexpr (Odd) {
        to[0] = device::from_accumulator<T>(four[0]);
        to[3] = device::from_accumulator<T>(four[3]);
      }
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (4 * i + 4 * t + e < width) to[e] = device::from_accumulator<T>(four[e]);
      }
    }
    poison[0] = fmaf(four[0], four[1], poison[0]);
    poison[1] = fmaf(four[2], four[3], poison[1]);
  }
  return isfinite(poison[0] + poison[1]);
}

template <class T, bool Split>
__device__ __forceinline__ void multiply_items(const Plan& plan, const Arguments<T>& arguments, const Shared<T>& shared,
                                               int team, int warp) {
  const small_groups::GroupProblem& p = plan.problem;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int height = warp % p.phases[1], first_run = warp / p.phases[1] * 8, index = first_run + lane / 4;
  const bool exists = first_run < plan.runs;
  const Run run = plan.run[exists ? index : 0];
  const int reach = plan.reach[1], width = p.result[2];
  const auto arrive = [&](uint32_t barrier) {
    if (lane == 0) device::barrier_arrive(barrier);
  };
  Weights<T, Split> weights;
  int group = -1, item = 0, step = 0;
  for (March march(plan, static_cast<int>(blockIdx.x)); march.exists(plan);
       march = march.next(plan), step += reach - 1, item += item % kJoined<T>) {
    if (march.group != group) {
      group = march.group;
      weights.load(plan, arguments.weight, group, run, height, exists);
    }
    const auto behind = static_cast<unsigned>(behind_line(march.result(plan, arguments.result, run)));
    for (int h = 0; h < march.count; ++h, ++item, ++step) {
      if (item % kTeams != team) continue;
      const int last = step + reach - 1;
      device::barrier_wait(shared.loaded(step % kSlots), static_cast<uint32_t>(step / kSlots % 2));
      device::barrier_wait(shared.loaded(last % kSlots), static_cast<uint32_t>(last / kSlots % 2));
      const uint32_t slots[kReach] = {shared.slot(step % kSlots), shared.slot(last % kSlots)};
      float sums[kPositions / 2];
      weights.multiply(plan, slots, sums);
      // A row is free when all items that could read it have; those that a march does not have arrive as well.
      arrive(shared.read(step % kSlots));
      if (reach == kReach) {
        arrive(shared.read(last % kSlots));
        if (h == 0) arrive(shared.read(step % kSlots));
        if (h + 1 == march.count) arrive(shared.read(last % kSlots));
      }
      const int use = item / kJoined<T>, stage = use % kStages, place = h % kJoined<T>;
      device::barrier_wait(shared.sent(stage), static_cast<uint32_t>(use / kStages % 2 ^ 1));
      if (exists) {
        const unsigned first = behind + static_cast<unsigned>((h - place) * p.phases[1] * width);
        T* const row =
            shared.stage(stage) + index * plan.run_pitch + first % kLine<T> + (place * p.phases[1] + height) * width;
        const bool odd = kHalf<T> && behind_word(row);
        const bool finite = odd ? put<kHalf<T>>(sums, row, width) : put<false>(sums, row, width);
        if (!finite) shared.poisoned(stage) = use + 1;
      }
      device::fence_async_proxy();
      __syncwarp();
      arrive(shared.staged(stage));
      if (h + 1 == march.count && place + 1 < kJoined<T>) arrive(shared.staged(stage));
    }
  }
}

template <class T, bool Split>
__device__ __forceinline__ void load_sources(const Plan& plan, const T* data, const Shared<T>& shared, int thread) {
  March march(plan, static_cast<int>(blockIdx.x));
  int row = 0;
  SourceRow<T> rows[kAhead];
  const auto load = [&](SourceRow<T>& ahead) {
    ahead.load(plan, data, march, row, thread);
    if (++row == march.count + plan.reach[1] - 1) {
      row = 0;
      march = march.next(plan);
    }
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load(rows[i]);
  for (int step = 0;;) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i, ++step) {
      if (!rows[i].exists) return;
      const int slot = step % kSlots;
      device::barrier_wait(shared.read(slot), static_cast<uint32_t>(step / kSlots % 2 ^ 1));
      rows[i].template store<Split>(plan, shared.slot(slot), thread - plan.problem.origin[2]);
      device::fence_async_proxy();
      device::barrier_arrive(shared.loaded(slot));
      load(rows[i]);
    }
  }
}

/// Replaces what is not finite in a sender's runs of a stage. `height`: its first row.
template <class T>
__device__ __noinline__ void repair(const Plan& plan, const PlainSumOf<T>& plain, T* result, T* stage, int index,
                                    int height, int count, int sender) {
  const small_groups::GroupProblem& p = plan.problem;
  const March march(plan, index);
  for (int r = sender; r < plan.runs; r += kSenders) {
    const Run run = plan.run[r];
    const int depth = march.depth * p.phases[0] + run.phase;
    if (run.channel >= p.result_channels || depth >= p.result[0]) continue;
    const int64_t flat = (int64_t{depth} * p.result[1] + height) * p.result[2];
    const T* const begin = march.result(plan, result, run) + int64_t{height - march.first * p.phases[1]} * p.result[2];
    repair_row(plain, stage + r * plan.run_pitch + behind_line(begin), count, march.image,
               march.group * p.result_channels + run.channel, flat);
  }
  device::fence_async_proxy();
  __syncwarp();
}

/// Sends a warp's runs of all stages: its first eight lanes have a run each, and all share the ends.
template <class T>
__device__ __forceinline__ void send_stages(const Plan& plan, const PlainSumOf<T>& plain, T* result,
                                            const Shared<T>& shared, int sender) {
  constexpr int kOwn = kMostRuns / kSenders, kParts = 32 / kOwn;
  const small_groups::GroupProblem& p = plan.problem;
  const int lane = static_cast<int>(threadIdx.x % 32), part = lane / kOwn, index = lane % kOwn * kSenders + sender;
  const Run run = plan.run[index];
  int use = 0;  // of the stages
  for (March march(plan, static_cast<int>(blockIdx.x)); march.exists(plan); march = march.next(plan)) {
    const bool exists =
        index < plan.runs && run.channel < p.result_channels && march.depth * p.phases[0] + run.phase < p.result[0];
    T* begin = march.result(plan, result, run);
    for (int h = 0; h < march.count; h += kJoined<T>, ++use) {
      const int height = (march.first + h) * p.phases[1], stage = use % kStages;
      const int rows = min(min(kJoined<T>, march.count - h) * p.phases[1], p.result[1] - height);
      const int count = rows * p.result[2];
      device::barrier_wait(shared.staged(stage), static_cast<uint32_t>(use / kStages % 2));
      if (shared.poisoned(stage) == use + 1)
        repair(plan, plain, result, shared.stage(stage), march.index, height, count, sender);
      if (exists) {
        const bool opens = h == 0, closes = h + kJoined<T> >= march.count;
        const int behind = behind_line(begin);
        const T* const staged = shared.stage(stage) + index * plan.run_pitch + behind;
        // From the first line's begin, where the item before has left what precedes this one.
        const int from = opens ? min(count, (kLine<T> - behind) % kLine<T>) : -behind;
        const int to = max(from, count - (behind + count) % kLine<T>);
        if (part == 0 && to > from)
          device::store_bulk(begin + from, device::shared_address(staged + from),
                             (to - from) * static_cast<int>(sizeof(T)));
        T* const rest = closes ? begin + to : shared.stage((use + 1) % kStages) + index * plan.run_pitch;
#pragma unroll
        for (int i = 0; i < kLine<T>; i += kParts) {
          const int e = i + part;
          if (opens && e < from) begin[e] = staged[e];
          if (to + e < count) rest[e] = staged[to + e];
        }
        begin += count;
      }
      device::fence_async_proxy();
      device::store_bulk_wait<kStages - 2>();
      __syncwarp();
      if (lane == 0 && use >= kStages - 2) device::barrier_arrive(shared.sent((use + 2) % kStages));
    }
  }
  device::store_wait();
}

template <class T, bool Split>
__global__ void __launch_bounds__(kThreads, 1)
    phase_rows_kernel(const __grid_constant__ Plan plan, const __grid_constant__ Arguments<T> arguments,
                      const __grid_constant__ PlainSumOf<T> plain) {
  extern __shared__ __align__(128) unsigned char memory[];
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const Shared<T> shared(plan, memory, Split ? 2 : 1);
  for (int i = thread * 16; i < static_cast<int>(plan.shared_bytes); i += kThreads * 16)
    *reinterpret_cast<uint4*>(memory + i) = uint4{};
  __syncthreads();
  if (thread == 0) {
    for (int slot = 0; slot < kSlots; ++slot) {
      device::barrier_init(shared.loaded(slot), 128);
      device::barrier_init(shared.read(slot), kTeamWarps * plan.reach[1]);
    }
    for (int stage = 0; stage < kStages; ++stage) {
      device::barrier_init(shared.staged(stage), kTeamWarps * kJoined<T>);
      device::barrier_init(shared.sent(stage), kSenders);
    }
    device::barrier_init_fence();
  }
  device::fence_async_proxy();
  __syncthreads();
  if (warp < kTeams * kTeamWarps) {
    device::registers_increase<kRegisters>();
    multiply_items<T, Split>(plan, arguments, shared, warp / kTeamWarps, warp % kTeamWarps);
  } else if (warp < (kTeams + 1) * kTeamWarps) {
    device::registers_decrease<kLoaderRegisters>();
    load_sources<T, Split>(plan, arguments.source, shared, thread - kTeams * 128);
  } else {
    device::registers_decrease<kSenderRegisters>();
    send_stages(plan, plain, arguments.result, shared, warp % kSenders);
  }
}

}  // namespace halo::cuda::conv::phase_rows
