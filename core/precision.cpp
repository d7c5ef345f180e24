#include <halo/core/precision.h>
#include <halo/core/thread_modes.h>

#include <atomic>

namespace halo {
namespace {
std::atomic<Precision> process_default{Precision::Float32};
}  // namespace

const char* name(Precision precision) { return precision == Precision::TF32 ? "tf32" : "fp32"; }

Precision precision() {
  const int guarded = thread_modes().precision;
  return guarded < 0 ? process_default.load(std::memory_order_relaxed) : static_cast<Precision>(guarded);
}

void set_precision(Precision precision) { process_default.store(precision, std::memory_order_relaxed); }

PrecisionGuard::PrecisionGuard(Precision precision) : previous_(thread_modes().precision) {
  thread_modes().precision = static_cast<int>(precision);
}
PrecisionGuard::~PrecisionGuard() { thread_modes().precision = previous_; }

}  // namespace halo
