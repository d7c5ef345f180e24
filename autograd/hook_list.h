// The hooks of one tensor. Not installed.
#pragma once

#include <halo/core/hook.h>
#include <halo/core/tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace halo::autograd {

/// Functions in the order they were added.
template <class Function>
class HookList : public std::enable_shared_from_this<HookList<Function>> {
 public:
  HookHandle add(Function function) {
    const std::lock_guard lock(mutex_);
    hooks_.emplace_back(++last_, std::move(function));
    return HookHandle([list = this->weak_from_this(), number = last_] {
      if (const auto alive = list.lock()) alive->remove(number);
    });
  }
  /// A copy: a hook may add and remove hooks.
  std::vector<Function> functions() const {
    const std::lock_guard lock(mutex_);
    std::vector<Function> result;
    for (const auto& [number, function] : hooks_) result.push_back(function);
    return result;
  }

 private:
  void remove(uint64_t number) {
    std::vector<std::pair<uint64_t, Function>> removed;  // let go of after the lock
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(hooks_, number, [](const auto& hook) { return hook.first; });
    if (found == hooks_.end()) return;
    removed.push_back(std::move(*found));
    hooks_.erase(found);
  }

  mutable std::mutex mutex_;
  uint64_t last_ = 0;
  std::vector<std::pair<uint64_t, Function>> hooks_;
};

using GradHooks = HookList<GradHook>;
using AfterHooks = HookList<std::function<void()>>;

}  // namespace halo::autograd
