#include <halo/autograd/grad_mode.h>

#include <atomic>

namespace halo {
namespace {
constexpr int kNone = -1;
std::atomic<bool> process_default{true};
std::atomic<bool> anomaly{false};
thread_local int thread_override = kNone;
}  // namespace

bool grad_enabled() { return thread_override == kNone ? process_default.load() : thread_override == 1; }
void set_grad_enabled(bool on) { process_default = on; }

GradGuard::GradGuard(bool on) : previous_(thread_override) { thread_override = on ? 1 : 0; }
GradGuard::~GradGuard() { thread_override = previous_; }

void set_detect_anomaly(bool on) { anomaly = on; }
bool detect_anomaly() { return anomaly; }

}  // namespace halo
