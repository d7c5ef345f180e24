// Elementwise kernels over dense [N, C, positions] whose coefficients are those of a plane (n, c): 16 bytes of each
// operand a thread, with one division by `positions` for them.
#pragma once

#include <halo/ops/norm.h>

#include "../device/map.cuh"
#include "../device/number.cuh"

namespace halo::cuda {

/// Which statistics and which channel plane q belongs to.
struct NormPlanes {
  Divide positions, channels, per_row;
  bool by_channel;  ///< statistics of channels, else of rows

  explicit NormPlanes(const BatchNormProblem& p) : NormPlanes(p.batch, p.channels, p.channels, p.positions, true) {}
  explicit NormPlanes(const RowNormProblem& p)
      : NormPlanes(p.rows, p.channels_per_row, p.channels(), p.positions, false) {}

#ifdef __CUDACC__
  __device__ int64_t channel(int64_t q) const { return channels.split(q); }
  __device__ int64_t statistic(int64_t q) const { return by_channel ? channel(q) : per_row.quotient(q); }
#endif

 private:
  NormPlanes(int64_t rows, int64_t channels_per_row, int64_t all_channels, int64_t positions_of,
             bool channel_statistics)
      : by_channel(channel_statistics) {
    const int64_t planes = rows * channels_per_row;
    positions = Divide(positions_of, planes * positions_of);
    channels = Divide(all_channels, planes);
    per_row = Divide(channels_per_row, planes);
  }
};

/// f.plane(q)(element...) in accumulator type for N elements from i on, q the plane of each. Two planes at most.
template <class T, int N, class F, class... In>
__device__ __forceinline__ Pack<T, N> apply_planes(const F& f, const Divide& positions, int64_t i,
                                                   const Pack<In, N>&... in) {
  using device::from_accumulator;
  using device::to_accumulator;
  const int64_t left = positions.divisor - positions.split(i);
  const auto plane = f.plane(i);
  Pack<T, N> result;
#pragma unroll
  for (int k = 0; k < N; ++k) result.at[k] = from_accumulator<T>(plane(to_accumulator(in.at[k])...));
  if (left >= N) return result;
  const auto next = f.plane(i + 1);
#pragma unroll
  for (int k = 1; k < N; ++k) {
    if (k >= left) result.at[k] = from_accumulator<T>(next(to_accumulator(in.at[k])...));
  }
  return result;
}

/// The same for all elements, 16 bytes a thread; `packs`: operands are aligned.
template <class T, class F, class... In>
__global__ void __launch_bounds__(kMapThreads)
    plane_kernel(int64_t count, bool packs, const __grid_constant__ Divide positions, const __grid_constant__ F f,
                 T* out, const In*... in) {
  constexpr int kSize = kWide<T>;
  const int64_t thread = int64_t{blockIdx.x} * kMapThreads + threadIdx.x, whole = packs ? count / kSize : 0;
  if (thread < whole) {
    reinterpret_cast<Pack<T, kSize>*>(out)[thread] =
        apply_planes<T, kSize>(f, positions, thread * kSize, reinterpret_cast<const Pack<In, kSize>*>(in)[thread]...);
  } else if (const int64_t i = whole * (kSize - 1) + thread; i < count) {
    out[i] = apply_planes<T, 1>(f, positions, i, Pack<In, 1>{in[i]}...).at[0];
  }
}

template <class F, class T, class... In>
void map_planes(const char* name, Device device, int64_t count, const Divide& positions, const F& f, T* out,
                const In*... in) {
  if (count == 0) return;
  const bool packs =
      positions.divisor >= kWide<T> && (is_aligned<T, kWide<T>>(out) && ... && is_aligned<T, kWide<T>>(in));
  const int64_t threads = packs ? count / kWide<T> + count % kWide<T> : count;
  const DeviceScope scope(device);
  launch(name, plane_kernel<T, F, In...>, map_blocks(threads), kMapThreads, 0, scope.stream(), count, packs, positions,
         f, out, in...);
}

}  // namespace halo::cuda
