// Hooks: functions of the user's that autograd calls on its way.
#pragma once

#include <functional>
#include <utility>

namespace halo {

/// Takes a hook away again. A handle that is dropped leaves its hook in place.
class HookHandle {
 public:
  HookHandle() = default;
  explicit HookHandle(std::function<void()> remove) : remove_(std::move(remove)) {}
  /// The hook is not called from now on. Does nothing the second time, or once the tensor is gone.
  void remove() {
    if (const auto f = std::exchange(remove_, nullptr)) f();
  }

 private:
  std::function<void()> remove_;
};

}  // namespace halo
