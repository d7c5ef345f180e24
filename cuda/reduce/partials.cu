#include "../device/grid_order.cuh"
#include "../device/number.cuh"
#include "../launch.h"
#include "partials.h"

namespace halo::cuda {
namespace {

constexpr int kColumns = 8, kSlices = 64, kWarp = 32, kWarps = kColumns * kSlices / kWarp;

/// A block sums 8 columns, whole sectors of memory: each slice every 64th part in order, then the slices of each warp
/// in pairs, then the warps in order.
template <class Value, class T>
__global__ void __launch_bounds__(kColumns* kSlices)
    sum_partials_kernel(const Value* partials, int64_t parts, int64_t pitch, int64_t columns, double divisor,
                        const __grid_constant__ SumOutputs<T> outputs) {
  __shared__ double sums[kWarps][kColumns];
  const int lane = static_cast<int>(threadIdx.x), slice = static_cast<int>(threadIdx.y);
  const int64_t column = int64_t{blockIdx.x} * kColumns + lane;
  T* const out = outputs.at[blockIdx.y];
  if (out == nullptr) return;
  partials += blockIdx.y * outputs.step;
  double sum = 0;
#if __CUDA_ARCH__ >= 900
  device::wait_for_previous_grid();
#endif
  if (column < columns) {
#pragma unroll 8
    for (int64_t part = slice; part < parts; part += kSlices)
      sum += static_cast<double>(partials[part * pitch + column]);
  }
  for (int step = kColumns; step < kWarp; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
  const int warp = slice * kColumns / kWarp;
  if (slice % (kWarp / kColumns) == 0) sums[warp][lane] = sum;
  __syncthreads();
  if (slice > 0 || column >= columns) return;
  for (int w = 1; w < kWarps; ++w) sum += sums[w][lane];
  out[column] = device::from_accumulator<T>(static_cast<device::Accumulator<T>>(sum / divisor));
}

}  // namespace

template <class Value, class T>
void sum_partials(const char* name, const Value* partials, int64_t parts, int64_t pitch, int64_t columns,
                  const SumOutputs<T>& out, cudaStream_t stream, double divisor, bool early) {
  unsigned outputs = SumOutputs<T>::kMost;
  while (outputs > 0 && out.at[outputs - 1] == nullptr) --outputs;
  if (outputs == 0) return;
  const dim3 blocks(static_cast<unsigned>((columns + kColumns - 1) / kColumns), outputs);
  launch_with({.early = early}, name, sum_partials_kernel<Value, T>, blocks, dim3(kColumns, kSlices), 0, stream,
              partials, parts, pitch, columns, divisor, out);
}

template void sum_partials(const char*, const float*, int64_t, int64_t, int64_t, const SumOutputs<float>&, cudaStream_t,
                           double, bool);
template void sum_partials(const char*, const double*, int64_t, int64_t, int64_t, const SumOutputs<double>&,
                           cudaStream_t, double, bool);
template void sum_partials(const char*, const double*, int64_t, int64_t, int64_t, const SumOutputs<float>&,
                           cudaStream_t, double, bool);
template void sum_partials(const char*, const double*, int64_t, int64_t, int64_t, const SumOutputs<BFloat16>&,
                           cudaStream_t, double, bool);
template void sum_partials(const char*, const double*, int64_t, int64_t, int64_t, const SumOutputs<Float16>&,
                           cudaStream_t, double, bool);
template void sum_partials(const char*, const float*, int64_t, int64_t, int64_t, const SumOutputs<BFloat16>&,
                           cudaStream_t, double, bool);
template void sum_partials(const char*, const float*, int64_t, int64_t, int64_t, const SumOutputs<Float16>&,
                           cudaStream_t, double, bool);

}  // namespace halo::cuda
