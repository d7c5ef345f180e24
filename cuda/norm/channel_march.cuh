// Marches over channels: a block has neighbouring positions of an image, a thread one, and all channels go by through
// shared memory, so that memory is read and written by granules wherever rows of positions begin.
#pragma once

#include <halo/ops/local_response_norm.h>

#include <algorithm>

#include "../device/async_copy.cuh"
#include "../device/divide.h"
#include "../device/number.cuh"
#include "../device/packs.cuh"

namespace halo::cuda {

/// The marching kernels: a block has neighbouring positions of an image, each thread one, and goes down the channels,
/// kRows at a time, which wait for it in shared memory; results leave through it, by whole granules.
struct March {
  static constexpr int kReach = 2, kTaps = 2 * kReach + 1, kRows = 8, kRowBytes = 1024;
  /// Chunks of each operand in shared memory: all but one are on their way.
  template <class T>
  static constexpr int kStages[] = {sizeof(T) == 2 ? 4 : 5, 3};  // of one operand, of two
  static constexpr int64_t kShort = 64;                          ///< positions that are not worth it
  static constexpr double kLeast = 1e-30;                        ///< of k that keeps sums from being subnormal

  Divide tiles;
  int64_t positions;    ///< of an image
  int channels, width;  ///< width: positions of a tile
  int threads;          ///< of a block: so many granules as rows at most need
  int64_t images;
  bool usual;  ///< windows of five channels, beta 3/4, k not 0: without choices in the loops

  template <class T>
  static March of(const LocalResponseNorm& norm, int64_t images, int64_t channels, int64_t positions) {
    constexpr int64_t kMost = kRowBytes / sizeof(T) - kWide<T> + 1, kWarp = 32;
    const int64_t tiles = (positions + kMost - 1) / kMost, width = (positions + tiles - 1) / tiles;
    return {.tiles = Divide(tiles, images * tiles),
            .positions = positions,
            .channels = static_cast<int>(channels),
            .width = static_cast<int>(width),
            .threads = static_cast<int>(
                std::max<int64_t>((width + kWide<T> - 1 + kWarp - 1) / kWarp * kWarp, kRows * 2 * kWide<T>)),
            .images = images,
            .usual = norm.before() == kReach && norm.after() == kReach && norm.beta == 0.75 && norm.alpha >= 0 &&
                     norm.k >= kLeast};
  }
  static bool serves(const LocalResponseNorm& norm, int64_t channels, int64_t positions) {
    return norm.size <= kTaps && channels < (int64_t{1} << 30) && positions >= kShort;
  }
  unsigned blocks() const { return static_cast<unsigned>(images * tiles.divisor); }
  /// Of shared memory.
  template <class T>
  static std::size_t bytes(int operands) {
    return static_cast<std::size_t>((kStages<T>[operands - 1] * operands + 2) * kRows * kRowBytes);
  }
};

/// Where a thread's position is in the rows of a chunk, bytes from a row's begin: rows lie there as among the granules
/// of memory, and of channels a pack apart in the same way.
template <class T>
struct Spots {
  static constexpr int kSize = kWide<T>;
  int at[kSize];
  __device__ Spots(const March& march, int64_t begin) {
#pragma unroll
    for (int c = 0; c < kSize; ++c) {
      at[c] = (static_cast<int>((begin + c * march.positions) & (kSize - 1)) + static_cast<int>(threadIdx.x)) *
              static_cast<int>(sizeof(T));
      asm volatile("" : "+r"(at[c]));  // found once
    }
  }
  /// Of row r of a chunk whose first channel is `offset`, or a chunk or several of them further.
  template <class Byte>
  __device__ __forceinline__ Byte* place(Byte* chunk, int offset, int r) const {
    return chunk + r * March::kRowBytes + at[(offset + r) & (kSize - 1)];
  }
};

/// A block's tile of one tensor: its rows are channels `offset`, `offset` + 1, ... in chunks of kRows. A thread has the
/// same granules of each chunk, and what it needs to know of them is found once.
template <class T, class Element>  // Element: T, or const T
struct TileRows {
  static constexpr int kSize = kWide<T>, kEach = March::kRows / kSize;  // granules of a thread
  int64_t step;                                                         ///< from channel to channel
  Element *granule, *edge, *end;        ///< the thread's granule of the next chunk, its edge; the end of the tensor
  int row, edge_row, channels;          ///< their channels
  int place, edge_place;                ///< where they are in a chunk, in bytes
  bool some, whole, has_edge, guarded;  ///< the granule is in the tile in part, in whole; may reach beyond the end

  __device__ TileRows(const March& march, Element* data, int64_t begin, int width, int offset)
      : step(march.positions), end(data + march.images * march.channels * step), channels(march.channels) {
    const int thread = static_cast<int>(threadIdx.x), granules = static_cast<int>(blockDim.x) / kSize;
    const auto lead = [&](int r) { return static_cast<int>((begin + (offset + r) * step) & (kSize - 1)); };
    const int r = thread / granules, of_row = thread % granules * kSize, first = of_row - lead(r);
    row = offset + r;
    granule = data + begin + row * step + first;
    place = r * March::kRowBytes + of_row * static_cast<int>(sizeof(T));
    some = first < width;
    whole = first >= 0 && first + kSize <= width;
    guarded = march.images * march.channels * step % kSize != 0;
    // Of granules that are the tile's in part, an element a thread.
    const int e = thread / (2 * kSize), k = thread % kSize, at = thread / kSize % 2 == 0 ? k : width - 1 - k;
    has_edge = thread < March::kRows * 2 * kSize &&
               (thread / kSize % 2 == 0 ? lead(e) > 0 && lead(e) + k < kSize : k < (lead(e) + width) % kSize);
    edge_row = offset + e;
    edge_place = e * March::kRowBytes + (lead(e) + at) * static_cast<int>(sizeof(T));
    edge = data + begin + edge_row * step + at;
  }
  __device__ __forceinline__ bool has(int c) const {
    return static_cast<unsigned>(c) < static_cast<unsigned>(channels);
  }
  __device__ __forceinline__ void advance() {
    granule += March::kRows * step;
    row += March::kRows;
  }
  /// The next chunk is on its way; zeros for channels that there are not.
  __device__ __forceinline__ void fetch(unsigned char* chunk) {
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      Element* const from = granule + u * kSize * step;
      unsigned char* const to = chunk + place + u * kSize * March::kRowBytes;
      const bool exists = some && has(row + u * kSize);
      if (guarded && exists && from + kSize > end) {
#pragma unroll 1
        for (int k = 0; k < kSize; ++k) reinterpret_cast<T*>(to)[k] = from + k < end ? from[k] : T{};
      } else {
        device::copy_async_16(static_cast<uint32_t>(__cvta_generic_to_shared(to)), from, exists ? device::kGranule : 0);
      }
    }
    advance();
  }
  /// Writes the next chunk.
  __device__ __forceinline__ void store(const unsigned char* chunk) {
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      if (whole && has(row + u * kSize)) {
        *reinterpret_cast<Pack<T, kSize>*>(granule + u * kSize * step) =
            *reinterpret_cast<const Pack<T, kSize>*>(chunk + place + u * kSize * March::kRowBytes);
      }
    }
    if (has_edge && has(edge_row)) *edge = *reinterpret_cast<const T*>(chunk + edge_place);
    edge += March::kRows * step;
    edge_row += March::kRows;
    advance();
  }
};

/// y[c] = compute(c + lag, x[c + lag], ...) for all channels c in order, and for `lag` before them, for each position
/// of the block's tile. Of a second operand, it is given channel c + lag - kReach.
template <int kLag, class T, class Compute, class... In>
__device__ __forceinline__ void march_down(const March& march, const Compute& compute, T* y, const In*... in) {
  constexpr int kStages = March::kStages<T>[sizeof...(In) - 1], kOperands = sizeof...(In), kReach = March::kReach;
  constexpr int kChunk = March::kRows * March::kRowBytes;
  extern __shared__ __align__(16) unsigned char staged[];  // [stages][operands][kChunk], then [2][kChunk]: results
  unsigned char* const results = staged + kStages * kOperands * kChunk;
  int64_t image = blockIdx.x;
  const int64_t first = march.tiles.split(image) * march.width;
  const int64_t begin = image * march.channels * march.positions + first;
  const int width = static_cast<int>(min(int64_t{march.width}, march.positions - first));
  const Spots<T> spots(march, begin);
  int offset = kReach;
  TileRows<T, const T> feeds[] = {TileRows<T, const T>(march, in, begin, width, offset -= kReach)...};
  TileRows<T, T> out(march, y, begin, width, -kLag);
  const int count = (march.channels + kLag + March::kRows - 1) / March::kRows;
  int fetched = 0;
  const auto fetch = [&] {
    if (fetched < count) {
#pragma unroll
      for (int k = 0; k < kOperands; ++k) feeds[k].fetch(staged + (fetched % kStages * kOperands + k) * kChunk);
    }
    ++fetched;
    device::copy_async_commit();
  };
#pragma unroll 1
  for (int stage = 0; stage + 1 < kStages; ++stage) fetch();
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    device::copy_async_wait<kStages - 2>();
    __syncthreads();
    fetch();
    if (i > 0) out.store(results + (i - 1) % 2 * kChunk);
    if (static_cast<int>(threadIdx.x) >= width) continue;
    const unsigned char* const from = staged + i % kStages * kOperands * kChunk;
    unsigned char* const to = results + i % 2 * kChunk;
#pragma unroll
    for (int r = 0; r < March::kRows; ++r) {
      const auto value_of = [&](int k) {
        return device::to_accumulator(*reinterpret_cast<const T*>(spots.place(from + k * kChunk, -k * kReach, r)));
      };
      device::Accumulator<T> result;
      if constexpr (kOperands == 1) {
        result = compute(i * March::kRows + r, value_of(0));
      } else {
        result = compute(i * March::kRows + r, value_of(0), value_of(1));
      }
      *reinterpret_cast<T*>(spots.place(to, -kLag, r)) = device::from_accumulator<T>(result);
    }
  }
  __syncthreads();
  out.store(results + (count - 1) % 2 * kChunk);
}

}  // namespace halo::cuda
