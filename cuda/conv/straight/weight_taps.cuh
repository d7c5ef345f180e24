// backward_weight of half types where taps do not read packs of x as they are.
//
// The sum runs over positions. A block owns 32 output channels times 64 input channels, of up to kWeightTaps
// neighbouring taps of a row; its steps are neighbouring positions of one row, and rows of both operands lie in shared
// memory as they do in memory, those of x from the 16 bytes on in which they begin. A warp has 16 input channels and
// every second run of 32 positions, a lane eight neighbours of those: 16 bytes of a row of y. They are 2 t, 2 t + 1,
// 2 t + 8 and 2 t + 9 of the depth of two products: sums do not mind, as both operands have the same order.
#pragma once

#include "../../device/grid_order.cuh"
#include "../../launch.h"
#include "../granule_rows.cuh"
#include "../stage_ring.cuh"
#include "weight.cuh"

namespace halo::cuda::conv::straight {

inline constexpr int kTapColumnTiles = 2, kTapRowTiles = 2;  ///< of a warp, of 8 input and 16 output channels
inline constexpr int kTapWarps = 8, kTapThreads = kTapWarps * 32;
inline constexpr int kTapSplits = kTapWarps * kTapColumnTiles * 8 / kWeightColumns;  ///< warps that divide a step
static_assert(kTapSplits == 2 && weight_rows(false) == kTapRowTiles * 16);
inline constexpr int kTapFillers = 4;  ///< further warps, where the copy engine brings the rows
/// Threads of a block.
constexpr int tap_threads(bool engine) { return kTapThreads + (engine ? kTapFillers * 32 : 0); }

/// A tensor from the 16-byte boundary on at or before which it begins.
template <class T>
struct Granules {
  const T* from;
  int64_t begin, end;  ///< elements

  __device__ __forceinline__ Granules(const T* data, int64_t elements)
      : begin(static_cast<int64_t>(reinterpret_cast<uintptr_t>(data) / sizeof(T) % 8)) {
    from = data - begin;
    end = begin + elements;
  }
  /// Orders granules of Rows rows, `apart` elements from each other, from that of element `first` on; zeros outside of
  /// the tensor and in all but the first `there` rows. By a warp. `pitch`: bytes between rows in shared memory.
  template <int Rows>
  __device__ __forceinline__ void copy_rows(uint32_t to, int pitch, int64_t first, int64_t apart, int granules,
                                            int there) const {
    const auto lane = static_cast<int>(threadIdx.x % 32);
    first = (first & ~int64_t{7}) + lane * 8;
    to += static_cast<uint32_t>(lane * 16);
    const bool whole = there >= Rows && first >= begin && first + (Rows - 1) * apart + granules * 8 <= end;
#pragma unroll 1
    for (int i = lane; i < granules; i += 32, first += 256, to += 512) {
      if (whole) {
        const T* row = from + first;
#pragma unroll
        for (int r = 0; r < Rows; ++r, row += apart) device::copy_async<16>(to + r * pitch, row, 16);
      } else {
#pragma unroll 1
        for (int r = 0; r < Rows; ++r) {
          const int64_t at = first + r * apart;
          const bool exists = r < there && at + 8 > begin;
          const int count = exists ? static_cast<int>(max(int64_t{0}, min(end - at, int64_t{8}))) : 0;
          device::copy_async<16>(to + r * pitch, from + at, count * int{sizeof(T)});
        }
      }
    }
  }
};

/// What all warps know of a step in shared memory.
struct alignas(16) StepHead {
  int column;          ///< of x that the first tap reads first
  int left;            ///< positions to the end of the row of y; 0 where there is no row of x
  int x_lead, y_lead;  ///< elements of a block's first row behind whole 16 bytes
};

/// Orders the rows of a step, those of x first. A warp has every kTapWarps-th row.
template <class T>
__device__ __forceinline__ void copy_step(const WeightBlock<T, false>& block, const Granules<T>& of_x,
                                          const Granules<T>& of_y, uint32_t to, StepHead& head,
                                          const typename WeightBlock<T, false>::Step& s) {
  const WeightPlan& plan = block.plan;
  const small_groups::GroupProblem& p = plan.problem;
  const auto warp = static_cast<int>(threadIdx.x / 32);
  bool exists;
  const int64_t x = block.first_of(s, 0, exists) + of_x.begin, y = block.first_of_y(s, 0) + of_y.begin;
  if (threadIdx.x == 0)
    head = {s.q * p.step[2] + p.origin[2] + block.width_tap, exists ? p.result[2] - s.q : 0, static_cast<int>(x & 7),
            static_cast<int>(y & 7)};
  const auto rows_left = [&](int rows) { return (rows - warp + kTapWarps - 1) / kTapWarps; };
  const int64_t x_plane = p.source_rows.plane_pitch, y_plane = p.result_rows.plane_pitch;
  of_x.template copy_rows<kWeightColumns / kTapWarps>(
      to + static_cast<uint32_t>(warp * plan.x_pitch), kTapWarps * plan.x_pitch, x + warp * x_plane,
      kTapWarps * x_plane, plan.granules, exists ? rows_left(p.source_channels - block.channel) : 0);
  to += static_cast<uint32_t>(kWeightColumns * plan.x_pitch + warp * plan.y_pitch);
  of_y.template copy_rows<block.kRows / kTapWarps>(to, kTapWarps * plan.y_pitch, y + warp * y_plane,
                                                   kTapWarps * y_plane, plan.positions / 8 + (plan.y_whole ? 0 : 1),
                                                   rows_left(p.result_channels - block.row));
}

/// By kTapFillers warps: the same of all steps by the copy engine, a lane a row.
template <class T>
__device__ __forceinline__ void stream_steps(const WeightBlock<T, false>& block, uint32_t shared, StepHead* heads,
                                             Ring ring, int filler, int lane) {
  constexpr int kRows = (kWeightColumns + block.kRows) / kTapFillers;
  static_assert(kRows <= 32);
  const WeightPlan& plan = block.plan;
  const small_groups::GroupProblem& p = plan.problem;
  const int row = filler * kRows + lane, result = row - kWeightColumns;
  const bool of_y = result >= 0;
  const bool there =
      lane < kRows && (of_y ? result < p.result_channels - block.row : row < p.source_channels - block.channel);
  const T* const begin = of_y ? block.arguments.y : block.arguments.x;
  const int64_t apart = of_y ? result * p.result_rows.plane_pitch : row * p.source_rows.plane_pitch;
  const uint32_t bytes = (of_y ? plan.positions / 8 + (plan.y_whole ? 0 : 1) : plan.granules) * device::kGranule;
  const uint32_t place = shared + (of_y ? kWeightColumns * plan.x_pitch + result * plan.y_pitch : row * plan.x_pitch);
  for (int64_t index = blockIdx.x; index < plan.steps; index += gridDim.x, ring.advance()) {
    const auto s = block.step_of(index);
    bool exists;
    const T* const x = block.arguments.x + block.first_of(s, 0, exists);
    const T* const y = block.arguments.y + block.first_of_y(s, 0);
    ring.wait_released();
    if (filler == 0 && lane == 0)
      heads[ring.slot()] = {s.q * p.step[2] + p.origin[2] + block.width_tap, exists ? p.result[2] - s.q : 0,
                            static_cast<int>(lead_of(x) / sizeof(T)), static_cast<int>(lead_of(y) / sizeof(T))};
    const T* const from = (of_y ? y : x) + apart;
    start_runs(ring.copied(), from, there && exists ? bytes - lead_of(from) : 0,
               place + static_cast<uint32_t>(ring.slot() * plan.stage_bytes), begin,
               begin + (of_y ? p.result_rows : p.source_rows).elements, lane);
  }
}

/// Every step-th element from `from` on. With `Edge`, those outside of a row count as zeros: `column` is that of the
/// first, of `width`.
template <bool Edge, int N>
__device__ __forceinline__ void load_elements(uint32_t (&to)[N], const uint16_t* from, int step, int column,
                                              int width) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const bool exists = !Edge || static_cast<unsigned>(column + i * step) < static_cast<unsigned>(width);
    to[i] = exists ? from[i * step] : 0;
  }
}

/// One row of x for the products of a lane with its eight positions. Step: positions and taps are as far apart, so that
/// neighbours read the same elements; 0 where they are not.
template <int Step>
struct TapOperands {
  uint32_t pair[kWeightTaps][4];

  template <bool Edge>
  __device__ __forceinline__ void load(const uint16_t* from, int step, const int (&tap_at)[kWeightTaps], int column,
                                       int width) {
    if constexpr (Step != 0) {
      uint32_t e[8 + kWeightTaps - 1];
      load_elements<Edge>(e, from, Step, column, width);
#pragma unroll
      for (int tap = 0; tap < kWeightTaps; ++tap) {
#pragma unroll
        for (int i = 0; i < 4; ++i) pair[tap][i] = __byte_perm(e[2 * i + tap], e[2 * i + 1 + tap], 0x5410);
      }
    } else {
#pragma unroll
      for (int tap = 0; tap < kWeightTaps; ++tap) {
        uint32_t e[8];
        load_elements<Edge>(e, from + tap_at[tap], step, column + tap_at[tap], width);
#pragma unroll
        for (int i = 0; i < 4; ++i) pair[tap][i] = __byte_perm(e[2 * i], e[2 * i + 1], 0x5410);
      }
    }
  }
};

using TapSums = float[kWeightTaps][kTapRowTiles][kTapColumnTiles][4];

/// sums += what the lane's positions of a run give. `y`, `x`: their first, of the lane's first rows. With Edge,
/// `column` is that of x, and `left` positions are in the row of y.
template <class T, bool Edge, int Step>
__device__ __forceinline__ void multiply_run(const WeightPlan& plan, TapSums& sums, const unsigned char* y,
                                             const unsigned char* x, const int (&tap_at)[kWeightTaps], int column,
                                             int left) {
  const small_groups::GroupProblem& p = plan.problem;
  uint32_t inside[4];  // the row of y
#pragma unroll
  for (int i = 0; i < 4; ++i) inside[i] = left > 2 * i + 1 ? 0xffffffffu : left > 2 * i ? 0xffffu : 0u;
  uint32_t a[kTapRowTiles][2][4];
#pragma unroll
  for (int m = 0; m < kTapRowTiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint4 all = load_eight(y + (m * 16 + h * 8) * plan.y_pitch, plan.y_whole);
      all.x &= inside[0], all.y &= inside[1], all.z &= inside[2], all.w &= inside[3];
      a[m][0][h] = all.x, a[m][0][2 + h] = all.y, a[m][1][h] = all.z, a[m][1][2 + h] = all.w;
    }
  }
#pragma unroll
  for (int n = 0; n < kTapColumnTiles; ++n) {
    TapOperands<Step> b;
    b.template load<Edge>(reinterpret_cast<const uint16_t*>(x + n * 8 * plan.x_pitch), p.step[2], tap_at, column,
                          p.source[2]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int tap = 0; tap < kWeightTaps; ++tap) {
#pragma unroll
        for (int m = 0; m < kTapRowTiles; ++m)
          device::multiply_halves<T>(sums[tap][m][n], a[m][half], {b.pair[tap][2 * half], b.pair[tap][2 * half + 1]});
      }
    }
  }
}

/// Step: of positions and taps alike, or 0. Engine: the copy engine brings the rows, ordered by further warps.
template <class T, int Step, bool Engine>
__global__ void __launch_bounds__(tap_threads(Engine), 1)
    weight_taps_kernel(const __grid_constant__ WeightPlan plan, const __grid_constant__ WeightArguments<T> arguments) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ StepHead heads[kTapStages];
  const small_groups::GroupProblem& p = plan.problem;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int t = lane % 4, g = lane / 4;
  const WeightBlock<T, false> block(plan, arguments);
  const Granules<T> of_x(arguments.x, p.source_rows.elements), of_y(arguments.y, p.result_rows.elements);
  const int taps = min(kWeightTaps, p.kernel[2] - block.first_tap);
  int tap_at[kWeightTaps];  // of those that do not exist, as of the last
#pragma unroll
  for (int tap = 0; tap < kWeightTaps; ++tap)
    tap_at[tap] = p.kernel[2] > 1 ? min(tap, taps - 1) * p.taps[2].offset[0][1] : 0;
  const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int split = warp % kTapSplits, warp_column = warp / kTapSplits * kTapColumnTiles * 8;
  const int runs = plan.positions / 32;
  // x comes first: a window of taps that do not exist ends in y.
  const int x_lane = (warp_column + g) * plan.x_pitch, y_lane = kWeightColumns * plan.x_pitch + g * plan.y_pitch;

  __shared__ Ring::Barriers barriers;
  Ring ring(barriers, kTapStages);
  if constexpr (Engine) {
    if (threadIdx.x == 0) ring.init(kTapWarps, kTapFillers);
    __syncthreads();
    device::release_next_grid();
    if (warp >= kTapWarps) return stream_steps(block, base, heads, ring, warp - kTapWarps, lane);
  }

  TapSums sums{}, totals{};
  constexpr int kSums = sizeof(sums) / sizeof(float);
  int64_t fetched = blockIdx.x;
  const auto fetch = [&](int slot) {
    if (fetched < plan.steps)
      copy_step(block, of_x, of_y, base + static_cast<uint32_t>(slot * plan.stage_bytes), heads[slot],
                block.step_of(fetched));
    device::copy_async_commit();
    fetched += gridDim.x;
  };
  if constexpr (!Engine) {
    for (int i = 0; i + 1 < kTapStages; ++i) fetch(i);
  }
  const auto x_behind = static_cast<int>((g * p.source_rows.plane_pitch) & 7);  // rows g and g + 8 begin alike
  const auto y_behind = static_cast<int>((g * p.result_rows.plane_pitch) & 7);
  int slot = 0, count = 0;
  for (int64_t index = blockIdx.x; index < plan.steps; index += gridDim.x) {
    if constexpr (Engine) {
      ring.wait_copied();
    } else {
      device::copy_async_wait<kTapStages - 2>();
      __syncthreads();  // the stage has arrived, and everybody is done with the one before
      fetch((slot + kTapStages - 1) % kTapStages);
    }
    const unsigned char* const stage = shared + slot * plan.stage_bytes;
    const StepHead head = heads[slot];
    slot = (slot + 1) % kTapStages;
    const bool edge = head.column < 0 || head.left < plan.positions ||
                      head.column + (plan.positions - 1) * p.step[2] + tap_at[kWeightTaps - 1] >= p.source[2];
    const unsigned char* const x_row = stage + x_lane + ((head.x_lead + x_behind) & 7) * 2;
    const unsigned char* const y_row = stage + y_lane + ((head.y_lead + y_behind) & 7) * 2;
#pragma unroll 1
    for (int run = head.left != 0 ? split : runs; run < runs; run += kTapSplits) {
      const int position = run * 32 + 8 * t, first = position * (Step != 0 ? Step : p.step[2]);
      const unsigned char *const x = x_row + first * 2, *const y = y_row + position * 2;
      if (edge) {
        multiply_run<T, true, Step>(plan, sums, y, x, tap_at, head.column + first, head.left - position);
      } else {
        multiply_run<T, false, Step>(plan, sums, y, x, tap_at, 0, head.left - position);
      }
    }
    if constexpr (Engine) {
      ring.release(lane);
      ring.advance();
    }
    // The tensor core rounds its sums toward zero: not too many of them.
    if (++count % kWeightFlush == 0 || index + gridDim.x >= plan.steps) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        (&totals[0][0][0][0])[i] += (&sums[0][0][0][0])[i];
        (&sums[0][0][0][0])[i] = 0;
      }
    }
  }
  device::copy_async_wait_all();
  device::barrier_sync(1, kTapThreads);
  // What the second warp of a pair has, [pair][sum][lane].
  float* const other = reinterpret_cast<float*>(shared) + warp / kTapSplits * kSums * 32 + lane;
  if (split != 0) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) other[i * 32] = (&totals[0][0][0][0])[i];
  }
  device::barrier_sync(1, kTapThreads);
  if (split != 0) return;
#pragma unroll
  for (int tap = 0; tap < kWeightTaps; ++tap) {
#pragma unroll
    for (int m = 0; m < kTapRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kTapColumnTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = block.row + m * 16 + i / 2 * 8 + g;
          const int channel = block.channel + warp_column + n * 8 + 2 * t + i % 2;
          if (tap >= taps || row >= p.result_channels || channel >= p.source_channels) continue;
          const float sum =
              totals[tap][m][n][i] + other[(((tap * kTapRowTiles + m) * kTapColumnTiles + n) * 4 + i) * 32];
          block.store(row, channel, tap, sum);
        }
      }
    }
  }
}

template <class T, bool Engine>
void launch_weight_taps(const WeightPlan& plan, const WeightArguments<T>& arguments, cudaStream_t stream) {
  const auto start = [&](auto kernel) {
    launch("conv straight backward_weight", kernel,
           dim3(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.rows_of_blocks)), tap_threads(Engine),
           plan.shared_bytes, stream, plan, arguments);
  };
  if (plan.shared_step == 1) return start(weight_taps_kernel<T, 1, Engine>);
  if (plan.shared_step == 2) return start(weight_taps_kernel<T, 2, Engine>);
  start(weight_taps_kernel<T, 0, Engine>);
}

/// Of weight_engine.cu.
template <class T>
void launch_weight_engine(const WeightPlan& plan, const WeightArguments<T>& arguments, cudaStream_t stream);

}  // namespace halo::cuda::conv::straight
