#include <halo/core/error.h>
#include <halo/cuda/launch.h>

#include <cmath>
#include <vector>

#include "conv_data.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace halo::bench {
namespace {

using cuda::check;
constexpr int kThreads = 256;

__host__ __device__ uint64_t mix(uint64_t z) {  // the finaliser of splitmix64
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

__global__ void random_kernel(float* data, int64_t count, uint64_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
    const uint64_t bits = mix(seed + 0x9e3779b97f4a7c15ull * static_cast<uint64_t>(i + 1));
    data[i] = static_cast<float>(static_cast<int32_t>(bits >> 39) - (1 << 24)) * (1.0f / (1 << 24));
  }
}

template <class Word>
__global__ void count_kernel(const Word* data, int64_t count, unsigned long long* found) {
  unsigned long long mine = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
    mine += data[i] == static_cast<Word>(~Word{0});
  }
  if (mine != 0) atomicAdd(found, mine);
}

template <class From, class To>
__global__ void convert_kernel(const From* from, To* to, int64_t count) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
    to[i] = static_cast<To>(static_cast<float>(from[i]));
  }
}

/// The trilinear form's sizes, as this file needs them; written apart from the kernels it checks.
struct Form {
  int64_t n, c, k, cg, kg, in[3], out[3], ker[3], s[3], d[3], p[3];
};

struct Operand {
  const float* x;
  const float* w;
  const float* y;
};

__device__ bool tap_reads(const Form& f, const int64_t (&o)[3], const int64_t (&t)[3], int64_t& flat) {
  flat = 0;
  for (int a = 0; a < 3; ++a) {
    const int64_t i = o[a] * f.s[a] + t[a] * f.d[a] - f.p[a];
    if (i < 0 || i >= f.in[a]) return false;
    flat = flat * f.in[a] + i;
  }
  return true;
}

__device__ void split(int64_t flat, const int64_t (&box)[3], int64_t (&at)[3]) {
  at[2] = flat % box[2];
  at[1] = flat / box[2] % box[1];
  at[0] = flat / box[2] / box[1];
}

/// Term `term` of the sum that gives element `index` of the pass's result; false where it is padding.
__device__ bool term_of(const Form& f, ConvPass pass, const Operand& op, int64_t index, int64_t term, float& a,
                        float& b) {
  const int64_t ins = f.in[0] * f.in[1] * f.in[2];
  const int64_t outs = f.out[0] * f.out[1] * f.out[2];
  const int64_t taps = f.ker[0] * f.ker[1] * f.ker[2];
  int64_t o[3], t[3], from = 0;
  if (pass == ConvPass::Forward) {
    const int64_t co = index / outs % f.k, ci = term / taps, group = co / f.kg;
    split(index % outs, f.out, o);
    split(term % taps, f.ker, t);
    if (!tap_reads(f, o, t, from)) return false;
    a = op.x[(index / outs / f.k * f.c + group * f.cg + ci) * ins + from];
    b = op.w[(co * f.cg + ci) * taps + term % taps];
    return true;
  }
  if (pass == ConvPass::BackwardWeight) {
    const int64_t co = index / taps / f.cg, ci = co / f.kg * f.cg + index / taps % f.cg;
    split(index % taps, f.ker, t);
    split(term % outs, f.out, o);
    if (!tap_reads(f, o, t, from)) return false;
    a = op.x[(term / outs * f.c + ci) * ins + from];
    b = op.y[(term / outs * f.k + co) * outs + term % outs];
    return true;
  }
  const int64_t ci = index / ins % f.c, group = ci / f.cg, co = group * f.kg + term / taps;
  int64_t i[3];
  split(index % ins, f.in, i);
  split(term % taps, f.ker, t);
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t scaled = i[axis] + f.p[axis] - t[axis] * f.d[axis];
    o[axis] = scaled / f.s[axis];
    if (scaled < 0 || scaled % f.s[axis] != 0 || o[axis] >= f.out[axis]) return false;
  }
  const int64_t at = (o[0] * f.out[1] + o[1]) * f.out[2] + o[2];
  a = op.y[(index / ins / f.c * f.k + co) * outs + at];
  b = op.w[(co * f.cg + ci % f.cg) * taps + term % taps];
  return true;
}

/// One block a sample: sums[block] = float64 sum, chains[block] = float32 chain (if `chain`).
__global__ void reference_kernel(Form f, ConvPass pass, Operand op, const int64_t* indices, int64_t terms, bool chain,
                                 double* sums, float* chains) {
  __shared__ double partial[kThreads];
  const int64_t index = indices[blockIdx.x];
  double sum = 0;
  float a = 0, b = 0;
  for (int64_t term = threadIdx.x; term < terms; term += kThreads) {
    if (term_of(f, pass, op, index, term, a, b)) sum += static_cast<double>(a) * b;
  }
  partial[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kThreads; ++i) sum += partial[i];
  sums[blockIdx.x] = sum;
  float c = 0;
  for (int64_t term = 0; chain && term < terms; ++term) {
    if (term_of(f, pass, op, index, term, a, b)) c = fmaf(a, b, c);
  }
  chains[blockIdx.x] = c;
}

Form form_of(const ConvProblem& p) {
  Form f{
      p.batch, p.in_channels, p.out_channels, p.in_channels_per_group(), p.out_channels_per_group(), {}, {}, {}, {}, {},
      {}};
  for (std::size_t a = 0; a < 3; ++a) {
    f.in[a] = p.input[a];
    f.out[a] = p.output[a];
    f.ker[a] = p.kernel[a];
    f.s[a] = p.stride[a];
    f.d[a] = p.dilation[a];
    f.p[a] = p.padding_before[a];
  }
  return f;
}

int blocks_for(int64_t count) { return static_cast<int>(std::min<int64_t>((count + kThreads - 1) / kThreads, 8192)); }

template <class From, class To>
void convert(const From* from, To* to, int64_t count) {
  if (count == 0) return;
  cuda::launch("convert", convert_kernel<From, To>, dim3(static_cast<unsigned>(blocks_for(count))), kThreads, 0,
               nullptr, from, to, count);
}

template <class Word>
int64_t count_words(const Word* data, int64_t count) {
  if (count == 0) return 0;
  DeviceBuffer found(sizeof(unsigned long long));
  check(cudaMemset(found.data(), 0, found.bytes()), "count_poison");
  cuda::launch("count_poison", count_kernel<Word>, dim3(static_cast<unsigned>(blocks_for(count))), kThreads, 0, nullptr,
               data, count, static_cast<unsigned long long*>(found.data()));
  unsigned long long result = 0;
  check(cudaMemcpy(&result, found.data(), sizeof(result), cudaMemcpyDeviceToHost), "count_poison");
  return static_cast<int64_t>(result);
}

}  // namespace

DeviceBuffer::DeviceBuffer(std::size_t bytes) : bytes_(bytes) {
  if (bytes != 0) check(cudaMalloc(&data_, bytes), "DeviceBuffer");
}
DeviceBuffer::~DeviceBuffer() { cudaFree(data_); }

void fill_random(float* data, int64_t count, uint64_t seed) {
  cuda::launch("fill_random", random_kernel, dim3(static_cast<unsigned>(blocks_for(count))), kThreads, 0, nullptr, data,
               count, mix(seed + 1));
}

void poison(void* data, std::size_t bytes) {
  if (bytes != 0) check(cudaMemset(data, 0xFF, bytes), "poison");
}

int64_t count_poison(const float* data, int64_t count) { return count_poison(data, DType::Float32, count); }

int64_t count_poison(const void* data, DType dtype, int64_t count) {
  return is_half(dtype) ? count_words(static_cast<const uint16_t*>(data), count)
                        : count_words(static_cast<const uint32_t*>(data), count);
}

void narrow(const float* from, void* to, DType dtype, int64_t count) {
  dtype == DType::BFloat16 ? convert(from, static_cast<__nv_bfloat16*>(to), count)
                           : convert(from, static_cast<__half*>(to), count);
}

void widen(const void* from, DType dtype, float* to, int64_t count) {
  dtype == DType::BFloat16 ? convert(static_cast<const __nv_bfloat16*>(from), to, count)
                           : convert(static_cast<const __half*>(from), to, count);
}

SampleError sample_error(const ConvProblem& problem, ConvPass pass, const float* x, const float* w, const float* y,
                         int samples, uint64_t seed) {
  const bool forward = pass == ConvPass::Forward, weight = pass == ConvPass::BackwardWeight;
  const int64_t count = forward ? problem.y_numel() : weight ? problem.w_numel() : problem.x_numel();
  const int64_t terms = forward  ? problem.in_channels_per_group() * problem.taps()
                        : weight ? problem.batch * problem.output_positions()
                                 : problem.out_channels_per_group() * problem.taps();
  if (count == 0) return {};
  const float* result = forward ? y : weight ? w : x;
  std::vector<int64_t> indices{0, count - 1};
  for (int i = 2; i < samples; ++i) {
    indices.push_back(static_cast<int64_t>(mix(seed + static_cast<uint64_t>(i)) % static_cast<uint64_t>(count)));
  }
  const std::size_t n = indices.size();
  DeviceBuffer d_indices(n * sizeof(int64_t)), d_sums(n * sizeof(double)), d_chains(n * sizeof(float));
  check(cudaMemcpy(d_indices.data(), indices.data(), d_indices.bytes(), cudaMemcpyHostToDevice), "sample_error");
  cuda::launch("reference", reference_kernel, dim3(static_cast<unsigned>(n)), kThreads, 0, nullptr, form_of(problem),
               pass, Operand{x, w, y}, static_cast<const int64_t*>(d_indices.data()), terms, !weight,
               static_cast<double*>(d_sums.data()), d_chains.floats());
  std::vector<double> sums(n);
  std::vector<float> chains(n);
  check(cudaMemcpy(sums.data(), d_sums.data(), d_sums.bytes(), cudaMemcpyDeviceToHost), "sample_error");
  check(cudaMemcpy(chains.data(), d_chains.data(), d_chains.bytes(), cudaMemcpyDeviceToHost), "sample_error");
  double error = 0, chain_error = 0, norm = 0;
  for (std::size_t i = 0; i < n; ++i) {
    float got = 0;
    check(cudaMemcpy(&got, result + indices[i], sizeof(got), cudaMemcpyDeviceToHost), "sample_error");
    error += (got - sums[i]) * (got - sums[i]);
    chain_error += (chains[i] - sums[i]) * (chains[i] - sums[i]);
    norm += sums[i] * sums[i];
  }
  if (norm == 0) return {error == 0 ? 0.0 : INFINITY, 0};
  return {std::sqrt(error / norm), weight ? 0.0 : std::sqrt(chain_error / norm)};
}

}  // namespace halo::bench
