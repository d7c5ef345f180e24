// Elementwise kernels for tensors of one shape: map, out[i] = f(in[i]...) at any strides, and generate, out[i] =
// f(i, in[i]...) for dense ones.
//
// Operands whose last axis is contiguous and aligned, or broadcast, go by packs, a pack a thread; others by elements,
// with offsets from device/walk.cuh, in a kernel of their own, as those take many registers.
#pragma once

#include <halo/core/strided.h>
#include <halo/core/tensor.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "../launch.h"
#include "../runtime/device.h"
#include "packs.cuh"
#include "walk.cuh"

namespace halo::cuda {

inline constexpr int kMapThreads = 256;
/// A tensor whose elements a kernel takes as T (of the same size as its dtype).
template <class T>
struct Elements {
  const Tensor& tensor;
  T* data() const { return static_cast<T*>(tensor.data()); }
};

/// Blocks for `items`, each a thread's.
inline dim3 map_blocks(int64_t items) { return dim3(static_cast<unsigned>((items + kMapThreads - 1) / kMapThreads)); }

/// Elements of the operands that a thread takes at once: 16 bytes of the shortest type, from four to eight.
template <class... T>
inline constexpr int kMapSize = std::clamp(16 / std::min({static_cast<int>(sizeof(T))...}), kPackSize, 2 * kPackSize);

/// Whether no operand's pack is longer than one access.
template <class... T>
inline constexpr bool kMapOneAccess = std::max({static_cast<int>(sizeof(T))...}) * kMapSize<T...> <= 16;

/// How map goes over its operands.
struct MapRoad {
  bool packs = true;       ///< kMapSize elements a thread (the walk's steps are that long), else one
  unsigned broadcast = 0;  ///< bit k: all elements of a pack are the one element of input k
  int64_t count = 0;       ///< elements; with packs, those after the last whole one are dense
};

template <class In, int N>
__device__ __forceinline__ Pack<In, N> load_pack(const In* at, bool broadcast) {
  Pack<In, N> pack;
  if (broadcast) {
    const In value = *at;
#pragma unroll
    for (int k = 0; k < N; ++k) pack.at[k] = value;
  } else {
    pack = *reinterpret_cast<const Pack<In, N>*>(at);
  }
  return pack;
}

template <class F, class Out, class... In, std::size_t... K>
__device__ __forceinline__ void map_pack(const Walk<1 + sizeof...(In)>& walk, unsigned broadcast, int64_t index,
                                         const F& f, std::index_sequence<K...>, Out* out, const In*... in) {
  constexpr int kSize = kMapSize<Out, In...>;
  int64_t offset[1 + sizeof...(In)];
  walk.locate(index, offset);
  Pack<Out, kSize> result;
  const auto combine = [&](const auto&... pack) {
#pragma unroll
    for (int k = 0; k < kSize; ++k) result.at[k] = f(pack.at[k]...);
  };
  combine(load_pack<In, kSize>(in + offset[1 + K], (broadcast >> K & 1) != 0)...);
  *reinterpret_cast<Pack<Out, kSize>*>(out + offset[0]) = result;
}

inline constexpr int kMapUnroll = 4;  // elements a thread where it takes one at a time

/// Elements first, first + kMapThreads, ...
template <class F, class Out, class... In, std::size_t... K>
__device__ __forceinline__ void map_elements(const Walk<1 + sizeof...(In)>& walk, int64_t first, const F& f,
                                             std::index_sequence<K...>, Out* out, const In*... in) {
  int64_t index[kMapUnroll], offset[kMapUnroll][1 + sizeof...(In)];
#pragma unroll
  for (int u = 0; u < kMapUnroll; ++u) index[u] = min(first + u * kMapThreads, walk.count - 1);
  walk.locate(index, offset);
  Out result[kMapUnroll];
#pragma unroll
  for (int u = 0; u < kMapUnroll; ++u) result[u] = f(in[offset[u][1 + K]]...);  // no branches: loads go together
#pragma unroll
  for (int u = 0; u < kMapUnroll; ++u) {
    if (first + u * kMapThreads < walk.count) out[offset[u][0]] = result[u];
  }
}

/// Operands may be the same memory, element by element, but do not overlap otherwise.
template <class F, class Out, class... In>
__global__ void __launch_bounds__(kMapThreads) map_elements_kernel(const __grid_constant__ Walk<1 + sizeof...(In)> walk,
                                                                   F f, Out* __restrict__ out, const In*... in) {
  const int64_t first = int64_t{blockIdx.x} * (kMapThreads * kMapUnroll) + threadIdx.x;
  if (first < walk.count) map_elements(walk, first, f, std::index_sequence_for<In...>{}, out, in...);
}
template <class F, class Out, class... In>
__global__ void __launch_bounds__(kMapThreads)
    map_packs_kernel(const __grid_constant__ Walk<1 + sizeof...(In)> walk, const __grid_constant__ MapRoad road, F f,
                     Out* __restrict__ out, const In*... in) {
  constexpr int kSize = kMapSize<Out, In...>;
  const int64_t thread = int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (thread < walk.count) {
    map_pack(walk, road.broadcast, thread, f, std::index_sequence_for<In...>{}, out, in...);
  } else if constexpr (!kMapOneAccess<Out, In...>) {  // the others' tails are map_dense_kernel's
    if (const int64_t i = walk.count * (kSize - 1) + thread; i < road.count) out[i] = f(in[i]...);
  }
}

/// The same for dense operands, in few instructions and registers: a pack a thread and nothing else lets as many blocks
/// be on their way, side by side in memory, as read and write at the rate of the driver's own copy (a walk costs 5 %,
/// four packs a thread 6 %). Not where packs are longer than one access: bfloat16 to float32 takes 9 % more that way.
template <class F, class Out, class... In>
__global__ void __launch_bounds__(kMapThreads)
    map_dense_kernel(int64_t packs, int64_t count, F f, Out* __restrict__ out, const In*... in) {
  constexpr int kSize = kMapSize<Out, In...>;
  const int64_t thread = int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (thread < packs) {
    Pack<Out, kSize> result;
    const auto combine = [&](const auto&... pack) {
#pragma unroll
      for (int k = 0; k < kSize; ++k) result.at[k] = f(pack.at[k]...);
    };
    combine(load_pack<In, kSize>(in + thread * kSize, false)...);
    reinterpret_cast<Pack<Out, kSize>*>(out)[thread] = result;
  } else if (const int64_t i = packs * (kSize - 1) + thread; i < count) {
    out[i] = f(in[i]...);
  }
}

template <int kEach, class F, class Out, class... In>
__global__ void __launch_bounds__(kMapThreads)
    generate_kernel(int64_t count, bool packs, const __grid_constant__ F f, Out* out, const In*... in) {
  const int64_t thread = int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if constexpr (kEach > 1) {
    const int64_t first = int64_t{blockIdx.x} * (kMapThreads * kEach) + threadIdx.x;
    Out result[kEach];
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      const int64_t i = min(first + u * kMapThreads, count - 1);  // no branches: all loads in flight together
      result[u] = f(i, in[i]...);
    }
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      if (first + u * kMapThreads < count) out[first + u * kMapThreads] = result[u];
    }
    return;
  }
  const int64_t whole = packs ? count / kPackSize : 0;
  if (thread < whole) {
    Pack<Out> result;
    const auto combine = [&](const auto&... pack) {
#pragma unroll
      for (int k = 0; k < kPackSize; ++k) result.at[k] = f(thread * kPackSize + k, pack.at[k]...);
    };
    combine(reinterpret_cast<const Pack<In>*>(in)[thread]...);
    reinterpret_cast<Pack<Out>*>(out)[thread] = result;
  } else if (const int64_t i = whole * (kPackSize - 1) + thread; i < count) {
    out[i] = f(i, in[i]...);
  }
}

/// The road over `loop`, whose last axis is cut into packs where they fit: every operand has steps of 1 there (inputs
/// also of 0), and every pack begins on its own alignment.
template <class Out, class... In>
MapRoad choose_road(StridedLoop<1 + sizeof...(In)>& loop, const Out* out, const In*... in) {
  constexpr int kSize = kMapSize<Out, In...>;
  MapRoad road{.count = loop.numel()};
  const int last = loop.shape.rank() - 1;
  const bool whole = loop.shape[last] % kSize == 0;
  road.packs = last == 0 || whole;
  std::size_t operand = 0;
  const auto take = [&]<class T>(const T* data) {
    const Shape& strides = loop.strides[operand];
    const bool still = operand > 0 && whole && strides[last] == 0;
    if (still) road.broadcast |= 1u << (operand - 1);
    road.packs = road.packs && (still || (strides[last] == 1 && is_aligned<T, kSize>(data)));
    for (int axis = 0; axis < last; ++axis) road.packs = road.packs && (still || strides[axis] % kSize == 0);
    ++operand;
  };
  take(out);
  (take(in), ...);
  if (!road.packs) return road;
  loop.shape[last] /= kSize;
  for (Shape& strides : loop.strides) strides[last] *= kSize;
  return road;
}

/// Launches out = f(in...) over `loop` on the current stream of `device`.
template <class F, class Out, class... In>
void map_over(const char* name, Device device, StridedLoop<1 + sizeof...(In)> loop, const F& f, Out* out,
              const In*... in) {
  const MapRoad road = choose_road(loop, out, in...);
  if (road.count == 0) return;
  const Walk<1 + sizeof...(In)> walk(loop);
  const int64_t threads = road.packs ? walk.count + road.count - walk.count * kMapSize<Out, In...>
                                     : (road.count + kMapUnroll - 1) / kMapUnroll;
  const DeviceScope scope(device);
  if constexpr (kMapOneAccess<Out, In...>) {
    if (road.packs && walk.rank == 1 && road.broadcast == 0) {
      return launch(name, map_dense_kernel<F, Out, In...>, map_blocks(threads), kMapThreads, 0, scope.stream(),
                    walk.count, road.count, f, out, in...);
    }
  }
  if (road.packs) {
    launch(name, map_packs_kernel<F, Out, In...>, map_blocks(threads), kMapThreads, 0, scope.stream(), walk, road, f,
           out, in...);
  } else {
    launch(name, map_elements_kernel<F, Out, In...>, map_blocks(threads), kMapThreads, 0, scope.stream(), walk, f, out,
           in...);
  }
}

/// Launches out = f(in...) for tensors of one shape and any strides.
template <class F, class Out, class... In>
void map(const char* name, const F& f, Elements<Out> out, Elements<In>... in) {
  const StridedLoop<1 + sizeof...(In)> loop(out.tensor.shape(), {out.tensor.strides(), in.tensor.strides()...});
  map_over(name, out.tensor.device(), loop, f, out.data(), static_cast<const In*>(in.data())...);
}

/// Launches out[i] = f(i, in[i]...) for dense tensors of as many elements. `kEach`: so many elements a thread, a block
/// apart, for functors that do much work (1) or read from elsewhere (4); 0: packs of neighbours.
template <int kEach = 0, class F, class Out, class... In>
void generate(const char* name, const F& f, Elements<Out> out, Elements<In>... in) {
  const int64_t count = out.tensor.numel();
  if (count == 0) return;
  const bool packs = kEach == 0 && (is_aligned(out.data()) && ... && is_aligned(in.data()));
  const int64_t threads = packs ? count / kPackSize + count % kPackSize : (count + kEach - 1) / std::max(kEach, 1);
  const DeviceScope scope(out.tensor.device());
  launch(name, generate_kernel<kEach, F, Out, In...>, map_blocks(kEach == 0 && !packs ? count : threads), kMapThreads,
         0, scope.stream(), count, packs, f, out.data(), static_cast<const In*>(in.data())...);
}

/// Calls `f(std::type_identity<U>{})` with the unsigned integer of an element's size, for kernels that only move bits.
template <class F>
decltype(auto) dispatch_size(DType dtype, F&& f) {
  switch (size_of(dtype)) {
    case 1: return f(std::type_identity<uint8_t>{});
    case 2: return f(std::type_identity<uint16_t>{});
    case 4: return f(std::type_identity<uint32_t>{});
    case 8: return f(std::type_identity<uint64_t>{});
  }
  fail<InternalError>("dispatch_size: elements of ", size_of(dtype), " bytes");
}

}  // namespace halo::cuda
