// forward of strided convolutions with few channels a group.
//
// A warp owns some tiles of 16 neighbouring positions of one height, by 8 result channels, in all depths that are live:
// a unit is multiplied by the taps of each. Operand A of the tensor cores is gathered from the unit's rows, 16
// positions of 8 channels under one tap of the width (half types: under two); B is the weight. Where float32 has many
// taps, and half types steps of two, a lane's positions are neighbours, and taps share what is loaded (windows).
#pragma once

#include "../plain_sum.cuh"
#include "products.cuh"

namespace halo::cuda::conv::streams {

template <class T>
struct Arguments {
  const T* source;
  const T* weight;
  const T* bias;  ///< or null
  T* result;
};

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

/// Stores neighbouring results, those of positions from `first` on that exist.
template <class T, int Count>
__device__ __forceinline__ void store_neighbours(T* to, const float (&values)[Count], int first, int width) {
  constexpr int kBytes = Count % 8 == 0 ? 16 : Count % 4 == 0 ? 8 : 4;
  const auto lead = static_cast<int>(reinterpret_cast<uintptr_t>(to) % kBytes);
  const auto store = [&]<int From, int Words>(std::integral_constant<int, From>, std::integral_constant<int, Words>) {
    struct alignas(Words * 4) Piece {
      uint32_t words[Words];
    };
#pragma unroll
    for (int i = From; i + 2 * Words <= Count; i += 2 * Words) {
      Piece piece;
#pragma unroll
      for (int k = 0; k < Words; ++k) {
        const float two[2] = {values[i + 2 * k], values[i + 2 * k + 1]};
        piece.words[k] = device::pack_word<T>(two);
      }
      *reinterpret_cast<Piece*>(to + i) = piece;
    }
  };
  using std::integral_constant;
  const bool all = first >= 0 && first + Count <= width;
  if (all && lead == 0) return store(integral_constant<int, 0>{}, integral_constant<int, kBytes / 4>{});
  if (all && lead % 4 == 0) return store(integral_constant<int, 0>{}, integral_constant<int, 1>{});
  if (all) store(integral_constant<int, 1>{}, integral_constant<int, 1>{});
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    const bool exists = static_cast<unsigned>(first + i) < static_cast<unsigned>(width);
    if (all ? i == 0 || i == Count - 1 : exists) to[i] = device::from_accumulator<T>(values[i]);
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
  // The last warp of a row ends where the row does: it may have positions that others have too, or none before its
  // own.
  const int first_position = min(warp % p.row_warps * (kTiles * 16), p.width.result - kTiles * 16);
  const int position = first_position + g * C::kLaneApart, column = position * p.width.step + p.width.origin;
  constexpr int kEight = 8 * C::kStep, kReach = C::kProducts * C::kTaps - 1;
  const bool outer = __all_sync(
      0xffffffffu, C::kWindows ? column + C::kEdge >= 0 && column + C::kWindow - C::kEdge <= p.width.source
                               : column + kEight >= 0 && column + (2 * kTiles - 2) * kEight + kReach < p.width.source);
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
        if constexpr (C::kWindows && kSize == 2) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            if (2 * t + r >= results) continue;
            float values[2 * kTiles];
#pragma unroll
            for (int i = 0; i < 2 * kTiles; ++i) {
              const float sum = sums[kLive - 1][i % kTiles][i / kTiles * 2 + r];
              check = fmaf(sum, 0.0f, check);
              values[i] = sum + bias[r];
            }
            store_neighbours(to + r * y_channel + d * y_plane, values, position, p.width.result);
          }
        } else {
#pragma unroll
          for (int i = 0; i < 4 * kTiles; ++i) {
            const int at = C::position(i / 2);
            const bool exists = static_cast<unsigned>(position + at) < static_cast<unsigned>(p.width.result);
            if (!exists || 2 * t + i % 2 >= results) continue;
            const float sum = sums[kLive - 1][i / 4][i % 4];
            check = fmaf(sum, 0.0f, check);
            to[i % 2 * y_channel + d * y_plane + at] = device::from_accumulator<T>(sum + bias[i % 2]);
          }
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
                  16 * kTiles - lane);
  }
}

}  // namespace halo::cuda::conv::streams
