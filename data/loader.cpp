#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/data/loader.h>

#include <algorithm>
#include <cstring>

namespace halo::data {

BatchOrder::BatchOrder(int64_t size, int64_t batch_size, uint64_t seed, bool drop_last)
    : size_(size), batch_size_(batch_size), seed_(seed), drop_last_(drop_last) {
  if (size < 0 || batch_size < 1) {
    fail("BatchOrder: expected a size of 0 or more and a batch of 1 or more, got ", size, " and ", batch_size);
  }
}

int64_t BatchOrder::batches() const {
  return drop_last_ ? size_ / batch_size_ : size_ / batch_size_ + (size_ % batch_size_ != 0 ? 1 : 0);
}

BatchOrder::Order BatchOrder::order_of(int64_t epoch) const {
  const std::scoped_lock lock(mutex_);
  if (epoch != epoch_) {
    Generator generator;
    generator.set_state({seed_, static_cast<uint64_t>(epoch) << 40});
    order_ = std::make_shared<const std::vector<int64_t>>(randperm(size_, generator).to_vector<int64_t>());
    epoch_ = epoch;
  }
  return order_;
}

std::vector<int64_t> BatchOrder::batch(int64_t epoch, int64_t index) const {
  if (epoch < 0) fail("BatchOrder: epoch expected 0 or more, got ", epoch);
  if (index < 0 || index >= batches()) fail("BatchOrder: batch expected below ", batches(), ", got ", index);
  const Order order = order_of(epoch);
  const auto begin = order->begin() + index * batch_size_;
  return {begin, begin + std::min(batch_size_, size_ - index * batch_size_)};
}

Tensor take(const Tensor& source, const std::vector<int64_t>& indices) {
  if (source.rank() < 1) fail("take: source expected at least one axis, got ", source.describe());
  const Tensor dense = view::dense(source);
  Shape shape = source.shape();
  const int64_t rows = shape[0];
  shape[0] = static_cast<int64_t>(indices.size());
  Tensor result = empty(shape, source.options());
  if (result.numel() == 0) return result;
  const std::size_t bytes = result.nbytes() / indices.size();
  auto* out = static_cast<char*>(result.data());
  for (int64_t index : indices) {
    if (index < 0 || index >= rows) fail("take: indices expected below ", rows, ", got ", index);
    std::memcpy(out, static_cast<const char*>(dense.data()) + static_cast<std::size_t>(index) * bytes, bytes);
    out += bytes;
  }
  return result;
}

}  // namespace halo::data
