// Subnormal numbers (below 1.2e-38 in float32) on the CPU, whose arithmetic with them can be a hundred times slower.
#pragma once

#include <cstdint>

namespace halo {

/// Whether convolutions and matrix products on the CPU take subnormal numbers for 0 (on at start; process-wide). The
/// results differ by less than 1e-37 times the length of a sum. Other operations keep subnormal numbers, and so do
/// GPUs.
bool flush_denormals();
void set_flush_denormals(bool on);

/// Subnormal numbers for a scope, on this thread and in the parallel loops that it starts: taken for 0, or kept. The
/// mode the thread had before comes back. Without effect on processors other than x86-64 and AArch64.
class DenormalGuard {
 public:
  explicit DenormalGuard(bool flush);
  ~DenormalGuard();
  DenormalGuard(const DenormalGuard&) = delete;
  DenormalGuard& operator=(const DenormalGuard&) = delete;

 private:
  uint64_t previous_;
};

}  // namespace halo
