#include <halo/core/precision.h>

#include <atomic>

namespace halo {
namespace {
constexpr int kNone = -1;
std::atomic<Precision> process_default{Precision::Float32};
thread_local int thread_override = kNone;
}  // namespace

const char* name(Precision precision) { return precision == Precision::TF32 ? "tf32" : "fp32"; }

Precision precision() {
  return thread_override == kNone ? process_default.load(std::memory_order_relaxed)
                                  : static_cast<Precision>(thread_override);
}

void set_precision(Precision precision) { process_default.store(precision, std::memory_order_relaxed); }

PrecisionGuard::PrecisionGuard(Precision precision) : previous_(thread_override) {
  thread_override = static_cast<int>(precision);
}
PrecisionGuard::~PrecisionGuard() { thread_override = previous_; }

}  // namespace halo
