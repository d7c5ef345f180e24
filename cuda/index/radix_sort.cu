#include <bit>

#include "../launch.h"
#include "../runtime/device.h"
#include "radix_sort.h"
#include <cub/device/device_radix_sort.cuh>

namespace halo::cuda {

int bits_below(int64_t bound) {
  return bound <= 1 ? 0 : static_cast<int>(std::bit_width(static_cast<uint64_t>(bound - 1)));
}

SortedPairs radix_sort(const Tensor& keys, const Tensor& values, int bits) {
  const int64_t count = keys.numel();
  if (bits == 0 || count == 0) return {keys, values};
  SortedPairs sorted{empty_like(keys), empty_like(values)};
  const DeviceScope scope(keys.device());
  const auto sort = [&](void* scratch, std::size_t& bytes) {
    check(cub::DeviceRadixSort::SortPairs(scratch, bytes, reinterpret_cast<const uint64_t*>(keys.data<int64_t>()),
                                          reinterpret_cast<uint64_t*>(sorted.keys.data<int64_t>()),
                                          values.data<int64_t>(), sorted.values.data<int64_t>(), count, 0, bits,
                                          scope.stream()),
          "radix sort");
  };
  std::size_t bytes = 0;
  sort(nullptr, bytes);
  const Storage scratch(std::max<std::size_t>(bytes, 1), keys.device());
  sort(scratch.data(), bytes);
  return sorted;
}

}  // namespace halo::cuda
