#include <halo/core/denormals.h>
#include <halo/core/float_mode.h>

#include <atomic>

namespace halo {
namespace {
std::atomic<bool> process_default{true};
}

bool flush_denormals() { return process_default.load(std::memory_order_relaxed); }
void set_flush_denormals(bool on) { process_default.store(on, std::memory_order_relaxed); }

DenormalGuard::DenormalGuard(bool flush) : previous_(float_mode()) {
  set_float_mode(flush ? previous_ | kFlushBits : previous_ & ~kFlushBits);
}
DenormalGuard::~DenormalGuard() { set_float_mode(previous_); }

}  // namespace halo
