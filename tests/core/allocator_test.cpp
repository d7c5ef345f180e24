#include <halo/core/allocator.h>
#include <halo/core/tensor.h>

#include <gtest/gtest.h>

namespace halo {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

Tensor bytes(int64_t count) { return empty({count}, {.dtype = DType::UInt8}); }

TEST(CpuMemory, LargeBlocksAreReusedAndGivenBackOnRequest) {
  Allocator& memory = allocator(Device::cpu());
  bytes(20 * kMiB);  // so that what follows fits beside what is kept
  memory.release_cache();
  EXPECT_EQ(memory.stats().cached_bytes, 0);
  Tensor block = bytes(5 * kMiB + 3);
  const void* const address = block.data<uint8_t>();
  block = Tensor();
  EXPECT_GE(memory.stats().cached_bytes, 5 * kMiB);
  EXPECT_NE(bytes(7 * kMiB).data<uint8_t>(), address);  // of another size
  block = bytes(5 * kMiB + 3);
  EXPECT_EQ(block.data<uint8_t>(), address);
  block = Tensor();
  memory.release_cache();
  EXPECT_EQ(memory.stats().cached_bytes, 0);
}

TEST(CpuMemory, NeverHoldsMoreThanWasLiveAtOnce) {
  Allocator& memory = allocator(Device::cpu());
  memory.release_cache();
  int64_t most = memory.stats().live_bytes;
  for (int64_t i = 1; i < 40; ++i) {
    const Tensor a = bytes(i * kMiB), b = bytes((41 - i) * kMiB);
    most = std::max(most, memory.stats().live_bytes);
    EXPECT_LE(memory.stats().cached_bytes, std::max(memory.stats().peak_bytes, most));
  }
  EXPECT_LE(memory.stats().live_bytes + memory.stats().cached_bytes, std::max(memory.stats().peak_bytes, most) + kMiB);
  memory.release_cache();
}

TEST(CpuMemory, ReusedBlocksArePoisonedToo) {
  const PoisonGuard poison;
  for (int round = 0; round < 2; ++round) {
    Tensor block = bytes(3 * kMiB);
    EXPECT_EQ(block.data<uint8_t>()[3 * kMiB - 1], 0xFF);
    block.data<uint8_t>()[3 * kMiB - 1] = 1;
  }
}

}  // namespace
}  // namespace halo
