#include "../device/number.cuh"
#include "../launch.h"
#include "partials.h"

namespace halo::cuda {
namespace {

constexpr int kColumns = 32, kSlices = 16;

/// A block sums 32 columns: each slice every 16th part in order, then the slices in order.
template <class Value, class T>
__global__ void __launch_bounds__(kColumns* kSlices)
    sum_partials_kernel(const Value* partials, int64_t parts, int64_t pitch, int64_t columns, double divisor,
                        const __grid_constant__ SumOutputs<T> outputs) {
  __shared__ double sums[kSlices][kColumns];
  const int lane = static_cast<int>(threadIdx.x), slice = static_cast<int>(threadIdx.y);
  const int64_t column = int64_t{blockIdx.x} * kColumns + lane;
  T* const out = outputs.at[blockIdx.y];
  if (out == nullptr) return;
  partials += blockIdx.y * outputs.step;
  double sum = 0;
  if (column < columns) {
#pragma unroll 8
    for (int64_t part = slice; part < parts; part += kSlices)
      sum += static_cast<double>(partials[part * pitch + column]);
  }
  sums[slice][lane] = sum;
  __syncthreads();
  if (slice > 0 || column >= columns) return;
  for (int s = 1; s < kSlices; ++s) sum += sums[s][lane];
  out[column] = device::from_accumulator<T>(static_cast<device::Accumulator<T>>(sum / divisor));
}

}  // namespace

template <class Value, class T>
void sum_partials(const char* name, const Value* partials, int64_t parts, int64_t pitch, int64_t columns,
                  const SumOutputs<T>& out, cudaStream_t stream, double divisor) {
  unsigned outputs = SumOutputs<T>::kMost;
  while (outputs > 0 && out.at[outputs - 1] == nullptr) --outputs;
  const dim3 blocks(static_cast<unsigned>((columns + kColumns - 1) / kColumns), outputs);
  launch(name, sum_partials_kernel<Value, T>, blocks, dim3(kColumns, kSlices), 0, stream, partials, parts, pitch,
         columns, divisor, out);
}

template void sum_partials(const char*, const float*, int64_t, int64_t, int64_t, const SumOutputs<float>&, cudaStream_t,
                           double);
template void sum_partials(const char*, const double*, int64_t, int64_t, int64_t, const SumOutputs<double>&,
                           cudaStream_t, double);
template void sum_partials(const char*, const double*, int64_t, int64_t, int64_t, const SumOutputs<float>&,
                           cudaStream_t, double);
template void sum_partials(const char*, const double*, int64_t, int64_t, int64_t, const SumOutputs<BFloat16>&,
                           cudaStream_t, double);
template void sum_partials(const char*, const double*, int64_t, int64_t, int64_t, const SumOutputs<Float16>&,
                           cudaStream_t, double);
template void sum_partials(const char*, const float*, int64_t, int64_t, int64_t, const SumOutputs<BFloat16>&,
                           cudaStream_t, double);
template void sum_partials(const char*, const float*, int64_t, int64_t, int64_t, const SumOutputs<Float16>&,
                           cudaStream_t, double);

}  // namespace halo::cuda
