// Marches over channels: a block has neighbouring positions of an image, a thread one or a pair, and all channels go by
// through shared memory, so that memory is read and written by granules wherever rows of positions begin.
#pragma once

#include <halo/ops/local_response_norm.h>

#include <algorithm>

#include "../device/async_copy.cuh"
#include "../device/divide.h"
#include "../device/number.cuh"
#include "../device/packs.cuh"

namespace halo::cuda {

/// The marching kernels: a block has neighbouring positions of an image, each thread kPositions of them, and goes down
/// the channels, kRows at a time, which wait for it in shared memory; results leave through it, by whole granules.
struct March {
  static constexpr int kReach = 2, kTaps = 2 * kReach + 1, kRows = 8, kRowBytes = 1024;
  static constexpr int kPitch = kRowBytes + 16;  ///< from row to row: pairs may reach an element beyond a row's ends
  /// Of a thread: half types in pairs, which are a word in every second channel at least.
  template <class T>
  static constexpr int kPositions = sizeof(T) == 2 ? 2 : 1;
  template <class T>
  static constexpr int kMostThreads = kRowBytes / static_cast<int>(sizeof(T)) / kPositions<T>;
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

  template <class T>
  static March of(int64_t images, int64_t channels, int64_t positions) {
    constexpr int64_t kMost = kRowBytes / sizeof(T) - kWide<T> + 1, kWarp = 32;
    const int64_t tiles = (positions + kMost - 1) / kMost, width = (positions + tiles - 1) / tiles;
    return {.tiles = Divide(tiles, images * tiles),
            .positions = positions,
            .channels = static_cast<int>(channels),
            .width = static_cast<int>(width),
            .threads = static_cast<int>(
                std::max<int64_t>((width + kWide<T> - 1 + kPositions<T> * kWarp - 1) / (kPositions<T> * kWarp) * kWarp,
                                  kRows * 2 * kWide<T>)),
            .images = images};
  }
  /// Windows of five channels, beta 3/4, k not 0: without choices in the loops.
  static bool is_usual(const LocalResponseNorm& norm) {
    return norm.before() == kReach && norm.after() == kReach && norm.beta == 0.75 && norm.alpha >= 0 &&
           norm.k >= kLeast;
  }
  static bool serves(const LocalResponseNorm& norm, int64_t channels, int64_t positions) {
    return norm.size <= kTaps && channels < (int64_t{1} << 30) && positions >= kShort;
  }
  unsigned blocks() const { return static_cast<unsigned>(images * tiles.divisor); }
  /// Of shared memory.
  template <class T>
  static std::size_t bytes(int operands) {
    return static_cast<std::size_t>((kStages<T>[operands - 1] * operands + 2) * kRows * kPitch);
  }
};

/// Where a thread's positions are in the rows of a chunk, bytes from a row's begin: rows lie there as among the
/// granules of memory, and of channels a pack apart in the same way. Pairs begin where they are a word in the even
/// channels; the first may begin one before the tile.
template <class T>
struct Spots {
  static constexpr int kSize = kWide<T>, kPositions = March::kPositions<T>;
  using Values = device::Accumulator<T>[kPositions];
  int first;  ///< of the thread's positions, from the tile's begin
  int at[kSize];
  __device__ Spots(const March& march, int64_t begin)
      : first(static_cast<int>(threadIdx.x) * kPositions - static_cast<int>(begin & (kPositions - 1))) {
#pragma unroll
    for (int c = 0; c < kSize; ++c) {
      at[c] = (static_cast<int>((begin + c * march.positions) & (kSize - 1)) + first) * static_cast<int>(sizeof(T));
      asm volatile("" : "+r"(at[c]));  // found once
    }
  }
  /// Of row r of a chunk whose first channel is `offset`, which is even, or a chunk or several of them further.
  template <class Byte>
  __device__ __forceinline__ Byte* place(Byte* chunk, int offset, int r) const {
    return chunk + r * March::kPitch + at[(offset + r) & (kSize - 1)];
  }
  __device__ __forceinline__ void read(const unsigned char* chunk, int offset, int r, Values& values) const {
    const unsigned char* const from = place(chunk, offset, r);
    if constexpr (kPositions == 2) {
      if (r % 2 == 0) return device::unpack_word<T>(*reinterpret_cast<const uint32_t*>(from), values);
    }
#pragma unroll
    for (int p = 0; p < kPositions; ++p) values[p] = device::to_accumulator(reinterpret_cast<const T*>(from)[p]);
  }
  __device__ __forceinline__ void write(unsigned char* chunk, int offset, int r, const Values& values) const {
    unsigned char* const to = place(chunk, offset, r);
    if constexpr (kPositions == 2) {
      const uint32_t word = device::pack_word<T>(values);
      if (r % 2 == 0) {
        *reinterpret_cast<uint32_t*>(to) = word;
      } else {
        reinterpret_cast<uint16_t*>(to)[0] = static_cast<uint16_t>(word);
        reinterpret_cast<uint16_t*>(to)[1] = static_cast<uint16_t>(word >> 16);
      }
    } else {
      *reinterpret_cast<T*>(to) = device::from_accumulator<T>(values[0]);
    }
  }
};

/// A block's tile of one tensor: its rows are channels `offset`, `offset` + 1, ... in chunks of kRows. A thread has the
/// same granules of each chunk, and what it needs to know of them is found once.
template <class T, class Element>  // Element: T, or const T
struct TileRows {
  static constexpr int kSize = kWide<T>, kDown = March::kRows / kSize, kAcross = March::kPositions<T>;  // granules
  int64_t step;             ///< from channel to channel
  Element *granule, *edge;  ///< the thread's first granule of the next chunk; its edge
  int row, edge_row;        ///< their channels
  int place, edge_place;    ///< where they are in a chunk, in bytes
  int across;               ///< elements from granule to granule of a row
  /// Channels, of granules that are in the tile in part and in whole, and of edges; else 0.
  int in_part[kAcross], in_whole[kAcross], edges;
  int cut_row[kAcross], cut;  ///< the channel, if any, of which the granule has but so many elements of the tensor

  __device__ TileRows(const March& march, Element* data, int64_t begin, int width, int offset) : step(march.positions) {
    const int thread = static_cast<int>(threadIdx.x), lanes = static_cast<int>(blockDim.x) / kSize;
    const auto lead = [&](int r) { return static_cast<int>((begin + (offset + r) * step) & (kSize - 1)); };
    const int r = thread / lanes, of_row = thread % lanes * kSize, first = of_row - lead(r);
    row = offset + r;
    granule = data + begin + row * step + first;
    place = r * March::kPitch + of_row * static_cast<int>(sizeof(T));
    across = lanes * kSize;
    const int channels = march.channels;
    const int64_t count = march.images * channels * step, last = begin + (channels - 1) * step;
    cut = static_cast<int>(count % kSize);
#pragma unroll
    for (int v = 0; v < kAcross; ++v) {
      const int at = first + v * across;
      in_part[v] = at < width ? channels : 0;
      in_whole[v] = at >= 0 && at + kSize <= width ? channels : 0;
      cut_row[v] = last + at + kSize > count ? channels - 1 : -1;
    }
    // Of granules that are the tile's in part, an element a thread; two, of the same value, where the tile is narrower.
    const int e = thread / (2 * kSize), k = thread % kSize, at = thread / kSize % 2 == 0 ? k : width - 1 - k;
    const bool has_edge =
        thread < March::kRows * 2 * kSize && at >= 0 && at < width &&
        (thread / kSize % 2 == 0 ? lead(e) > 0 && lead(e) + k < kSize : k < (lead(e) + width) % kSize);
    edges = has_edge ? channels : 0;
    edge_row = offset + e;
    edge_place = e * March::kPitch + (lead(e) + at) * static_cast<int>(sizeof(T));
    edge = data + begin + edge_row * step + at;
  }
  __device__ __forceinline__ static bool is_below(int channel, int channels) {
    return static_cast<unsigned>(channel) < static_cast<unsigned>(channels);
  }
  /// visit(granule, its byte in a chunk, its channel, which across) for the next chunk's, and on to the next chunk.
  template <class Visit>
  __device__ __forceinline__ void each(const Visit& visit) {
#pragma unroll
    for (int u = 0; u < kDown; ++u) {
#pragma unroll
      for (int v = 0; v < kAcross; ++v) {
        visit(granule + u * kSize * step + v * across,
              place + u * kSize * March::kPitch + v * across * static_cast<int>(sizeof(T)), row + u * kSize, v);
      }
    }
    granule += March::kRows * step;
    row += March::kRows;
  }
  /// The next chunk is on its way; zeros for channels that there are not.
  __device__ __forceinline__ void fetch(unsigned char* chunk) {
    each([&](Element* from, int at, int channel, int v) {
      const bool exists = is_below(channel, in_part[v]);
      if (exists && channel == cut_row[v]) {
#pragma unroll 1
        for (int k = 0; k < kSize; ++k) reinterpret_cast<T*>(chunk + at)[k] = k < cut ? from[k] : T{};
      } else {
        device::copy_async_16(static_cast<uint32_t>(__cvta_generic_to_shared(chunk + at)), from,
                              exists ? device::kGranule : 0);
      }
    });
  }
  /// Writes the next chunk.
  __device__ __forceinline__ void store(const unsigned char* chunk) {
    each([&](Element* to, int at, int channel, int v) {
      if (is_below(channel, in_whole[v])) {
        *reinterpret_cast<Pack<T, kSize>*>(to) = *reinterpret_cast<const Pack<T, kSize>*>(chunk + at);
      }
    });
    if (is_below(edge_row, edges)) *edge = *reinterpret_cast<const T*>(chunk + edge_place);
    edge += March::kRows * step;
    edge_row += March::kRows;
  }
};

/// y[c] = compute(c + lag, x[c + lag], ...) for all channels c in order, and for `lag` before them, for each position
/// of the block's tile by a copy of `compute`. Of a second operand, it is given channel c + lag - kReach.
template <int kLag, class T, class Compute, class... In>
__device__ __forceinline__ void march_down(const March& march, const Compute& compute, T* y, const In*... in) {
  static_assert(kLag % 2 == 0 && March::kReach % 2 == 0,
                "a row of a chunk is an even channel of each tensor, or an odd one");
  constexpr int kStages = March::kStages<T>[sizeof...(In) - 1], kOperands = sizeof...(In), kReach = March::kReach;
  constexpr int kChunk = March::kRows * March::kPitch;
  extern __shared__ __align__(16) unsigned char staged[];  // [stages][operands][kChunk], then [2][kChunk]: results
  unsigned char* const results = staged + kStages * kOperands * kChunk;
  int64_t image = blockIdx.x;
  const int64_t first = march.tiles.split(image) * march.width;
  const int64_t begin = image * march.channels * march.positions + first;
  const int width = static_cast<int>(min(int64_t{march.width}, march.positions - first));
  const Spots<T> spots(march, begin);
  Compute columns[Spots<T>::kPositions];
#pragma unroll
  for (auto& column : columns) column = compute;
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
    if (spots.first >= width) continue;
    const unsigned char* const from = staged + i % kStages * kOperands * kChunk;
    unsigned char* const to = results + i % 2 * kChunk;
    typename Spots<T>::Values values[kOperands], ahead[kOperands], computed;
    const auto read = [&](int r) {
#pragma unroll
      for (int k = 0; k < kOperands; ++k) spots.read(from + k * kChunk, -k * kReach, r, ahead[k]);
    };
    read(0);
#pragma unroll
    for (int r = 0; r < March::kRows; ++r) {
#pragma unroll
      for (int k = 0; k < kOperands; ++k) {
#pragma unroll
        for (int p = 0; p < Spots<T>::kPositions; ++p) values[k][p] = ahead[k][p];
      }
      if (r + 1 < March::kRows) read(r + 1);  // before results are written, which might be at the same place
#pragma unroll
      for (int p = 0; p < Spots<T>::kPositions; ++p) {
        if constexpr (kOperands == 1) {
          computed[p] = columns[p](i * March::kRows + r, values[0][p]);
        } else {
          computed[p] = columns[p](i * March::kRows + r, values[0][p], values[1][p]);
        }
      }
      spots.write(to, -kLag, r, computed);
    }
  }
  __syncthreads();
  out.store(results + (count - 1) % 2 * kChunk);
}

}  // namespace halo::cuda
