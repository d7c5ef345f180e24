// HALO_CUDA_ARCH: what it lowers, and what it refuses.
#include "cuda/runtime/traits.h"

#include "tests/testing.h"

namespace halo {
namespace {

using cuda::DeviceTraits;
using cuda::limit_traits;

TEST(DeviceTraits, ALimitTakesTheRoadsOfAnOlderGpu) {
  const DeviceTraits gpu{.major = 9, .minor = 0, .multiprocessors = 78, .block_memory = 227 * 1024};
  EXPECT_TRUE(limit_traits(gpu, nullptr).is_hopper());
  const DeviceTraits limited = limit_traits(gpu, "80");
  EXPECT_FALSE(limited.is_hopper());
  EXPECT_EQ(limited.major * 10 + limited.minor, 80);
  EXPECT_EQ(limited.block_memory, 163u * 1024);
  EXPECT_EQ(limited.multiprocessors, 78);  // as many as there are
  EXPECT_EQ(limit_traits(gpu, "86").block_memory, 99u * 1024);
}

TEST(DeviceTraits, ALimitAboveTheGpuChangesNothing) {
  const DeviceTraits gpu{.major = 8, .minor = 6, .multiprocessors = 84, .block_memory = 99 * 1024};
  for (const char* text : {"86", "90", "120"}) {
    EXPECT_EQ(limit_traits(gpu, text).minor, 6) << text;
    EXPECT_EQ(limit_traits(gpu, text).block_memory, 99u * 1024) << text;
  }
  EXPECT_EQ(limit_traits(gpu, "80").minor, 0);
}

TEST(DeviceTraits, NonsenseIsRefusedByName) {
  for (const char* text : {"", "8", "79", "-80", "80 ", "sm_80", "8.0", "1000", "99999999999999"}) {
    EXPECT_THROW(limit_traits({}, text), ArgumentError) << text;
  }
  const std::string message = testing::message_of([] { limit_traits({}, "8.0"); });
  EXPECT_NE(message.find("HALO_CUDA_ARCH"), std::string::npos) << message;
  EXPECT_NE(message.find("'8.0'"), std::string::npos) << message;
}

}  // namespace
}  // namespace halo
