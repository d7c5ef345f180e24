// Plans already made: planning takes microseconds to milliseconds, is asked for several times a call, and its answer
// never changes.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace halo::cuda {

/// At most kMost plans by key; when there are as many, all are dropped, as a program that has so many different ones
/// goes on to others. Any number of threads. `Hash` may leave fields of a key out, operator== none.
template <class Key, class Plan, class Hash>
class PlanCache {
 public:
  static constexpr std::size_t kMost = 4096;

  /// The plan for `key`: the one kept, else what make(key) gives. A plan lives as long as somebody holds it, dropped or
  /// not. No thread waits while another plans; of two that make the same plan, the first one's is kept. A plan that
  /// keep(plan) denies is not kept.
  template <class Make>
  std::shared_ptr<const Plan> get(const Key& key, const Make& make, bool (*keep)(const Plan&) = nullptr) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
    }
    auto plan = std::make_shared<const Plan>(make(key));
    if (keep != nullptr && !keep(*plan)) return plan;
    const std::lock_guard lock(mutex_);
    if (plans_.size() >= kMost) plans_.clear();
    return plans_.emplace(key, std::move(plan)).first->second;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<const Plan>, Hash> plans_;
};

}  // namespace halo::cuda
