// The kernel of the float32-accurate matrix product (split_gemm_plan.h) on Hopper tensor cores.
//
// A block walks over tiles of 192 or 128 rows by N columns. One warpgroup loads, three or two multiply, 64 rows each:
// - Tiles of both operands are fetched by the copy engine, 32 deep, as they lie in memory.
// - Rows: consumers read wgmma A fragments out of the fetched tile, whichever way it lies, and split them into high and
//   low TF32 parts in registers.
// - Columns: the loading warpgroup splits them and stores both parts as K-major core matrices, since wgmma takes B from
//   shared memory and in TF32 only so.
// Each product is low*high + high*low + high*high. The tensor core cuts off the low bits of each of its additions, so
// its sums are moved to float32 registers after every stage. A sum that is not finite, be it that an operand is not or
// that a part overflowed, is computed again by plain multiply-adds. No atomics: the bits depend on the plan alone.
//
// Limits: those of plan_split_gemm; extents below 2^31, offsets 64-bit.
#pragma once

#include "../device/async_copy.cuh"
#include "../device/mbarrier.cuh"
#include "../device/shared_words.cuh"
#include "../device/tf32_split.cuh"
#include "../device/wgmma.cuh"
#include "split_gemm_plan.h"
#include <cuda.h>

namespace halo::cuda {

struct SplitGemmParams {
  CUtensorMap rows_map, columns_map;
  const float* rows;
  const float* columns;
  float* target;
  float* partial;  ///< [split][batch][row][column] as the target orders them, or null
  float alpha, beta;
  SplitGemmPlan plan;
};

/// Rows and N columns of a tile; Deep: whether the rows operand is contiguous along the depth.
template <int Rows, int N, bool Deep>
struct SplitGemmTile {
  static constexpr int kRows = Rows;
  static constexpr int kConsumers = Rows / 64;
  static constexpr int kColumns = N;
  static constexpr bool kDeep = Deep;
  static constexpr int kWgmmaColumns = 64;  ///< their partial sums fit beside the sums
  static constexpr int kHalves = N / kWgmmaColumns;
  static constexpr int kThreads = (kConsumers + 1) * 128;
  /// Registers a thread: entry has 128 (65,536 / 512), or 168 where only two warpgroups multiply.
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 152 : 200;
  static constexpr int kProducerRegisters = kConsumers == 3 ? 56 : 104;
  /// Floats between depths of a rows tile that is contiguous along the rows: 8 modulo 32, for the banks.
  static constexpr int kRowsPitch = Rows + 8;
  static constexpr int kRowsBytes = kSplitGemmDepth * (Deep ? Rows : kRowsPitch) * 4;
  static constexpr int kRawBytes = kSplitGemmDepth * N * 4;
  static constexpr int kPartBytes = kSplitGemmDepth * N * 4;  ///< of the high or the low parts of a stage's columns
  /// Rings: split columns, raw columns (one stage being split, two on their way), rows.
  static constexpr int kTileSlots = 2, kRawSlots = 3, kRowSlots = 4;
  static constexpr int kSharedBytes =
      kRowSlots * kRowsBytes + kRawSlots * kRawBytes + kTileSlots * 2 * kPartBytes + 1024 + 128;
  static_assert(Rows % 64 == 0 && N % 64 == 0 && kRowsBytes % 1024 == 0 && kSharedBytes <= 227 * 1024);
};

namespace split_gemm {

using namespace halo::cuda::device;

/// What one block computes next.
struct Work {
  int64_t batch, row, column;  ///< the tile's first row and column
  int64_t split, first_stage;
  int stages;

  __device__ Work(const SplitGemmPlan& p, int64_t tile, int rows, int columns) {
    column = tile % p.column_tiles * columns;
    tile /= p.column_tiles;
    row = tile % p.row_tiles * rows;
    tile /= p.row_tiles;
    split = tile % p.splits;
    batch = tile / p.splits;
    first_stage = p.stages * split / p.splits;
    stages = static_cast<int>(p.stages * (split + 1) / p.splits - first_stage);
  }
};

/// A position in a ring of buffers: its index and the parity of its round.
template <int Size>
struct Slot {
  int index = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++index == Size) index = 0, parity ^= 1;
  }
};

template <class Tile>
struct Shared {
  uint32_t base;  ///< a multiple of 1024, as the copy engine's swizzle wants
  __device__ explicit Shared(const void* memory) : base((shared_address(memory) + 1023) / 1024 * 1024) {}
  __device__ uint32_t rows(int slot) const { return base + slot * Tile::kRowsBytes; }
  __device__ uint32_t raw(int slot) const { return rows(Tile::kRowSlots) + slot * Tile::kRawBytes; }
  __device__ uint32_t columns(int slot) const { return raw(Tile::kRawSlots) + slot * 2 * Tile::kPartBytes; }
  /// The copy engine has filled a rows tile and the raw columns of the same stage.
  __device__ uint32_t fetched(int slot) const { return columns(Tile::kTileSlots) + slot * 8; }
  /// Split columns, and with them their stage, are ready for the consumers.
  __device__ uint32_t full(int slot) const { return fetched(Tile::kRowSlots) + slot * 8; }
  /// The consumers are done with that stage.
  __device__ uint32_t empty(int slot) const { return full(Tile::kTileSlots) + slot * 8; }
};

/// The sum of one element by plain multiply-adds.
__device__ inline float plain_sum(const SplitGemmParams& p, int64_t batch, int64_t row, int64_t column) {
  const SplitGemmOperand &r = p.plan.rows, &c = p.plan.columns;
  const float* a = p.rows + batch * r.batch + row * (r.deep ? r.pitch : 1);
  const float* b = p.columns + batch * c.batch + column * (c.deep ? c.pitch : 1);
  const int64_t a_step = r.deep ? 1 : r.pitch, b_step = c.deep ? 1 : c.pitch;
  float sum = 0;
  for (int64_t i = 0; i < p.plan.depth; ++i) sum = fmaf(a[i * a_step], b[i * b_step], sum);
  return sum;
}

/// The loading warpgroup.
template <class Tile>
struct Producer {
  const SplitGemmParams& p;
  const Shared<Tile>& shared;
  const int thread;
  int64_t next_tile;  ///< of the next stage to fetch
  Work next;
  int next_stage = 0;
  Slot<Tile::kRowSlots> next_rows;
  Slot<Tile::kRawSlots> next_raw;

  __device__ __forceinline__ Producer(const SplitGemmParams& params, const Shared<Tile>& s, int t)
      : p(params),
        shared(s),
        thread(t),
        next_tile(blockIdx.x),
        next(params.plan, next_tile, Tile::kRows, Tile::kColumns) {}

  /// Starts the copies of the next stage, if there is one.
  __device__ __forceinline__ void fetch() {
    if (next_tile >= p.plan.tiles) return;
    if (thread == 0) {
      const uint32_t barrier = shared.fetched(next_rows.index);
      barrier_expect(barrier, Tile::kRowsBytes + Tile::kRawBytes);
      const int depth = static_cast<int>((next.first_stage + next_stage) * kSplitGemmDepth);
      copy(shared.rows(next_rows.index), &p.rows_map, p.plan.rows, depth, next.row, next.batch, barrier);
      copy(shared.raw(next_raw.index), &p.columns_map, p.plan.columns, depth, next.column, next.batch, barrier);
    }
    next_rows.next();
    next_raw.next();
    if (++next_stage < next.stages) return;
    next_stage = 0;
    next_tile += gridDim.x;
    next = Work(p.plan, next_tile, Tile::kRows, Tile::kColumns);
  }
  static __device__ __forceinline__ void copy(uint32_t to, const CUtensorMap* map, const SplitGemmOperand& operand,
                                              int depth, int64_t first, int64_t batch, uint32_t barrier) {
    const int at = static_cast<int>(first), matrix = operand.batch == 0 ? 0 : static_cast<int>(batch);
    copy_box(to, map, operand.deep ? depth : at, operand.deep ? at : depth, matrix, barrier);
  }

  /// Raw columns to high and low core matrices: a thread takes one column, four depths at a time. Several loads are
  /// under way at once, since it is their latency that takes the time.
  template <bool ColumnsDeep>
  __device__ __forceinline__ void split(uint32_t raw, uint32_t to) const {
    constexpr int kTogether = 128 / Tile::kColumns, kQuads = kSplitGemmDepth / 4 / kTogether, kBatch = 4;
    const int column = thread % Tile::kColumns, own = thread / Tile::kColumns;
#pragma unroll
    for (int first = 0; first < kQuads; first += kBatch) {
      float value[kBatch][4];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int quad = own + (first + i) * kTogether;
        if constexpr (ColumnsDeep) {
          const float4 v = load_shared_vector(raw + column * 128 + ((quad ^ column % 8) * 16));
          value[i][0] = v.x, value[i][1] = v.y, value[i][2] = v.z, value[i][3] = v.w;
        } else {
#pragma unroll
          for (int j = 0; j < 4; ++j) value[i][j] = load_shared(raw + ((quad * 4 + j) * Tile::kColumns + column) * 4);
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        Tf32Pair pair[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) pair[j] = split_tf32_unguarded(value[i][j]);
        const uint32_t at = to + ((own + (first + i) * kTogether) * Tile::kColumns + column) * 16;
        store_shared(at, pair[0].high, pair[1].high, pair[2].high, pair[3].high);
        store_shared(at + Tile::kPartBytes, pair[0].low, pair[1].low, pair[2].low, pair[3].low);
      }
    }
  }

  __device__ __forceinline__ void produce() {
    Slot<Tile::kTileSlots> tile;
    Slot<Tile::kRowSlots> rows;
    Slot<Tile::kRawSlots> raw;
    tile.parity = 1;  // a fresh barrier counts as emptied
    for (int i = 0; i < Tile::kRawSlots - 1; ++i) fetch();
    for (int64_t t = blockIdx.x; t < p.plan.tiles; t += gridDim.x) {
      const int stages = Work(p.plan, t, Tile::kRows, Tile::kColumns).stages;
      for (int stage = 0; stage < stages; ++stage) {
        // The stage that is done with `tile` also freed the rows that the next fetch fills; the barrier below freed its
        // raw columns.
        barrier_wait(shared.empty(tile.index), tile.parity);
        fetch();
        barrier_wait(shared.fetched(rows.index), rows.parity);
        if (p.plan.columns.deep) {
          split<true>(shared.raw(raw.index), shared.columns(tile.index));
        } else {
          split<false>(shared.raw(raw.index), shared.columns(tile.index));
        }
        fence_async_proxy();
        barrier_arrive(shared.full(tile.index));
        barrier_sync(7, 128);
        tile.next();
        rows.next();
        raw.next();
      }
    }
  }
};

/// A warpgroup that multiplies: 64 rows, all columns.
template <class Tile>
struct Consumer {
  static constexpr int kSums = Tile::kWgmmaColumns / 2;
  static constexpr int kSteps = kSplitGemmDepth / 8;
  const SplitGemmParams& p;
  const Shared<Tile>& shared;
  const int warpgroup, thread;
  float sum[Tile::kHalves][kSums];

  __device__ __forceinline__ int first_row() const { return warpgroup * 64 + thread / 32 * 16 + thread % 32 / 4; }

  /// Byte offset in a rows tile of this thread's first row at its first depth.
  __device__ __forceinline__ uint32_t place() const {
    const int row = first_row(), depth = thread % 4;
    return Tile::kDeep ? row * 128 + row % 8 * 16 + depth * 4 : (depth * Tile::kRowsPitch + row) * 4;
  }

  /// A fragments of k8 steps [first, first + 2), split.
  static __device__ __forceinline__ void load(uint32_t at, int first, uint32_t (&high)[8], uint32_t (&low)[8]) {
    float value[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int quad = first * 2 + i;
      const uint32_t from = Tile::kDeep ? at ^ quad * 16 : at + quad * 4 * Tile::kRowsPitch * 4;
      value[i * 2] = load_shared(from);
      value[i * 2 + 1] = load_shared(from + (Tile::kDeep ? 8 * 128 : 8 * 4));
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const Tf32Pair pair = split_tf32_unguarded(value[i]);
      high[i] = pair.high;
      low[i] = pair.low;
    }
  }

  static __device__ __forceinline__ uint64_t descriptor(uint32_t columns, int step, int half) {
    constexpr uint64_t kLeading = uint64_t{Tile::kColumns} << 16;  // 16 bytes a column between groups of four depths
    constexpr uint64_t kStride = uint64_t{128 >> 4} << 32;
    const uint32_t address = columns + (step * 2 * Tile::kColumns + half * Tile::kWgmmaColumns) * 16;
    return static_cast<uint64_t>(address >> 4) | kLeading | kStride;
  }

  static __device__ __forceinline__ const uint32_t (&fragment(const uint32_t (&a)[8], int step))[4] {
    return *reinterpret_cast<const uint32_t(*)[4]>(&a[step * 4]);
  }

  __device__ __forceinline__ void multiply_stage(uint32_t columns, uint32_t at) {
    constexpr uint64_t kLow = Tile::kPartBytes >> 4;
    uint32_t high[kSteps / 2][8], low[kSteps / 2][8];
#pragma unroll
    for (int half = 0; half < Tile::kHalves; ++half) {
      float part[kSums];
#pragma unroll
      for (int piece = 0; piece < kSteps / 2; ++piece) {
        if (half == 0) load(at, piece * 2, high[piece], low[piece]);
        wgmma_fence();
#pragma unroll
        for (int u = 0; u < 2; ++u) {
          const uint64_t b = descriptor(columns, piece * 2 + u, half);
          wgmma_tf32(part, fragment(low[piece], u), b, piece > 0 || u > 0);
          wgmma_tf32(part, fragment(high[piece], u), b + kLow, 1);
          wgmma_tf32(part, fragment(high[piece], u), b, 1);
        }
        wgmma_commit();
      }
      wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < kSums; ++i) sum[half][i] += part[i];
    }
  }

  __device__ __forceinline__ int64_t row_of(const Work& work, int i) const {
    return work.row + first_row() + i / 2 % 2 * 8;
  }
  __device__ __forceinline__ int64_t column_of(const Work& work, int half, int i) const {
    return work.column + half * Tile::kWgmmaColumns + i / 4 * 8 + thread % 4 * 2 + i % 2;
  }

  /// Bit kSums * h + i: sum[h][i] is not finite. Usually none is, which takes one multiply-add a sum to find out.
  __device__ __forceinline__ uint64_t not_finite() const {
    float zero = 0.0f;
#pragma unroll
    for (const auto& half : sum)
      for (float s : half) zero = fmaf(s, 0.0f, zero);
    uint64_t mask = 0;
    if (zero == 0.0f) return mask;
#pragma unroll
    for (int half = 0; half < Tile::kHalves; ++half)
#pragma unroll
      for (int i = 0; i < kSums; ++i) mask |= static_cast<uint64_t>(!isfinite(sum[half][i])) << (half * kSums + i);
    return mask;
  }

  __device__ __forceinline__ void store(const Work& work) const {
    const SplitGemmPlan& plan = p.plan;
    const bool partial = p.partial != nullptr;
    float* to = partial ? p.partial + (work.split * plan.batch + work.batch) * plan.rows.extent * plan.columns.extent
                        : p.target + work.batch * plan.batch_step;
    // A workspace has no gaps.
    const int64_t row_step = !partial || plan.swapped ? plan.row_step : plan.columns.extent;
    const int64_t column_step = !partial || !plan.swapped ? plan.column_step : plan.rows.extent;
    const uint64_t again = partial ? 0 : not_finite();
    const float alpha = partial ? 1.0f : p.alpha, beta = partial ? 0.0f : p.beta;
    float* const first = to + row_of(work, 0) * row_step + column_of(work, 0, 0) * column_step;
    const int64_t rows = plan.rows.extent - row_of(work, 0), columns = plan.columns.extent - column_of(work, 0, 0);
    const bool pairs = column_step == 1 && row_step % 2 == 0 && reinterpret_cast<uintptr_t>(first) % 8 == 0;
#pragma unroll
    for (int half = 0; half < Tile::kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < kSums; i += 2) {
        const int row = i / 2 % 2 * 8, column = half * Tile::kWgmmaColumns + i / 4 * 8;
        if (row >= rows || column >= columns) continue;
        float* element = first + row * row_step + column * column_step;
        const auto skip = static_cast<int>(again >> (half * kSums + i) & 3);
        const float result[2] = {sum[half][i] * alpha, sum[half][i + 1] * alpha};
        if (pairs && column + 1 < columns && skip == 0) {
          auto* both = reinterpret_cast<float2*>(element);
          const float2 before = beta == 0 ? float2{0.0f, 0.0f} : *both;
          *both = beta == 0 ? float2{result[0], result[1]}
                            : float2{fmaf(beta, before.x, result[0]), fmaf(beta, before.y, result[1])};
          continue;
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (column + j >= columns || (skip >> j & 1) != 0) continue;
          float& one = element[j * column_step];
          one = beta == 0 ? result[j] : fmaf(beta, one, result[j]);
        }
      }
    }
    for (uint64_t rest = again; rest != 0; rest &= rest - 1) {
      const int bit = __ffsll(static_cast<long long>(rest)) - 1;
      const int64_t row = row_of(work, bit % kSums), column = column_of(work, bit / kSums, bit % kSums);
      if (row >= plan.rows.extent || column >= plan.columns.extent) continue;
      float* element = to + row * row_step + column * column_step;
      const float result = plain_sum(p, work.batch, row, column) * alpha;
      *element = beta == 0 ? result : fmaf(beta, *element, result);
    }
  }

  __device__ __forceinline__ void consume() {
    Slot<Tile::kTileSlots> tile;
    Slot<Tile::kRowSlots> rows;
    for (int64_t t = blockIdx.x; t < p.plan.tiles; t += gridDim.x) {
      const Work work(p.plan, t, Tile::kRows, Tile::kColumns);
#pragma unroll
      for (auto& half : sum)
        for (float& s : half) s = 0.0f;
      for (int stage = 0; stage < work.stages; ++stage) {
        barrier_wait(shared.full(tile.index), tile.parity);
        multiply_stage(shared.columns(tile.index), shared.rows(rows.index) + place());
        __syncwarp();
        if (thread % 32 == 0) barrier_arrive(shared.empty(tile.index));
        tile.next();
        rows.next();
      }
      store(work);
    }
  }
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1) multiply(const __grid_constant__ SplitGemmParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char memory[];
  const Shared<Tile> shared(memory);
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < Tile::kRowSlots; ++slot) barrier_init(shared.fetched(slot), 1);
    for (int slot = 0; slot < Tile::kTileSlots; ++slot) {
      barrier_init(shared.full(slot), 128);
      barrier_init(shared.empty(slot), Tile::kConsumers * 4);
    }
    barrier_init_fence();
  }
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x) / 128, thread = static_cast<int>(threadIdx.x) % 128;
  if (warpgroup == Tile::kConsumers) {
    registers_decrease<Tile::kProducerRegisters>();
    Producer<Tile>(p, shared, thread).produce();
  } else {
    registers_increase<Tile::kConsumerRegisters>();
    Consumer<Tile>{p, shared, warpgroup, thread}.consume();
  }
#endif
}

}  // namespace split_gemm
}  // namespace halo::cuda
