// Convolution of half types by the float32 kernels: a few samples at a time are copied to float32, and the result is
// rounded once. What the other kernels for half types do not suit, as many channels a group.
//
// bfloat16 and float16 are exact in TF32, so one TF32 product is as good as three. Limits: none. Workspace: the copies
// of as many samples as fit in kCopies, or of one; the copies of the weights; and what the float32 kernel needs.
#include <algorithm>

#include "../device/number.cuh"
#include "../device/packs.cuh"
#include "../launch.h"
#include "algorithms.h"
#include "dispatch.h"

namespace halo::cuda::conv {
namespace {

constexpr int64_t kCopies = int64_t{128} << 20;  ///< bytes
constexpr int kThreads = 256, kEach = 8;

/// to[i] = from[i], eight neighbours a thread where both are aligned, else eight that lie kThreads apart.
template <class From, class To>
__global__ void __launch_bounds__(kThreads) convert_kernel(int64_t count, bool packs, const From* from, To* to) {
  const int64_t block = int64_t{blockIdx.x} * (kThreads * kEach);
  const int64_t first = block + threadIdx.x * kEach;
  if (packs && first + kEach <= count) {
    const auto in = *reinterpret_cast<const Pack<From, kEach>*>(from + first);
    Pack<To, kEach> out;
#pragma unroll
    for (int k = 0; k < kEach; ++k) out.at[k] = device::from_accumulator<To>(device::to_accumulator(in.at[k]));
    *reinterpret_cast<Pack<To, kEach>*>(to + first) = out;
    return;
  }
  for (int k = 0; k < kEach; ++k) {
    const int64_t i = packs ? first + k : block + k * kThreads + threadIdx.x;
    if (i < count) to[i] = device::from_accumulator<To>(device::to_accumulator(from[i]));
  }
}

template <class From, class To>
void convert(int64_t count, const From* from, To* to, cudaStream_t stream) {
  constexpr int64_t kBlock = kThreads * kEach;
  const bool packs = is_aligned<From, kEach>(from) && is_aligned<To, kEach>(to);
  launch("conv convert", convert_kernel<From, To>, dim3(static_cast<unsigned>((count + kBlock - 1) / kBlock)), kThreads,
         0, stream, count, packs, from, to);
}

__global__ void __launch_bounds__(kThreads) add_kernel(int64_t count, const float* part, float* sum) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) sum[i] += part[i];
}

std::size_t bytes_of(int64_t floats) { return (static_cast<std::size_t>(floats) * sizeof(float) + 255) / 256 * 256; }

/// The problem in slices of the batch, all but the last of `samples`, and where its copies lie in the workspace.
struct Slices {
  ConvProblem whole;
  ConvConfig wide;
  int64_t samples, count;
  std::size_t x, y, w, part, bias, scratch;  ///< offsets; part: the weight gradient of one slice
  std::size_t inner;                         ///< bytes of the float32 kernel's workspace

  Slices(const ConvProblem& problem, const ConvConfig& config) : whole(problem), wide(config) {
    wide.dtype = DType::Float32;
    wide.precision = Precision::TF32;
    wide.alignment = 16;  // of the copies
    const int64_t sample = std::max<int64_t>(1, (problem.x_numel() + problem.y_numel()) / problem.batch);
    const int64_t most = std::clamp<int64_t>(kCopies / (sample * int64_t{sizeof(float)}), 1, problem.batch);
    count = (problem.batch + most - 1) / most;
    samples = (problem.batch + count - 1) / count;
    count = (problem.batch + samples - 1) / samples;
    const ConvProblem first = slice(0), last = slice(count - 1);
    const std::size_t x_bytes = bytes_of(first.x_numel()), w_bytes = bytes_of(problem.w_numel());
    x = 0;
    y = x + x_bytes;
    w = y + bytes_of(first.y_numel());
    part = w + w_bytes;
    bias = part + (config.pass == ConvPass::BackwardWeight && count > 1 ? w_bytes : 0);
    scratch = bias + (config.bias ? bytes_of(problem.out_channels) : 0);
    const auto needs = [&](const ConvProblem& p) { return kernel(p).workspace_bytes(p, wide); };
    inner = std::max(needs(first), needs(last));
  }
  ConvProblem slice(int64_t index) const {
    ConvProblem one = whole;
    one.batch = std::min(samples, whole.batch - index * samples);
    return one;
  }
  const Algorithm& kernel(const ConvProblem& p) const { return predicted_algorithm(p, wide); }
  std::size_t bytes() const { return scratch + inner; }
};

bool supports(const ConvProblem& problem, const ConvConfig& config) {
  return is_half(config.dtype) && problem.x_numel() > 0 && problem.y_numel() > 0;
}

std::size_t workspace_bytes(const ConvProblem& problem, const ConvConfig& config) {
  return Slices(problem, config).bytes();
}

/// The float32 kernel's own prediction, and copies at what they reach on an H200.
double predict_ms(const ConvProblem& problem, const ConvConfig& config) {
  constexpr double kLaunchMs = 3e-3, kBytesPerMs = 3.6e9;
  const Slices slices(problem, config);
  const ConvProblem one = slices.slice(0);
  const double copied = problem.bytes(size_of(config.dtype)) + problem.bytes(sizeof(float));
  const auto times = static_cast<double>(slices.count);
  return times * (slices.kernel(one).predict_ms(one, slices.wide) + 3 * kLaunchMs) + copied / kBytesPerMs;
}

template <class T>
void run_as(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  const Slices slices(problem, config);
  auto* const base = static_cast<char*>(operands.workspace);
  const auto floats = [&](std::size_t offset) { return reinterpret_cast<float*>(base + offset); };
  auto *const x = static_cast<T*>(operands.x), *const w = static_cast<T*>(operands.w),
              *const y = static_cast<T*>(operands.y);
  const bool to_weight = config.pass == ConvPass::BackwardWeight;
  Operands wide{
      .x = floats(slices.x), .w = floats(slices.w), .y = floats(slices.y), .workspace = base + slices.scratch};
  if (!to_weight) convert(problem.w_numel(), w, floats(slices.w), stream);
  if (operands.bias != nullptr) {
    convert(problem.out_channels, static_cast<const T*>(operands.bias), floats(slices.bias), stream);
    wide.bias = floats(slices.bias);
  }
  const int64_t x_sample = problem.x_numel() / problem.batch, y_sample = problem.y_numel() / problem.batch;
  for (int64_t i = 0; i < slices.count; ++i) {
    const ConvProblem one = slices.slice(i);
    T *const x_at = x + i * slices.samples * x_sample, *const y_at = y + i * slices.samples * y_sample;
    if (config.pass != ConvPass::BackwardInput) convert(one.x_numel(), x_at, floats(slices.x), stream);
    if (config.pass != ConvPass::Forward) convert(one.y_numel(), y_at, floats(slices.y), stream);
    if (to_weight && i > 0) wide.w = floats(slices.part);
    slices.kernel(one).run(one, slices.wide, wide, stream);
    if (config.pass == ConvPass::Forward) convert(one.y_numel(), floats(slices.y), y_at, stream);
    if (config.pass == ConvPass::BackwardInput) convert(one.x_numel(), floats(slices.x), x_at, stream);
    if (to_weight && i > 0) {
      launch("conv add", add_kernel, dim3(static_cast<unsigned>((problem.w_numel() + kThreads - 1) / kThreads)),
             kThreads, 0, stream, problem.w_numel(), floats(slices.part), floats(slices.w));
    }
  }
  if (to_weight) convert(problem.w_numel(), floats(slices.w), w, stream);
}

void run(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  if (config.dtype == DType::BFloat16) return run_as<BFloat16>(problem, config, operands, stream);
  run_as<Float16>(problem, config, operands, stream);
}

}  // namespace

const Algorithm kWidened{"widened", supports, workspace_bytes, predict_ms, run};

}  // namespace halo::cuda::conv
