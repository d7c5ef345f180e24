#include <halo/autograd/grad_mode.h>
#include <halo/core/thread_modes.h>

#include <atomic>

namespace halo {
namespace {
std::atomic<bool> process_default{true};
std::atomic<bool> anomaly{false};
}  // namespace

bool grad_enabled() {
  const int guarded = thread_modes().grad;
  return guarded < 0 ? process_default.load() : guarded == 1;
}
void set_grad_enabled(bool on) { process_default = on; }

GradGuard::GradGuard(bool on) : previous_(thread_modes().grad) { thread_modes().grad = on ? 1 : 0; }
GradGuard::~GradGuard() { thread_modes().grad = previous_; }

void set_detect_anomaly(bool on) { anomaly = on; }
bool detect_anomaly() { return anomaly; }

}  // namespace halo
