// What a convolution kernel offers the dispatcher: one Algorithm a kernel file, listed in dispatch.cpp.
#pragma once

#include <halo/core/dtype.h>
#include <halo/core/precision.h>
#include <halo/ops/activation.h>
#include <halo/ops/conv_problem.h>

#include <cstddef>

#include <cuda_runtime.h>

namespace halo::cuda::conv {

/// Everything beside the sizes that decides which kernel runs. Caches are keyed on this and the problem, whole.
struct ConvConfig {
  ConvPass pass = ConvPass::Forward;
  DType dtype = DType::Float32;  ///< storage; half types and float32 accumulate in float32, float64 in float64
  Precision precision = Precision::Float32;
  bool bias = false;        ///< forward only
  Activation activation{};  ///< forward only: y = activation(conv + bias)
  int alignment = 4;        ///< bytes: the largest power of two up to 16 that divides every operand's address
  bool operator==(const ConvConfig&) const = default;
};

/// Device pointers, dense NCDHW. Forward reads x, w, bias and writes y; BackwardInput reads y (the upstream gradient)
/// and w and writes x; BackwardWeight reads x and y and writes w. Every element of the result is written.
struct Operands {
  void* x = nullptr;
  void* w = nullptr;
  void* y = nullptr;
  const void* bias = nullptr;
  void* workspace = nullptr;       ///< workspace_bytes(...) bytes, 256-byte aligned
  const void* prepared = nullptr;  ///< what Algorithm::prepare made of w, if the caller has kept it
};

/// One kernel family. `supports` states its limits; dispatch asks it first.
struct Algorithm {
  const char* name;
  bool (*supports)(const ConvProblem&, const ConvConfig&);
  /// Bytes of scratch `run` needs; never above kWorkspaceCap, but for the copies of widened.cu.
  std::size_t (*workspace_bytes)(const ConvProblem&, const ConvConfig&);
  /// Cost model: expected milliseconds on the current device.
  double (*predict_ms)(const ConvProblem&, const ConvConfig&);
  void (*run)(const ConvProblem&, const ConvConfig&, const Operands&, cudaStream_t);
  /// Where weights are laid out anew for each run: lays them out for many, in prepared_bytes(...) bytes. Else null.
  std::size_t (*prepared_bytes)(const ConvProblem&, const ConvConfig&) = nullptr;
  void (*prepare)(const ConvProblem&, const ConvConfig&, const void* w, void* prepared, cudaStream_t) = nullptr;
};

inline constexpr std::size_t kWorkspaceCap = std::size_t{256} << 20;

}  // namespace halo::cuda::conv
