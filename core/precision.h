// Precision of float32 matrix arithmetic on the GPU.
#pragma once

#include <halo/core/error.h>

#include <cstdint>

namespace halo {

/// `Float32`: results as accurate as float32 arithmetic (see docs/precision.md). `TF32`: operands rounded to ten
/// mantissa bits, relative error near 3e-4, faster. Other dtypes and the CPU ignore it.
enum class Precision : uint8_t { Float32, TF32 };

const char* name(Precision precision);

/// The precision in force on this thread: the innermost guard's, else the process-wide default.
Precision precision();
/// Sets the process-wide default (Float32 at start).
void set_precision(Precision precision);

/// Precision for a scope, on this thread alone.
class PrecisionGuard {
 public:
  explicit PrecisionGuard(Precision precision);
  ~PrecisionGuard();
  PrecisionGuard(const PrecisionGuard&) = delete;
  PrecisionGuard& operator=(const PrecisionGuard&) = delete;

 private:
  int previous_;
};

}  // namespace halo
