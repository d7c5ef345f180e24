// The march over channels (channel_march.cuh) of half types where images fill the GPU: rows twice as long, which the
// copy engine brings, and tiles of whole granules, of which few are written in part.
#pragma once

#include "../device/mbarrier.cuh"
#include "channel_march.cuh"

namespace halo::cuda {

/// The plan: a tile is of those granules that begin in it, and its block computes the positions they reach over.
struct WideMarch {
  static constexpr int kRows = March::kRows, kRowBytes = 2 * March::kRowBytes, kStages = 4, kMostThreads = 512;
  static constexpr int kLineBytes = 128, kMask = kLineBytes - 1;  ///< that memory is read by
  /// From row to row. Rows lie at the place within a line that they have in memory, or the copy engine would read most
  /// lines twice: the first chunk's, and so much further in the next ones as theirs are.
  static constexpr int kPitch = kRowBytes + 2 * kLineBytes;

  Divide tiles;
  int64_t positions;    ///< of an image
  int channels, width;  ///< width: positions of a tile
  int ahead;            ///< positions beyond a tile that its block computes too
  int threads;          ///< of a block: so many granules as rows at most need
  int64_t images;

  template <class T>
  static WideMarch of(int64_t images, int64_t channels, int64_t positions) {
    constexpr int64_t kCut = kWide<T> - 1, kMost = kRowBytes / sizeof(T) - kCut, kWarp = 32;
    const int64_t tiles = (positions + kMost - 1) / kMost, width = (positions + tiles - 1) / tiles;
    // Where rows have room, a tile is of whole granules: of those that begin in it.
    const int64_t ahead = tiles > 1 && width + kCut <= kMost && positions - (tiles - 1) * width >= kCut ? kCut : 0;
    return {.tiles = Divide(tiles, images * tiles),
            .positions = positions,
            .channels = static_cast<int>(channels),
            .width = static_cast<int>(width),
            .ahead = static_cast<int>(ahead),
            .threads = static_cast<int>(std::max<int64_t>(
                (width + ahead + kCut + March::kPositions<T> * kWarp - 1) / (March::kPositions<T> * kWarp) * kWarp,
                kRows * 2 * kWide<T>)),
            .images = images};
  }
  unsigned blocks() const { return static_cast<unsigned>(images * tiles.divisor); }
  /// Of shared memory.
  static constexpr std::size_t kBytes = (kStages + 2) * kRows * kPitch + kStages * sizeof(uint64_t);
};

/// Spots in wide rows, of pairs.
template <class T>
struct WideSpots {
  static constexpr int kSize = kWide<T>, kPositions = March::kPositions<T>;
  using Values = device::Accumulator<T>[kPositions];
  int first;  ///< of the thread's positions, from the tile's begin
  int at[kSize];
  __device__ WideSpots(const WideMarch& march, int64_t begin, uint32_t address)
      : first(static_cast<int>(threadIdx.x) * kPositions - static_cast<int>(begin & (kPositions - 1))) {
#pragma unroll
    for (int c = 0; c < kSize; ++c) {
      at[c] =
          static_cast<int>(address + static_cast<uint32_t>(begin + c * march.positions) * sizeof(T)) & WideMarch::kMask;
      at[c] += first * static_cast<int>(sizeof(T));
      asm volatile("" : "+r"(at[c]));  // found once
    }
  }
  /// Of row r of a chunk whose first channel is `offset`, which is even, or a chunk or several of them further.
  template <class Byte>
  __device__ __forceinline__ Byte* place(Byte* chunk, int offset, int r) const {
    return chunk + r * WideMarch::kPitch + at[(offset + r) & (kSize - 1)];
  }
  __device__ __forceinline__ void read(const unsigned char* chunk, int offset, int r, Values& values) const {
    const unsigned char* const from = place(chunk, offset, r);
    if (r % 2 == 0) return device::unpack_word<T>(*reinterpret_cast<const uint32_t*>(from), values);
#pragma unroll
    for (int p = 0; p < kPositions; ++p) values[p] = device::to_accumulator(reinterpret_cast<const T*>(from)[p]);
  }
  __device__ __forceinline__ void write(unsigned char* chunk, int offset, int r, const Values& values) const {
    unsigned char* const to = place(chunk, offset, r);
    const uint32_t word = device::pack_word<T>(values);
    if (r % 2 == 0) {
      *reinterpret_cast<uint32_t*>(to) = word;
    } else {
      reinterpret_cast<uint16_t*>(to)[0] = static_cast<uint16_t>(word);
      reinterpret_cast<uint16_t*>(to)[1] = static_cast<uint16_t>(word >> 16);
    }
  }
};

/// TileRows of wide rows: a thread has a row of each chunk, and other granules of it from chunk to chunk, so that those
/// that neighbouring threads write are whole lines of memory.
template <class T, class Element>  // Element: T, or const T
struct WideRows {
  static constexpr int kSize = kWide<T>, kDown = WideMarch::kRows / kSize, kAcross = March::kPositions<T>;  // granules
  static constexpr int kLine =
      WideMarch::kLineBytes / device::kGranule;  ///< granules of memory that are read and written together
  int64_t step;                                  ///< from channel to channel
  Element *begun, *edge;  ///< where the first granule of the thread's first row of the next chunk begins; its edge
  int row, edge_row;      ///< their channels
  int place, edge_place;  ///< where they are in a chunk, in bytes
  int granule, across;    ///< the thread's first one of a row that begins at a line; from one to its next one
  int into_line;          ///< granules before `begun` in its line
  int channels, edges;    ///< channels of which the thread has an edge: all or none
  int parts;              ///< granules that are in the tile at least in part
  int whole_from, whole;  ///< those that are the tile's alone
  int cut_row, cut;       ///< the channel, if any, of whose last granule the tensor has but so many elements

  /// `first_of`, `width`: the tile.
  __device__ WideRows(const WideMarch& march, Element* data, int64_t begin, int64_t first_of, int width, int offset,
                      uint32_t address)
      : step(march.positions) {
    const int thread = static_cast<int>(threadIdx.x), lanes = static_cast<int>(blockDim.x) / kSize;
    const auto lead = [&](int r) { return static_cast<int>((begin + (offset + r) * step) & (kSize - 1)); };
    const int r = thread / lanes, before = lead(r);
    row = offset + r;
    begun = data + begin + row * step - before;
    place = r * WideMarch::kPitch + slide(address, begin + (row & (WideMarch::kRows - 1)) * step - before);
    granule = thread % lanes;
    across = lanes;
    into_line = static_cast<int>(reinterpret_cast<uintptr_t>(begun) / device::kGranule) & (kLine - 1);
    channels = march.channels;
    // Whether granules that the tile's ends cut are the tile's in part, rather than the tile's where they begin.
    const bool cut_first = march.ahead == 0 || first_of == 0, cut_last = march.ahead == 0 || is_last(march, first_of);
    parts = (before + width + (cut_last ? 0 : march.ahead) + kSize - 1) / kSize;
    whole_from = before > 0 ? 1 : 0;
    whole = max(0, (before + width + (cut_last ? 0 : kSize - 1)) / kSize - whole_from);
    const int64_t count = march.images * channels * step, last = begin + (channels - 1) * step - before;
    cut = static_cast<int>(count % kSize);
    cut_row = last + parts * kSize > count ? channels - 1 : -1;
    // Of granules that are the tile's in part, an element a thread; two, of the same value, where the tile is narrower.
    const int e = thread / (2 * kSize), k = thread % kSize, at = thread / kSize % 2 == 0 ? k : width - 1 - k;
    const bool has_edge = thread < WideMarch::kRows * 2 * kSize && at >= 0 && at < width &&
                          (thread / kSize % 2 == 0 ? cut_first && lead(e) > 0 && lead(e) + k < kSize
                                                   : cut_last && k < (lead(e) + width) % kSize);
    edges = has_edge ? channels : 0;
    edge_row = offset + e;
    edge_place = e * WideMarch::kPitch + slide(address, begin + (edge_row & (WideMarch::kRows - 1)) * step - lead(e)) +
                 (lead(e) + at) * static_cast<int>(sizeof(T));
    edge = data + begin + edge_row * step + at;
  }
  /// Of a row whose first granule begins at an element of memory, from where rows begin.
  __device__ static int slide(uint32_t address, int64_t element) {
    return static_cast<int>(address + static_cast<uint32_t>(element) * sizeof(T)) & WideMarch::kMask &
           ~(device::kGranule - 1);
  }
  __device__ static bool is_last(const WideMarch& march, int64_t first) {
    return first + march.width >= march.positions;
  }
  __device__ __forceinline__ static bool is_below(int channel, int channels) {
    return static_cast<unsigned>(channel) < static_cast<unsigned>(channels);
  }
  /// visit(granule, its byte in a chunk, its channel, its number) for the next chunk's, and on to the next chunk.
  template <class Visit>
  __device__ __forceinline__ void each(const Visit& visit) {
    const int turn = static_cast<int>(step);  // from a row to one a granule's elements further
#pragma unroll
    for (int u = 0; u < kDown; ++u) {
#pragma unroll
      for (int v = 0; v < kAcross; ++v) {
        int number = granule + v * across - ((into_line + u * turn) & (kLine - 1));
        if (v == 0 && number < 0) number += kAcross * across;  // there are no less than in a line
        visit(begun + u * kSize * step + number * kSize,
              place + u * kSize * WideMarch::kPitch + number * device::kGranule, row + u * kSize, number);
      }
    }
    begun += WideMarch::kRows * step;
    row += WideMarch::kRows;
    into_line = (into_line + kDown * turn) & (kLine - 1);
  }
  /// The next chunk is on its way, a row an arrival on the barrier; zeros for channels that there are not.
  __device__ __forceinline__ void fetch(unsigned char* chunk, uint32_t barrier) {
    static_assert(kDown == 1);
    const bool exists = is_below(row, channels);
    if (granule == 0) {
      const bool is_cut = exists && row == cut_row;
      const uint32_t bytes = exists ? (parts - (is_cut ? 1 : 0)) * device::kGranule : 0;
      const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(chunk + place));
      device::barrier_expect(barrier, bytes);
      if (bytes > 0) device::copy_bulk(to, begun, bytes, barrier);
      if (is_cut) {
#pragma unroll 1
        for (int k = 0; k < kSize; ++k) {
          reinterpret_cast<T*>(chunk + place + bytes)[k] = k < cut ? begun[(parts - 1) * kSize + k] : T{};
        }
      }
    }
    if (!exists) {
#pragma unroll 1
      for (int number = granule; number < parts; number += across) {
        *reinterpret_cast<int4*>(chunk + place + number * device::kGranule) = int4{};
      }
    }
    begun += WideMarch::kRows * step;
    row += WideMarch::kRows;
  }
  /// Writes the next chunk.
  __device__ __forceinline__ void store(const unsigned char* chunk) {
    each([&](Element* to, int at, int channel, int number) {
      if (is_below(channel, channels) && is_below(number - whole_from, whole)) {
        *reinterpret_cast<Pack<T, kSize>*>(to) = *reinterpret_cast<const Pack<T, kSize>*>(chunk + at);
      }
    });
    if (is_below(edge_row, edges)) *edge = *reinterpret_cast<const T*>(chunk + edge_place);
    edge += WideMarch::kRows * step;
    edge_row += WideMarch::kRows;
  }
};

/// march_down in wide rows, on Hopper.
template <int kLag, class T, class Compute>
__device__ __forceinline__ void march_down_wide(const WideMarch& march, const Compute& compute, T* y, const T* x) {
  constexpr int kStages = WideMarch::kStages, kRows = WideMarch::kRows, kChunk = kRows * WideMarch::kPitch;
  extern __shared__ __align__(128) unsigned char staged[];  // [stages][kChunk], then [2][kChunk]: results; barriers
  unsigned char* const results = staged + kStages * kChunk;
  int64_t image = blockIdx.x;
  const int64_t first = march.tiles.split(image) * march.width;
  const int64_t begin = image * march.channels * march.positions + first;
  const auto address = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(x));
  const int width = static_cast<int>(min(int64_t{march.width}, march.positions - first));
  const int all = static_cast<int>(min(int64_t{march.width} + march.ahead, march.positions - first));
  const WideSpots<T> spots(march, begin, address);
  constexpr int kPositions = WideSpots<T>::kPositions;
  Compute columns[kPositions];
#pragma unroll
  for (auto& column : columns) column = compute;
  const uint32_t full = static_cast<uint32_t>(__cvta_generic_to_shared(results + 2 * kChunk));
  if (threadIdx.x == 0) {
    for (int k = 0; k < kStages; ++k) device::barrier_init(full + k * 8, kRows);
    device::barrier_init_fence();
  }
  __syncthreads();
  // Rows of chunks lie further and further from where the first chunk's lie within lines.
  const int drift = static_cast<int>(kRows * march.positions * sizeof(T)) & WideMarch::kMask;
  const auto chunk_at = [&](int i) { return staged + i % kStages * kChunk + ((i * drift) & WideMarch::kMask); };
  WideRows<T, const T> feed(march, x, begin, first, width, 0, address);
  WideRows<T, T> out(march, y, begin, first, width, -kLag, address);
  const int count = (march.channels + kRows - 1) / kRows;
  int fetched = 0;
  const auto fetch = [&] {
    if (fetched < count) feed.fetch(chunk_at(fetched), full + fetched % kStages * 8);
    ++fetched;
  };
#pragma unroll 1
  for (int stage = 0; stage + 1 < kStages; ++stage) fetch();
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    __syncthreads();
    fetch();
    if (i > 0) out.store(results + (i - 1) % 2 * kChunk);
    device::barrier_wait(full + i % kStages * 8, i / kStages % 2);
    if (spots.first >= all) continue;
    const unsigned char* const from = chunk_at(i);
    unsigned char* const to = results + i % 2 * kChunk;
    typename WideSpots<T>::Values values, ahead, computed;
    spots.read(from, 0, 0, ahead);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int p = 0; p < kPositions; ++p) values[p] = ahead[p];
      if (r + 1 < kRows) spots.read(from, 0, r + 1, ahead);  // before results are written, as in march_down
#pragma unroll
      for (int p = 0; p < kPositions; ++p) computed[p] = columns[p](i * kRows + r, values[p]);
      spots.write(to, -kLag, r, computed);
    }
  }
  __syncthreads();
  out.store(results + (count - 1) % 2 * kChunk);
  if (march.channels + kLag <= count * kRows) return;
  // The last channels, which lag behind zeros.
  unsigned char* const to = results + count % 2 * kChunk;
  if (spots.first < all) {
#pragma unroll
    for (int r = 0; r < kLag; ++r) {
      typename WideSpots<T>::Values computed;
#pragma unroll
      for (int p = 0; p < kPositions; ++p) computed[p] = columns[p](count * kRows + r, 0);
      spots.write(to, -kLag, r, computed);
    }
  }
  __syncthreads();
  out.store(to);
}

}  // namespace halo::cuda
