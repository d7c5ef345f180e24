// What the public device interface does on the CPU, and says where there is no GPU.
#include <functional>
#include <string>

#include "tests/testing.h"

namespace halo {
namespace {

using testing::message_of;

TEST(Device, TheCpuIsDescribed) {
  const DeviceProperties cpu = device_properties(Device::cpu());
  EXPECT_EQ(cpu.name, "CPU");
  EXPECT_GT(cpu.total_memory, 0);
  EXPECT_GE(cpu.total_memory, cpu.free_memory);
  EXPECT_GE(device_count(), 0);
}

TEST(Device, WithoutAGpuEachSaysWhyInOneSentence) {
  if (device_count() > 0) GTEST_SKIP() << "there is a GPU: " << device_properties(Device::cuda()).name;
  const Device gpu = Device::cuda();
  const std::function<void()> calls[] = {
      [&] { device_properties(gpu); }, [&] { DeviceGuard guard(gpu); },    [&] { Event event(gpu); },
      [&] { Stream::create(gpu); },    [&] { (void)Stream(gpu).query(); }, [&] { memory_statistics(gpu); },
      [&] { reset_peak_memory(gpu); }, [&] { empty_cache(gpu); },          [&] { set_memory_limit(gpu, 1 << 20); },
      [&] { memory_limit(gpu); },      [&] { synchronize(gpu); }};
  for (const auto& call : calls) {
    const std::string text = message_of<DeviceError>(call);
    EXPECT_EQ(text.find("CUDA: "), 0U) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    EXPECT_NE(text.find("use the CPU"), std::string::npos) << text;
  }
  EXPECT_EQ(Event().device(), Device::cpu());
  const DeviceGuard guard(Device::cpu());
  const ProfilerRange range("nothing"), inner(std::string("listens"));
}

TEST(Event, TakesTheTimeOnTheCpu) {
  Event start(Device::cpu()), end(Device::cpu());
  EXPECT_TRUE(start.query());
  EXPECT_NE(message_of([&] { (void)start.elapsed_time(end); }).find("recorded"), std::string::npos);
  start.record();
  end.record();
  start.wait();
  end.synchronize();
  EXPECT_GE(start.elapsed_time(end), 0);
  EXPECT_LE(end.elapsed_time(start), 0);
  EXPECT_TRUE(Stream(Device::cpu()).query());
  EXPECT_NE(
      message_of([&] { start.record(Stream(Device::cuda())); }).find("expected the event's device, cpu, got cuda:0"),
      std::string::npos);
}

TEST(Memory, LimitOfTheCpu) {
  const Device cpu = Device::cpu();
  EXPECT_EQ(memory_limit(cpu), 0);
  empty_cache(cpu);
  constexpr int64_t kMiB = int64_t{1} << 20;
  Tensor block = empty({20 * kMiB}, {.dtype = uint8});
  block = Tensor();  // now in the cache
  set_memory_limit(cpu, memory_statistics(cpu).live_bytes + 24 * kMiB);
  const std::string text = message_of<OutOfMemoryError>([&] { empty({30 * kMiB}, {.dtype = uint8}); });
  EXPECT_NE(text.find("limit"), std::string::npos) << text;
  block = empty({23 * kMiB}, {.dtype = uint8});  // what was cached makes room
  EXPECT_THROW(empty({2 * kMiB}, {.dtype = uint8}), OutOfMemoryError);
  block = Tensor();
  empty({2 * kMiB}, {.dtype = uint8});
  set_memory_limit(cpu, 0);
  block = empty({30 * kMiB}, {.dtype = uint8});
  reset_peak_memory(cpu);
  const MemoryStats now = memory_statistics(cpu);
  EXPECT_EQ(now.peak_bytes, now.live_bytes);
  block = Tensor();
  empty_cache(cpu);
  EXPECT_EQ(memory_statistics(cpu).cached_bytes, 0);
  EXPECT_THROW(set_memory_limit(cpu, -1), ArgumentError);
}

}  // namespace
}  // namespace halo
