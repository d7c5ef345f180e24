// Batches in a random order that a seed and an epoch fix.
#pragma once

#include <halo/core/generator.h>

#include <cstdint>
#include <vector>

namespace halo::data {

/// The order in which one epoch visits `size` examples, cut into batches. The order of epoch e depends on (seed, e)
/// alone, so that a training resumed in the middle of an epoch sees what it would have seen.
class BatchOrder {
 public:
  BatchOrder(int64_t size, int64_t batch_size, uint64_t seed, bool drop_last = false);
  int64_t batches() const;
  /// The examples of batch `index` of epoch `epoch`.
  std::vector<int64_t> batch(int64_t epoch, int64_t index);

 private:
  int64_t size_, batch_size_;
  uint64_t seed_;
  bool drop_last_;
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;
};

/// Rows `indices` of `source` along dim 0, copied.
Tensor take(const Tensor& source, const std::vector<int64_t>& indices);

}  // namespace halo::data
