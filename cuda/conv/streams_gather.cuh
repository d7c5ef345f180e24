// forward of strided convolutions with few channels a group.
//
// A warp owns some tiles of 16 neighbouring positions of one height, by 8 result channels, in all depths that are live:
// a unit is multiplied by the taps of each. Operand A of the tensor cores is gathered from the unit's rows, 16
// positions of 8 channels under one tap of the width (half types: under two); B is the weight.
#pragma once

#include "../device/mma.cuh"
#include "plain_sum.cuh"
#include "small_groups_tile.cuh"
#include "streams_ring.cuh"

namespace halo::cuda::conv::streams {

template <class T>
struct Arguments {
  const T* source;
  const T* weight;
  const T* bias;  ///< or null
  T* result;
};

/// What is known when the kernel is compiled. A product is 16 positions of eight channels under one tap of the width,
/// half types under two.
template <class T, int Index>
struct Compiled {
  using Type = T;
  static constexpr Shape kShape = kShapes[Index];
  static constexpr int kStep = kShape.step, kChunks = kShape.chunks, kLive = kShape.live, kTiles = kShape.tiles();
  static constexpr int kProducts = kShape.products(sizeof(T)), kTaps = sizeof(T) == 2 ? 2 : 1;
  static constexpr int kThreads = 32 * (kShape.users() + 1);
  static constexpr int kEight = 8 * kStep * static_cast<int>(sizeof(T));  ///< bytes of x in 8 positions
};

/// f(integral_constant<int, i>) for i from 0 to N - 1.
template <int N, class F>
__device__ __forceinline__ void unroll(const F& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) { (f(std::integral_constant<int, I>{}), ...); }
  (std::make_integer_sequence<int, N>{});
}

/// Words of a lane's weights of a product.
template <class T>
inline constexpr int kWeightWords = sizeof(T) == 4 ? 4 : 2;

/// Channel of number `half` of a lane's operands.
__device__ __forceinline__ int lane_channel(const ChannelMap& map, int t, int half, int chunk) {
  return t % 2 * map.odd + t / 2 * map.high + half * map.half + chunk * map.chunk;
}

/// The weights as the tensor cores read them: [row (depth and height of the tap), product, chunk, lane]; zeros behind
/// the last depth that has a tap.
template <class T, class C>
__device__ void prepare(const Plan& p, const T* weight, int results, uint32_t* to) {
  constexpr int kOfRow = C::kProducts * C::kChunks;
  const int rows = p.depth.kernel * p.height.kernel, padded = p.weight_depths * p.height.kernel;
  for (int i = static_cast<int>(threadIdx.x); i < padded * kOfRow * 32; i += static_cast<int>(blockDim.x)) {
    const int lane = i % 32, t = lane % 4, result = lane / 4, row = i / 32 / kOfRow;
    const int chunk = i / 32 % C::kChunks, first = i / 32 % kOfRow / C::kChunks * C::kTaps;
    const auto value = [&](int half, int tap) {
      const int channel = lane_channel(p.map, t, half, chunk);
      const bool exists = row < rows && tap < p.width.kernel && channel < p.channels && result < results;
      return exists ? weight[((result * p.channels + channel) * int64_t{rows} + row) * p.width.kernel + tap] : T{};
    };
    if constexpr (sizeof(T) == 4) {
      const device::Tf32Pair one = device::split_tf32_unguarded(value(0, first));
      const device::Tf32Pair two = device::split_tf32_unguarded(value(1, first));
      *reinterpret_cast<uint4*>(to + i * 4) = uint4{one.high, two.high, one.low, two.low};
    } else {
      const auto word = [&](int half) { return value(half, first).bits | uint32_t{value(half, first + 1).bits} << 16; };
      *reinterpret_cast<uint2*>(to + i * 2) = uint2{word(0), word(1)};
    }
  }
}

/// A lane's operands of one channel in a row: offset from `slots`, of half types that of the word that holds the first;
/// and which bytes of two words are two neighbouring columns.
struct Start {
  int offset = 0;
  uint32_t bytes = 0;
};

template <class T>
__device__ __forceinline__ Start start_at(int offset) {
  if constexpr (sizeof(T) == 4) return {offset, 0};
  return {offset & ~3, (offset & 2) != 0 ? 0x5432u : 0x3210u};
}

/// Operand A of a warp's tiles, of the channels of `starts`, `further` bytes behind those. Half types: two neighbouring
/// columns a word, from the two words that hold them. `Last`: the second has no weight, any that is as finite stands
/// for it.
template <class C, bool Last>
__device__ __forceinline__ void load_words(uint32_t (&a)[C::kTiles][4], const unsigned char* slots,
                                           const Start (&starts)[2], int further) {
#pragma unroll
  for (int i = 0; i < 4 * C::kTiles; ++i) {
    const Start& start = starts[i % 4 / 2];
    const auto* const words =
        reinterpret_cast<const uint32_t*>(slots + start.offset + further + (i / 4 * 2 + i % 2) * C::kEight);
    if constexpr (sizeof(typename C::Type) == 4) {
      a[i / 4][i % 4] = words[0];
    } else {
      a[i / 4][i % 4] = __byte_perm(words[0], words[Last ? 0 : 1], start.bytes);
    }
  }
}

/// part[l] += a * weights[l], or = where First, for the live depths l, whose weights are `apart` bytes apart.
template <class T, bool First, int Count, int kTiles, int kLive>
__device__ __forceinline__ void multiply(float (&part)[kLive][kTiles][4], const uint32_t (&a)[kTiles][4],
                                         const unsigned char* weights, int apart) {
  if constexpr (sizeof(T) == 4) {
    small_groups::Operand<4, true> rows[kTiles];
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) rows[i / 4].set(i % 4, __uint_as_float(a[i / 4][i % 4]));
#pragma unroll
    for (int l = 0; l < Count; ++l) {
      const uint4 words = *reinterpret_cast<const uint4*>(weights + l * apart);
      const uint32_t high[2] = {words.x, words.y}, low[2] = {words.z, words.w};
#pragma unroll
      for (int j = 0; j < kTiles; ++j) small_groups::multiply_add<First>(part[l][j], rows[j].low, high);
#pragma unroll
      for (int j = 0; j < kTiles; ++j) small_groups::multiply_add(part[l][j], rows[j].high, low);
#pragma unroll
      for (int j = 0; j < kTiles; ++j) small_groups::multiply_add(part[l][j], rows[j].high, high);
    }
  } else {
#pragma unroll
    for (int l = 0; l < Count; ++l) {
      const uint2 words = *reinterpret_cast<const uint2*>(weights + l * apart);
#pragma unroll
      for (int j = 0; j < kTiles; ++j) device::multiply_halves<T>(part[l][j], a[j], {words.x, words.y});
    }
  }
}

/// Which halves of a warp's tiles, 8 positions each, may read columns that do not exist.
enum class Edges { Outer, All };

/// Zeros for what lies in columns that do not exist; `column` is that of a lane's first position, under the product's
/// first tap.
template <class C, Edges Where>
__device__ __forceinline__ void mask_columns(uint32_t (&a)[C::kTiles][4], int column, unsigned width) {
#pragma unroll
  for (int j = 0; j < 2 * C::kTiles; ++j) {
    if (Where == Edges::Outer && j != 0 && j != 2 * C::kTiles - 1) continue;
    const auto at = static_cast<unsigned>(column + j * 8 * C::kStep);
    uint32_t mask = at < width ? 0xffffffffu : 0;
    if constexpr (C::kTaps == 2) mask = (mask & 0xffffu) | (at + 1 < width ? 0xffff0000u : 0);
    a[j / 2][j % 2] &= mask;
    a[j / 2][j % 2 + 2] &= mask;
  }
}

/// Adds the products of a unit's rows in the first `Count` live depths. `from`: offsets from `slots` of the lane's
/// first operands in the first row of the run; `column`: of x, of those.
template <class C, int Count, Edges Where>
__device__ __forceinline__ void add_rows(const Plan& p, const Item& item, int column, int h, const unsigned char* slots,
                                         const int (&from)[C::kChunks][2], const unsigned char* weights, int live_bytes,
                                         float (&sums)[C::kLive][C::kTiles][4]) {
  using T = typename C::Type;
  constexpr int kSize = static_cast<int>(sizeof(T)), kTiles = C::kTiles, kAll = C::kProducts * C::kChunks;
  constexpr int kProductBytes = 32 * 4 * kWeightWords<T>;
#pragma unroll 1
  for (int k = 0; k < p.height.kernel; ++k, weights += kAll * kProductBytes) {
    const int row = h * p.height.step + p.height.origin + k * p.height.apart;
    if (static_cast<unsigned>(row) >= static_cast<unsigned>(p.height.source)) continue;
    Start starts[C::kChunks][2];
#pragma unroll
    for (int i = 0; i < 2 * C::kChunks; ++i)
      starts[i / 2][i % 2] = start_at<T>(from[i / 2][i % 2] + (row - item.row) * p.width.source * kSize);
    float part[Count][kTiles][4];  // of two products of float32, as the tensor cores round coarsely
    unroll<kAll>([&]<int I>(std::integral_constant<int, I>) {
      constexpr int kChunk = I % C::kChunks, kTap = I / C::kChunks * C::kTaps;
      constexpr bool kLast = I / C::kChunks == C::kProducts - 1;
      uint32_t a[kTiles][4];
      load_words<C, kLast>(a, slots, starts[kChunk], kTap * kSize);
      mask_columns<C, Where>(a, column + kTap, static_cast<unsigned>(p.width.source));
      const unsigned char* const own = weights + I * kProductBytes;
      if constexpr (kSize == 2) {
        multiply<T, false, Count>(sums, a, own, live_bytes);
      } else {
        multiply<T, I % 2 == 0, Count>(part, a, own, live_bytes);
        if constexpr (I % 2 == 1 || I == kAll - 1) {
#pragma unroll
          for (int l = 0; l < Count; ++l) {
#pragma unroll
            for (int i = 0; i < 4 * kTiles; ++i) sums[l][i / 4][i % 4] += part[l][i / 4][i % 4];
          }
        }
      }
    });
  }
}

/// The results of a warp's items that are not finite, again, as plain float32 sums.
template <class T>
__device__ __noinline__ void plain_results(const Plan& p, const Arguments<T>& arguments, const PlainSumOf<T>& plain,
                                           int group, int first_result, int results, int sharer, int own_height,
                                           int first_position, int positions) {
  const int64_t row = p.width.result, plane = row * p.height.result, channel = plane * p.depth.result;
  for (int index = sharer; index < p.items; index += p.sharers) {
    const Item item(p, index);
    if (item.h + own_height >= p.height.result) continue;
    for (int i = 0; i < item.depths * results; ++i) {
      const int64_t own = int64_t{group} * p.results + first_result + i % results;
      const int64_t flat = (item.d + i / results) * plane + (item.h + own_height) * row;
      T* const to = arguments.result + (item.image * p.groups * p.results + own) * channel + flat;
      for (int at = first_position; at < min(first_position + positions, p.width.result); at += 32) {
        if (at < 0 || isfinite(device::to_accumulator(to[at]))) continue;
        const float bias = arguments.bias == nullptr ? 0.0f : device::to_accumulator(arguments.bias[own]);
        to[at] = device::from_accumulator<T>(plain.at(item.image, own, flat + at) + bias);
      }
    }
  }
}

template <class C, class T = typename C::Type>
__global__ void __launch_bounds__(C::kThreads, 1)
    gather_kernel(const __grid_constant__ Plan p, const __grid_constant__ Arguments<T> arguments,
                  const __grid_constant__ PlainSumOf<T> plain) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Ring::Barriers barriers;
  constexpr int kChunks = C::kChunks, kLive = C::kLive, kTiles = C::kTiles, kSize = static_cast<int>(sizeof(T));
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int owner = static_cast<int>(blockIdx.x) / p.sharers, sharer = static_cast<int>(blockIdx.x) % p.sharers;
  const int group = owner / p.result_sets, first_result = owner % p.result_sets * 8;
  const int results = min(8, p.results - first_result);
  Ring ring(barriers, p.slots);
  if (threadIdx.x == 0) ring.init(p.users);
  unsigned char* const slots = shared + p.weight_bytes;
  const int taps = p.depth.kernel * p.height.kernel * p.width.kernel;
  prepare<T, C>(p, arguments.weight + (int64_t{group} * p.results + first_result) * p.channels * taps, results,
                reinterpret_cast<uint32_t*>(shared));
  __syncthreads();
  if (warp == p.users) {
    const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(slots));
    return stream_units(p, ring, to, arguments.source, group, sharer, lane);
  }

  const int g = lane / 4, t = lane % 4, own_height = warp / p.row_warps;
  // The last warp of a row ends where the row does: it may have positions that others have too, or none before its own.
  const int first_position = min(warp % p.row_warps * (kTiles * 16), p.width.result - kTiles * 16);
  const int position = first_position + g, column = position * p.width.step + p.width.origin;
  constexpr int kEight = 8 * C::kStep, kReach = C::kProducts * C::kTaps - 1;
  const bool outer =
      __all_sync(0xffffffffu, column + kEight >= 0 && column + (2 * kTiles - 2) * kEight + kReach < p.width.source);
  int channel[kChunks][2], place[kChunks][2];
#pragma unroll
  for (int i = 0; i < 2 * kChunks; ++i) {
    const int c = min(lane_channel(p.map, t, i % 2, i / 2), p.channels - 1);  // those that do not exist have no weight
    channel[i / 2][i % 2] = c * p.depth.source;
    place[i / 2][i % 2] = c % 4 * p.map.pitch + c / 4 * p.map.quad_pitch + column * kSize;
  }
  const int64_t plane = int64_t{p.height.source} * p.width.source;
  const int64_t y_plane = int64_t{p.height.result} * p.width.result, y_channel = y_plane * p.depth.result;
  const int depth_bytes = p.height.kernel * C::kProducts * kChunks * 32 * 4 * kWeightWords<T>;
  const unsigned char* const own_weights = shared + lane * 4 * kWeightWords<T>;
  float bias[2] = {};
  for (int r = 0; r < 2; ++r) {
    if (arguments.bias != nullptr && 2 * t + r < results)
      bias[r] = device::to_accumulator(arguments.bias[group * p.results + first_result + 2 * t + r]);
  }
  float check = 0;  // NaN after a result that is not finite

  float sums[kLive][kTiles][4] = {};
  for (int index = sharer; index < p.items; index += p.sharers) {
    const Item item(p, index);
    const int h = item.h + own_height;
    const bool active = h < p.height.result;
    const int64_t image_channel = int64_t{group} * p.results + first_result + 2 * t;
    const int64_t flat = int64_t{h} * p.width.result + position;
    T* const to = arguments.result + (item.image * p.groups * p.results + image_channel) * y_channel + flat;
    const int64_t first_row =
        (item.image * p.groups + group) * p.channels * p.depth.source * plane + int64_t{item.row} * p.width.source;
    int phase = -1, newest = item.d;  // sums[l] are those of depth newest - l
    const auto finish_oldest = [&] {
      const int d = newest++ - (kLive - 1);
      if (active && d >= item.d && d < item.d + item.depths) {
#pragma unroll
        for (int i = 0; i < 4 * kTiles; ++i) {
          const int at = i / 2 * 8;
          const bool exists = static_cast<unsigned>(position + at) < static_cast<unsigned>(p.width.result);
          if (!exists || 2 * t + i % 2 >= results) continue;
          const float sum = sums[kLive - 1][i / 4][i % 4];
          check = fmaf(sum, 0.0f, check);
          to[i % 2 * y_channel + d * y_plane + at] = device::from_accumulator<T>(sum + bias[i % 2]);
        }
      }
#pragma unroll
      for (int l = kLive - 1; l >= 0; --l) {
#pragma unroll
        for (int i = 0; i < 4 * kTiles; ++i) sums[l][i / 4][i % 4] = l > 0 ? sums[l > 0 ? l - 1 : 0][i / 4][i % 4] : 0;
      }
    };
    for (int unit = 0; unit < item.units; ++unit) {
      if (++phase == p.phases) {
        phase = 0;
        finish_oldest();
      }
      if (!item.exists(p, unit)) continue;
      ring.wait_copied();
      if (active) {
        const auto run = static_cast<uint32_t>(first_row) + static_cast<uint32_t>(item.at(p, unit) * plane);
        int from[kChunks][2];
#pragma unroll
        for (int i = 0; i < 2 * kChunks; ++i) {
          const uint32_t own_run = run + static_cast<uint32_t>(channel[i / 2][i % 2]) * static_cast<uint32_t>(plane);
          from[i / 2][i % 2] = ring.slot() * p.slot_bytes + place[i / 2][i % 2] + lead_of(arguments.source, own_run);
        }
        const auto add = [&]<int Count>(std::integral_constant<int, Count>) {
          const unsigned char* const first = own_weights + phase * depth_bytes;
          if (outer) {
            add_rows<C, Count, Edges::Outer>(p, item, column, h, slots, from, first, p.phases * depth_bytes, sums);
          } else {
            add_rows<C, Count, Edges::All>(p, item, column, h, slots, from, first, p.phases * depth_bytes, sums);
          }
        };
        if ((C::kLive - 1) * p.phases + phase < p.depth.kernel) {
          add(std::integral_constant<int, C::kLive>{});
        } else {
          add(std::integral_constant<int, C::kLive - 1>{});
        }
      }
      ring.release(lane);
      ring.advance();
    }
    for (int l = 0; l < kLive; ++l) finish_oldest();
  }
  if (__any_sync(0xffffffffu, check != 0)) {
    __syncwarp();
    plain_results(p, arguments, plain, group, first_result, results, sharer, own_height, first_position + lane,
                  16 * kTiles);
  }
}

}  // namespace halo::cuda::conv::streams
