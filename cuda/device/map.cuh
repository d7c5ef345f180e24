// Elementwise kernels for tensors of one shape: map, out[i] = f(in[i]...) at any strides, and generate, out[i] =
// f(i, in[i]...) for dense ones.
//
// Dense aligned operands take the vector road, four elements a thread; others go one element a thread, with offsets
// from device/walk.cuh. One kernel holds both, so that a functor costs one instantiation.
#pragma once

#include <halo/core/strided.h>
#include <halo/core/tensor.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "../launch.h"
#include "../runtime/device.h"
#include "walk.cuh"

namespace halo::cuda {

inline constexpr int kMapThreads = 256;
inline constexpr int kPackSize = 4;

/// Elements read or written at once: 16 bytes of 4-byte elements, two times 16 of 8-byte ones.
template <class T>
struct alignas(sizeof(T) * kPackSize < 16 ? sizeof(T) * kPackSize : 16) Pack {
  T at[kPackSize];
};

/// A tensor whose elements a kernel takes as T (of the same size as its dtype).
template <class T>
struct Elements {
  const Tensor& tensor;
  T* data() const { return static_cast<T*>(tensor.data()); }
};

template <class T>
bool is_aligned(const T* data) {
  return reinterpret_cast<uintptr_t>(data) % alignof(Pack<T>) == 0;
}

/// Blocks for `items`, each a thread's; the kernels' loops take what is left over.
inline dim3 map_blocks(int64_t items) {
  return dim3(static_cast<unsigned>(std::min<int64_t>((items + kMapThreads - 1) / kMapThreads, int64_t{1} << 30)));
}

/// out[i] = f(i, in[i]...) for i < count, four at a time.
template <class F, class Out, class... In>
__device__ __forceinline__ void map_packs(int64_t count, int64_t thread, int64_t threads, const F& f, Out* out,
                                          const In*... in) {
  const int64_t packs = count / kPackSize;
  for (int64_t p = thread; p < packs; p += threads) {
    Pack<Out> result;
    const auto combine = [&](const auto&... pack) {
#pragma unroll
      for (int k = 0; k < kPackSize; ++k) result.at[k] = f(p * kPackSize + k, pack.at[k]...);
    };
    combine(reinterpret_cast<const Pack<In>*>(in)[p]...);
    reinterpret_cast<Pack<Out>*>(out)[p] = result;
  }
  const int64_t tail = packs * kPackSize + thread;
  if (tail < count) out[tail] = f(tail, in[tail]...);
}

template <class F, class Out, class... In, std::size_t... K>
__device__ __forceinline__ void map_one(const Walk<1 + sizeof...(In)>& walk, int64_t index, const F& f,
                                        std::index_sequence<K...>, Out* out, const In*... in) {
  int64_t offset[1 + sizeof...(In)];
  walk.locate(index, offset);
  out[offset[0]] = f(in[offset[1 + K]]...);
}

template <class F, class Out, class... In>
__global__ void __launch_bounds__(kMapThreads)
    map_kernel(const __grid_constant__ Walk<1 + sizeof...(In)> walk, F f, Out* out, const In*... in) {
  const int64_t thread = int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  const int64_t threads = int64_t{gridDim.x} * kMapThreads;
  if (walk.dense) {
    map_packs(
        walk.count, thread, threads, [&](int64_t, const In&... value) { return f(value...); }, out, in...);
  } else {
    for (int64_t i = thread; i < walk.count; i += threads) {
      map_one(walk, i, f, std::index_sequence_for<In...>{}, out, in...);
    }
  }
}

template <class F, class Out, class... In>
__global__ void __launch_bounds__(kMapThreads)
    generate_kernel(int64_t count, bool packs, const __grid_constant__ F f, Out* out, const In*... in) {
  const int64_t thread = int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  const int64_t threads = int64_t{gridDim.x} * kMapThreads;
  if (packs) {
    map_packs(count, thread, threads, f, out, in...);
  } else {
    for (int64_t i = thread; i < count; i += threads) out[i] = f(i, in[i]...);
  }
}

/// Launches out = f(in...) over `loop` on the current stream of `device`.
template <class F, class Out, class... In>
void map_over(const char* name, Device device, const StridedLoop<1 + sizeof...(In)>& loop, const F& f, Out* out,
              const In*... in) {
  Walk<1 + sizeof...(In)> walk(loop);
  if (walk.count == 0) return;
  if (!(is_aligned(out) && ... && is_aligned(in))) walk.dense = false;
  const int64_t items = walk.dense ? (walk.count + kPackSize - 1) / kPackSize : walk.count;
  const DeviceScope scope(device);
  launch(name, map_kernel<F, Out, In...>, map_blocks(items), kMapThreads, 0, scope.stream(), walk, f, out, in...);
}

/// Launches out = f(in...) for tensors of one shape and any strides.
template <class F, class Out, class... In>
void map(const char* name, const F& f, Elements<Out> out, Elements<In>... in) {
  const StridedLoop<1 + sizeof...(In)> loop(out.tensor.shape(), {out.tensor.strides(), in.tensor.strides()...});
  map_over(name, out.tensor.device(), loop, f, out.data(), static_cast<const In*>(in.data())...);
}

/// Launches out[i] = f(i, in[i]...) for dense tensors of as many elements. `kSpread`: one element a thread even so,
/// for functors that do much work or read from far.
template <bool kSpread = false, class F, class Out, class... In>
void generate(const char* name, const F& f, Elements<Out> out, Elements<In>... in) {
  const int64_t count = out.tensor.numel();
  if (count == 0) return;
  const bool packs = !kSpread && (is_aligned(out.data()) && ... && is_aligned(in.data()));
  const DeviceScope scope(out.tensor.device());
  launch(name, generate_kernel<F, Out, In...>, map_blocks(packs ? (count + kPackSize - 1) / kPackSize : count),
         kMapThreads, 0, scope.stream(), count, packs, f, out.data(), static_cast<const In*>(in.data())...);
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
