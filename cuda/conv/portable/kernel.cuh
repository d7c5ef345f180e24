// Forward and backward_input of the portable engine: rows are positions, columns are channels of the result, the depth
// is (four channels, tap), taps running fastest so that a tile's neighbouring reads meet in L1.
#pragma once

#include "../../device/activation.cuh"
#include "tile.cuh"

namespace halo::cuda::conv {

/// The tile of this block: which phase, group, columns and rows.
struct PortableBlock {
  int phase, group, first_column;
  int64_t first_row;  // of the phase's batch x positions
  int residue[3];

  __device__ PortableBlock(const PortableParams& p, int tile_rows) {
    uint32_t index = blockIdx.x;
    first_column = static_cast<int>(index % static_cast<uint32_t>(p.column_tiles)) * p.tile_columns;
    index /= static_cast<uint32_t>(p.column_tiles);
    group = static_cast<int>(index % static_cast<uint32_t>(p.groups));
    index /= static_cast<uint32_t>(p.groups);
    const int count = p.phases[0] * p.phases[1] * p.phases[2];
    phase = static_cast<int>(index % static_cast<uint32_t>(count));
    first_row = int64_t{index / static_cast<uint32_t>(count)} * tile_rows;
    residue[2] = phase % p.phases[2];
    residue[1] = phase / p.phases[2] % p.phases[1];
    residue[0] = phase / p.phases[2] / p.phases[1];
  }
};

template <class Tile>
struct PortableShared {
  PortableAxis axis[3];
  int64_t target[Tile::kRows];  // of each row: elements from the target's first channel of the group, -1: no such row
  alignas(16) float a[2][Tile::kRows * kPortableDepth];
  alignas(16) float b[3][Tile::kColumns * kPortableDepth];
  float turn[4][kPortableTurnWords];
  PortableTap taps[1];  // as many as the phase has
};

template <class Tile>
struct PortableGather {
  static constexpr int kThreadRows = Tile::kRows > kPortableThreads ? Tile::kRows / kPortableThreads : 1;
  static constexpr int kSharers = Tile::kRows < kPortableThreads ? kPortableThreads / Tile::kRows : 1;  // of a row
  static constexpr int kQuads = 2 / kSharers;  // of a row that a thread brings in each half of a stage
  static_assert(kSharers == 1 || kSharers == 2);

  const PortableParams& p;
  PortableShared<Tile>& s;
  const int taps;
  int row, first_quad;
  int tap = 0, left;   // of the next quad: its tap, and channels from its first on
  int64_t offset = 0;  // of that channel: bytes
  PortablePlace place[kThreadRows];
  float4 staged[2][kThreadRows][kQuads];  // two halves of a stage on their way

  __device__ PortableGather(const PortableParams& params, PortableShared<Tile>& shared, const PortableBlock& block)
      : p(params), s(shared), taps(s.axis[0].taps * s.axis[1].taps * s.axis[2].taps), left(taps > 0 ? p.channels : 0) {
    const int thread = static_cast<int>(threadIdx.x);
    row = thread % min(Tile::kRows, kPortableThreads);
    first_quad = __shfl_sync(~0u, thread / Tile::kRows, 0) * kQuads;
    if (first_quad > 0) next_quad();
    const Sizes& sizes = p.plain.sizes;
    const int64_t(&target)[3] = p.plain.forward ? sizes.output : sizes.input;
    const uint32_t width = static_cast<uint32_t>(s.axis[2].positions);
    const uint32_t area = static_cast<uint32_t>(s.axis[1].positions) * width;
    const uint32_t volume = static_cast<uint32_t>(s.axis[0].positions) * area;
    const int64_t first_image = block.first_row / volume;
    const auto first = static_cast<uint32_t>(block.first_row % volume);
#pragma unroll
    for (int j = 0; j < kThreadRows; ++j) {
      const uint32_t index = first + static_cast<uint32_t>(row + j * kPortableThreads);
      const int64_t n = first_image + index / volume;
      const uint32_t flat = index % volume;
      const int q[3] = {static_cast<int>(flat / area), static_cast<int>(flat % area / width),
                        static_cast<int>(flat % width)};
      int64_t to = -1;
      if (n < sizes.batch) {
        int64_t from = to = 0;
        for (int axis = 0; axis < 3; ++axis) {
          place[j].at[axis] = q[axis] * s.axis[axis].in_step;
          from = from * p.source[axis] + place[j].at[axis];
          to = to * target[axis] + int64_t{q[axis]} * s.axis[axis].out_step + s.axis[axis].origin;
        }
        from += (n * p.groups + block.group) * p.channels * p.source_plane;
        place[j].address = reinterpret_cast<const char*>(p.plain.source + from);
        to += (n * p.groups + block.group) * p.outputs * p.target_plane;
      }
      if (thread < Tile::kRows) s.target[row + j * kPortableThreads] = to;
    }
  }

  __device__ __forceinline__ void next_quad() {
    if (++tap < taps) return;
    tap = 0;
    left -= 4;
    offset += 4 * p.source_step[0];
  }

  /// Starts the loads of the next half of a stage, which is a `half` one.
  __device__ __forceinline__ void load(int half) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const PortableTap at = s.taps[tap];
      const int64_t further = at.offset + offset;
#pragma unroll
      for (int j = 0; j < kThreadRows; ++j) {
        const bool inside = place[j].inside(at, p.source);
        staged[half][j][i] = load_channels(place[j].address + further, p.source_step, left, inside);
      }
#pragma unroll
      for (int k = 0; k < kSharers; ++k) next_quad();
    }
  }

  __device__ __forceinline__ void store(float* a, int half) const {
#pragma unroll
    for (int i = 0; i < kQuads; ++i)
#pragma unroll
      for (int j = 0; j < kThreadRows; ++j) {
        const int to = row + j * kPortableThreads;
        const int quad = portable_quad_place(row, half * 2 + i + first_quad);
        *reinterpret_cast<float4*>(a + to * kPortableDepth + quad * 4) = staged[half][j][i];
      }
  }
};

/// Brings one stage's weights, which lie in global memory as they lie in shared memory.
template <class Tile>
__device__ __forceinline__ void fetch_portable_weights(float* shared, const float* from) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  constexpr int kWords = Tile::kColumns * kPortableDepth, kEach = kPortableThreads * 4;
#pragma unroll
  for (int first = 0; first < kWords; first += kEach) {
    const int word = first + static_cast<int>(threadIdx.x) * 4;
    if (kWords % kEach == 0 || word < kWords)
      device::copy_async_16(to + static_cast<uint32_t>(word) * 4, from + word, 16);
  }
}

/// Fragments of k8 step `step` of a stage. Thread 4g + t reads two neighbouring words of quad 2 * step + t / 2 as
/// depths t and t + 4, of a and b alike.
template <class Tile>
__device__ __forceinline__ PortableFragments<Tile> portable_fragments(const float* a, const float* b, int step) {
  PortableFragments<Tile> f;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int g = lane / 4, t = lane % 4;
  const int word = portable_quad_place(g, step * 2 + t / 2) * 4 + t % 2 * 2;
  const float* rows = a + (warp / Tile::kWarpsN * Tile::kSixteens * 16 + g) * kPortableDepth + word;
  const float* columns = b + (warp % Tile::kWarpsN * Tile::kEights * 8 + g) * kPortableDepth + word;
#pragma unroll
  for (int m = 0; m < Tile::kSixteens; ++m) {
    const float2 upper = *reinterpret_cast<const float2*>(rows + m * 16 * kPortableDepth);
    const float2 lower = *reinterpret_cast<const float2*>(rows + (m * 16 + 8) * kPortableDepth);
    f.a[m][0] = upper.x;
    f.a[m][1] = lower.x;
    f.a[m][2] = upper.y;
    f.a[m][3] = lower.y;
  }
#pragma unroll
  for (int n = 0; n < Tile::kEights; ++n) {
    const float2 pair = *reinterpret_cast<const float2*>(columns + n * 8 * kPortableDepth);
    f.b[n][0] = pair.x;
    f.b[n][1] = pair.y;
  }
  return f;
}

inline __device__ __noinline__ float finish_portable(const PortableParams& p, float value, int64_t to, int channel) {
  if (!(fabsf(value) < INFINITY)) {
    const int64_t image = int64_t{p.groups} * p.outputs * p.target_plane;
    value = p.plain.at(to / image, channel, to % p.target_plane);
  }
  if (p.bias != nullptr) value += p.bias[channel];
  return device::apply_activation(p.activation, value);
}

/// Adds bias and activation and stores one block's results. Padding that is multiplied, and operands split in two, make
/// NaN of an infinity where plain sums do not: results that are not finite are summed again.
template <class Tile>
__device__ __forceinline__ void portable_store(const PortableParams& p, PortableShared<Tile>& s,
                                               const PortableBlock& block, const PortableSums<Tile>& sums) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int64_t* rows = s.target + warp / Tile::kWarpsN * 64 + lane;
  const int64_t to[2] = {rows[0], rows[32]};
  const int first = block.first_column + warp % Tile::kWarpsN * Tile::kEights * 8;
  const int64_t(&extent)[3] = p.plain.forward ? p.plain.sizes.output : p.plain.sizes.input;
  const bool plain = p.bias == nullptr && p.activation.kind == ActivationKind::None;
  const bool grouped = p.columns != p.outputs;
  Position at[2]{};
  if (grouped) {
    for (int half = 0; half < 2; ++half) at[half] = unflatten(max(to[half], int64_t{0}) % p.target_plane, extent);
  }
  const auto put = [&](int half, int channel, float value) {
    if (to[half] < 0 || channel >= p.columns) return;
    int64_t further = 0;
    if (grouped) {
      const int j = channel / p.outputs, rest = j / p.group[2];
      const int step[3] = {rest / p.group[1], rest % p.group[1], j % p.group[2]};
      channel -= j * p.outputs;
      for (int axis = 0; axis < 3; ++axis) {
        if (at[half].at[axis] + step[axis] >= extent[axis]) return;
        further = further * extent[axis] + step[axis];
      }
    }
    const int64_t place = to[half] + further;
    if (!plain || !(fabsf(value) < INFINITY))
      value = finish_portable(p, value, place, block.group * p.outputs + channel);
    p.target[place + channel * p.target_plane] = value;
  };
  for_each_portable_result(sums, s.turn[warp], [&](int column, const float(&values)[2]) {
    put(0, first + column, values[0]);
    put(1, first + column, values[1]);
  });
}

template <class Tile>
__global__ void __launch_bounds__(kPortableThreads, Tile::kShape.blocks())
    portable_kernel(const __grid_constant__ PortableParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& s = *reinterpret_cast<PortableShared<Tile>*>(memory);
  const PortableBlock block(p, Tile::kRows);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < 3) s.axis[thread] = portable_axis_of(p, thread, block.residue[thread]);
  __syncthreads();
  const int64_t positions = int64_t{s.axis[0].positions} * s.axis[1].positions * s.axis[2].positions;
  if (block.first_row >= p.plain.sizes.batch * positions) return;

  PortableGather<Tile> gather(p, s, block);
  for (int t = thread; t < gather.taps; t += kPortableThreads) {
    int rest = t;
    PortableTap tap{};
    for (int axis = 2; axis >= 0; --axis) {
      tap.at[axis] = s.axis[axis].shift + rest % s.axis[axis].taps * s.axis[axis].shift_step;
      rest /= s.axis[axis].taps;
    }
    tap.offset = ((int64_t{tap.at[0]} * p.source[1] + tap.at[1]) * p.source[2] + tap.at[2]) * int64_t{sizeof(float)};
    s.taps[t] = tap;
  }
  __syncthreads();

  const int stages = (gather.taps * ((p.channels + 3) / 4) + 3) / 4;
  const int stage_words = p.column_tiles * Tile::kColumns * kPortableDepth;
  const float* weights = p.prepared + (int64_t{block.phase} * p.groups + block.group) * p.stages * stage_words +
                         block.first_column * kPortableDepth;
  PortableSums<Tile> sums;
  sums.clear();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (i < stages) fetch_portable_weights<Tile>(s.b[i], weights + int64_t{i} * stage_words);
    device::copy_async_commit();
  }
  gather.load(0);
  gather.load(1);
  gather.store(s.a[0], 0);
  gather.load(0);
  gather.store(s.a[0], 1);
  int slot = 0;
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    device::copy_async_wait<1>();
    __syncthreads();  // this stage's operands are there, and the one before has been read
    const int free = slot == 0 ? 2 : slot - 1;
    if (stage + 2 < stages) fetch_portable_weights<Tile>(s.b[free], weights + int64_t{stage + 2} * stage_words);
    device::copy_async_commit();
    const float* a = s.a[stage % 2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      gather.load(1 - half);  // two steps ahead of its use
      sums.add(portable_fragments<Tile>(a, s.b[slot], half));
      gather.store(s.a[1 - stage % 2], half);
    }
    slot = slot == 2 ? 0 : slot + 1;
  }
  portable_store(p, s, block, sums);
}

}  // namespace halo::cuda::conv
