// Batches in a random order that a seed and an epoch fix, made ahead of their use.
#pragma once

#include <halo/core/error.h>
#include <halo/core/generator.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <vector>

namespace halo::data {

/// The order in which one epoch visits `size` examples, cut into batches. The order of epoch e depends on (seed, e)
/// alone, so that a training resumed in the middle of an epoch sees what it would have seen. Callable from several
/// threads. @throws ArgumentError for a negative size or epoch, a batch_size below 1, an index that is not below
/// batches().
class BatchOrder {
 public:
  BatchOrder(int64_t size, int64_t batch_size, uint64_t seed, bool drop_last = false);
  int64_t batches() const;
  /// The examples of batch `index` of epoch `epoch`.
  std::vector<int64_t> batch(int64_t epoch, int64_t index) const;

 private:
  using Order = std::shared_ptr<const std::vector<int64_t>>;
  Order order_of(int64_t epoch) const;

  int64_t size_, batch_size_;
  uint64_t seed_;
  bool drop_last_;
  mutable std::mutex mutex_;  // guards the two below: the epoch asked for last
  mutable int64_t epoch_ = -1;
  mutable Order order_;
};

/// Rows `indices` of `source` [N, ...] along dim 0, copied. @throws ArgumentError for an index outside.
Tensor take(const Tensor& source, const std::vector<int64_t>& indices);

/// Batches made on background threads, a few ahead, and handed out in order.
///
/// Batch `step` is whatever `make(step)` returns. As long as that depends on `step` alone (an order from BatchOrder,
/// draws from a Generator begun at the step), a training resumed at a step sees the batches it would have seen.
template <class Batch>
class Loader {
 public:
  /// Makes batches begin, begin + 1, ... end - 1, up to `ahead` of them at a time. `make` is called from several
  /// threads at once, and never after the loader is gone.
  Loader(std::function<Batch(int64_t step)> make, int64_t begin, int64_t end, int ahead = 2)
      : make_(std::move(make)), step_(begin), end_(end) {
    for (int i = 0; i < ahead; ++i) request();
  }

  /// The next batch; waits for it. Rethrows what `make` threw for it.
  /// @throws ArgumentError after the last one.
  Batch next() {
    if (pending_.empty() && step_ < end_) request();
    if (pending_.empty()) fail("Loader: next expected before the last batch, ", end_);
    std::future<Batch> batch = std::move(pending_.front());
    pending_.pop_front();
    request();
    return batch.get();
  }

 private:
  void request() {
    if (step_ < end_)
      pending_.push_back(std::async(std::launch::async, [this, step = step_++] { return make_(step); }));
  }

  std::function<Batch(int64_t)> make_;
  int64_t step_, end_;
  std::deque<std::future<Batch>> pending_;  // destroyed first: each waits for its thread
};

}  // namespace halo::data
