// Whether operations record themselves for a later backward.
#pragma once

namespace halo {

/// Whether this thread records: the innermost guard's word, else the process-wide default (on).
bool grad_enabled();
/// Sets the process-wide default.
void set_grad_enabled(bool on);

/// Recording on or off for a scope, on this thread and in the parallel loops that it starts.
class GradGuard {
 public:
  explicit GradGuard(bool on);
  ~GradGuard();
  GradGuard(const GradGuard&) = delete;
  GradGuard& operator=(const GradGuard&) = delete;

 private:
  int previous_;
};

/// For inference and optimisers: nothing inside records.
class NoGradGuard : public GradGuard {
 public:
  NoGradGuard() : GradGuard(false) {}
};

/// While on, every backward checks what it produced and names the first operation that made a NaN (ArgumentError).
void set_detect_anomaly(bool on);
bool detect_anomaly();

}  // namespace halo
