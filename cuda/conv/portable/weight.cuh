// Backward_weight of the portable engine: rows are (four input channels, tap), columns output channels, the depth is
// positions of the output, split among blocks. Sums go to float64 often enough to keep 1e-6 at any length.
#pragma once

#include <utility>

#include "tile.cuh"

namespace halo::cuda::conv {

template <class Tile>
struct PortableWeightShared {
  static constexpr int pitch(int words) { return (words + 7) / 16 * 16 + 8; }  // depths t and t + 4: other banks
  static constexpr int kPitchA = pitch(Tile::kRows), kPitchB = pitch(Tile::kColumns);
  PortableTap taps[Tile::kRows / 4];  // of four rows each; offset with the channel's plane
  int64_t weight[Tile::kRows / 4];    // of the first of them, in an output channel
  alignas(16) float a[2][kPortablePositions * kPitchA];
  alignas(16) float b[2][kPortablePositions * kPitchB];
  float turn[4][kPortableTurnWords];
};

/// The tile and the positions of this block.
struct PortableWeightBlock {
  int first_row, first_column, group, split;
  int64_t first_stage;
  int stages;

  __device__ PortableWeightBlock(const PortableWeightParams& p, int tile_rows, int tile_columns) {
    uint32_t index = blockIdx.x;
    first_column = static_cast<int>(index % static_cast<uint32_t>(p.column_tiles)) * tile_columns;
    index /= static_cast<uint32_t>(p.column_tiles);
    first_row = static_cast<int>(index % static_cast<uint32_t>(p.row_tiles)) * tile_rows;
    index /= static_cast<uint32_t>(p.row_tiles);
    group = static_cast<int>(index % static_cast<uint32_t>(p.groups));
    split = static_cast<int>(index / static_cast<uint32_t>(p.groups));
    first_stage = p.stages * split / p.splits;
    stages = static_cast<int>(p.stages * (split + 1) / p.splits - first_stage);
  }
};

/// Brings positions: a lane has one position of a stage, a warp every fourth group of four rows and of four columns.
template <class Tile>
struct PortableWeightGather {
  static constexpr int kParts = kPortablePositions / 8;  // as many as the stage has k8 steps
  static constexpr int kA = Tile::kRows / 16 / kParts, kB = (Tile::kColumns / 4 + 15) / 16;
  static_assert(kA * 16 * kParts == Tile::kRows);
  using Shared = PortableWeightShared<Tile>;

  const PortableWeightParams& p;
  const Shared& s;
  const PortableWeightBlock& block;
  const int lane, warp;
  int64_t image;  // of this lane's position
  int64_t flat;   // in the output
  PortablePlace place;
  const char* y;                            // null: no position
  int left;                                 // positions of the block's share from this lane's on, in stages
  float4 staged_a[2][kA], staged_b[2][kB];  // two parts on their way

  __device__ PortableWeightGather(const PortableWeightParams& params, const Shared& shared,
                                  const PortableWeightBlock& of)
      : p(params),
        s(shared),
        block(of),
        lane(static_cast<int>(threadIdx.x % 32)),
        warp(__shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0)),
        left(of.stages + 1) {
    const int64_t position = block.first_stage * kPortablePositions + lane;
    image = position / p.sizes.output_positions;
    flat = position % p.sizes.output_positions;
    locate();
  }

  /// The place of this lane's position in both operands.
  __device__ __forceinline__ void locate() {
    const Sizes& z = p.sizes;
    place = PortablePlace{};
    y = nullptr;
    if (--left <= 0 || image >= z.batch) return;
    uint32_t rest, w;
    const uint32_t d = p.by_plane.divide(static_cast<uint32_t>(flat), rest);
    const uint32_t h = p.by_width.divide(rest, w);
    const int q[3] = {static_cast<int>(d), static_cast<int>(h), static_cast<int>(w)};
    int64_t from = 0;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      place.at[axis] = q[axis] * static_cast<int>(z.stride[axis]) - static_cast<int>(z.padding[axis]);
      from = from * z.input[axis] + place.at[axis];
    }
    from += (image * p.groups + block.group) * z.in_per_group * z.input_positions;
    place.address = reinterpret_cast<const char*>(p.x + from);
    y = reinterpret_cast<const char*>(
        p.y + ((image * p.groups + block.group) * z.out_per_group + block.first_column) * z.output_positions + flat);
  }
  __device__ __forceinline__ void next_stage() {
    flat += kPortablePositions;
    if (flat >= p.sizes.output_positions) {
      const uint32_t images = static_cast<uint32_t>(flat) / static_cast<uint32_t>(p.sizes.output_positions);
      image += images;
      flat -= images * p.sizes.output_positions;
    }
    locate();
  }

  /// Starts the loads of one part of a stage.
  template <int part>
  __device__ __forceinline__ void load() {
#pragma unroll
    for (int i = 0; i < kA; ++i) {
      const PortableTap tap = s.taps[warp + 4 * (part * kA + i)];
      staged_a[part % 2][i] =
          load_channels(place.address + tap.offset, p.x_step, tap.channels, place.inside(tap, p.source));
    }
#pragma unroll
    for (int i = 0; i < kB; ++i) {
      const int column = 4 * (warp + 4 * (part * kB + i));
      const int left = static_cast<int>(p.sizes.out_per_group) - block.first_column - column;
      if (column < Tile::kColumns)
        staged_b[part % 2][i] = load_channels(y + column * p.y_step[0], p.y_step, left, y != nullptr);
    }
  }

  template <int part>
  __device__ __forceinline__ void store(float* a, float* b) const {
#pragma unroll
    for (int i = 0; i < kA; ++i)
      *reinterpret_cast<float4*>(a + lane * Shared::kPitchA + 4 * (warp + 4 * (part * kA + i))) = staged_a[part % 2][i];
#pragma unroll
    for (int i = 0; i < kB; ++i) {
      const int column = 4 * (warp + 4 * (part * kB + i));
      if (column < Tile::kColumns)
        *reinterpret_cast<float4*>(b + lane * Shared::kPitchB + column) = staged_b[part % 2][i];
    }
  }
};

template <class Tile>
__device__ __forceinline__ PortableFragments<Tile> portable_weight_fragments(const float* a, const float* b, int step) {
  using Shared = PortableWeightShared<Tile>;
  PortableFragments<Tile> f;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int g = lane / 4, depth = step * 8 + lane % 4;
  const float* rows = a + depth * Shared::kPitchA + warp / Tile::kWarpsN * Tile::kSixteens * 16 + g;
  const float* columns = b + depth * Shared::kPitchB + warp % Tile::kWarpsN * Tile::kEights * 8 + g;
#pragma unroll
  for (int m = 0; m < Tile::kSixteens; ++m)
#pragma unroll
    for (int i = 0; i < 4; ++i) f.a[m][i] = rows[i / 2 * 4 * Shared::kPitchA + m * 16 + i % 2 * 8];
#pragma unroll
  for (int n = 0; n < Tile::kEights; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) f.b[n][i] = columns[i * 4 * Shared::kPitchB + n * 8];
  return f;
}

/// Adds the block's float32 sums to its float64 ones, or begins those, and clears the former.
template <class Tile>
__device__ __forceinline__ void flush_portable_sums(const PortableWeightParams& p, PortableWeightShared<Tile>& s,
                                                    const PortableWeightBlock& block, PortableSums<Tile>& sums,
                                                    bool first) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const Sizes& z = p.sizes;
  const int row = warp / Tile::kWarpsN * 64 + lane, inner = row % 4;
  const int first_column = block.first_column + warp % Tile::kWarpsN * Tile::kEights * 8;
  const int64_t weight[2] = {s.weight[row / 4] + inner * z.taps, s.weight[row / 4 + 8] + inner * z.taps};
  const bool valid[2] = {inner < s.taps[row / 4].channels, inner < s.taps[row / 4 + 8].channels};
  for_each_portable_result(sums, s.turn[warp], [&](int column, const float(&values)[2]) {
    const int c = first_column + column;
    if (c >= z.out_per_group) return;
    double* row = p.partial + (block.group * z.out_per_group + c) * z.in_per_group * z.taps * p.splits + block.split;
    double before[2]{};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!first && valid[half]) before[half] = row[weight[half] * p.splits];
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (valid[half]) row[weight[half] * p.splits] = before[half] + values[half];
    }
  });
  sums.clear();
}

template <class Tile>
__global__ void __launch_bounds__(kPortableThreads, kPortableWeightBlocks)
    portable_weight_kernel(const __grid_constant__ PortableWeightParams p) {
  constexpr int kStagesOfSum = 128;  // 512 additions
  constexpr int kParts = PortableWeightGather<Tile>::kParts;
  extern __shared__ __align__(16) unsigned char memory[];
  auto& s = *reinterpret_cast<PortableWeightShared<Tile>*>(memory);
  const PortableWeightBlock block(p, Tile::kRows, Tile::kColumns);
  const int thread = static_cast<int>(threadIdx.x);
  const Sizes& z = p.sizes;
  for (int i = thread; i < Tile::kRows / 4; i += kPortableThreads) {
    const int64_t quad = block.first_row / 4 + i;
    const int64_t channel = quad / z.taps * 4, t = quad % z.taps;
    const Position k = unflatten(t, z.kernel);
    PortableTap tap{};
    for (int axis = 0; axis < 3; ++axis) {
      tap.at[axis] = static_cast<int>(k.at[axis] * z.dilation[axis]);
      tap.offset = tap.offset * z.input[axis] + tap.at[axis];
    }
    tap.offset = (tap.offset + channel * z.input_positions) * int64_t{sizeof(float)};
    tap.channels = static_cast<int>(max(min(z.in_per_group - channel, int64_t{4}), int64_t{0}));
    if (tap.channels == 0) tap.at[0] = kPortableOutside;
    s.taps[i] = tap;
    s.weight[i] = channel * z.taps + t;
  }
  __syncthreads();

  PortableWeightGather<Tile> gather(p, s, block);
  PortableSums<Tile> sums;
  sums.clear();
  // Loads come two steps before their use. By hand, as the compiler unrolls no loop of this size.
  const auto bring = [&]<int Part>(std::integral_constant<int, Part>) {
    gather.template load<Part>();
    gather.template store<Part>(s.a[0], s.b[0]);
  };
  const auto step = [&]<int Part>(std::integral_constant<int, Part>, int buffer) {
    constexpr int kNext = (Part + 1) % kParts;
    if constexpr (kNext == 0) gather.next_stage();
    gather.template load<kNext>();
    sums.add(portable_weight_fragments<Tile>(s.a[buffer], s.b[buffer], Part));
    gather.template store<Part>(s.a[1 - buffer], s.b[1 - buffer]);
  };
  [&]<int... Part>(std::integer_sequence<int, Part...>) { (bring(std::integral_constant<int, Part>()), ...); }
  (std::make_integer_sequence<int, kParts>());
  gather.next_stage();
  gather.template load<0>();
  int stage = 0;
  do {
    const int first = stage, end = min(block.stages, stage + kStagesOfSum);
#pragma unroll 1
    for (; stage < end; ++stage) {
      __syncthreads();  // this stage's operands are there, and the one before has been read
      [&]<int... Part>(std::integer_sequence<int, Part...>) {
        (step(std::integral_constant<int, Part>(), stage % 2), ...);
      }
      (std::make_integer_sequence<int, kParts>());
    }
    flush_portable_sums(p, s, block, sums, first == 0);
  } while (stage < block.stages);
}

}  // namespace halo::cuda::conv
