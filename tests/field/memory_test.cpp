// Field cases of device memory, several devices, and the life of a process.
#include <fstream>
#include <thread>

#include "field_testing.h"

namespace halo {
namespace {

using namespace testing;

using FieldMemory = Field;
INSTANTIATE_TEST_SUITE_P(Devices, FieldMemory, both_devices(), device_name);

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * 4096;
}

// Case 43. One cached plan a shape, practically without limit: inference on varying lengths grew by gigabytes.
TEST_P(FieldMemory, ChangingShapesDoNotGrow) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer keeps memory of its own";
#endif
  const NoGradGuard guard;
  const Tensor w = randn({16, 16, 5}, options());
  const auto pass = [&](int64_t step) {
    for (int64_t length = 100; length < 2100; length += step) {
      const Tensor x = ones({1, 16, length}, options());
      conv1d(x, w);
      if (length % 9 == 0) long_conv(x, ones({16, length}, options()));
      if (length % 9 == 1) matmul(x, x.transpose(1, 2));
    }
    synchronize(device());
  };
  const auto taken = [&] {
    const MemoryStats stats = allocator(device()).stats();
    return resident_bytes() + stats.cached_bytes;
  };
  pass(50);
  const int64_t before = taken();
  pass(1);
  const int64_t first = taken();
  pass(1);
  EXPECT_LT(first - before, int64_t{50} << 20);
  EXPECT_LT(taken() - first, int64_t{5} << 20);
}

// A step that does not fit leaves the process usable, and nothing is lost.
TEST_P(FieldMemory, OutOfMemoryIsRecoverable) {
  const int64_t live = allocator(device()).stats().live_bytes;
  const Tensor x = leaf(ones({4, 4}, options()));
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(mentions(message_of<OutOfMemoryError>([&] { empty({int64_t{1} << 50}, options()); }), {"bytes"}));
    EXPECT_THROW(x.reshape({4, 4, 1}).expand({4, 4, int64_t{1} << 48}).contiguous(), OutOfMemoryError);
    (x * x).sum().backward();
    EXPECT_TRUE(all_equal(x.grad(), 2));
    x.set_grad(Tensor());
  }
  EXPECT_EQ(allocator(device()).stats().live_bytes, live + static_cast<int64_t>(x.nbytes()));
}

// Case 40. Kernels launched on the wrong device where the tensors are on another than the current one.
TEST(FieldDevices, TheSecondGpuGivesTheBitsOfTheFirst) {
  if (cuda::device_count() < 2) GTEST_SKIP() << "needs two GPUs";
  const auto step = [](Device device) {
    Generator generator(5);
    const TensorOptions o{.device = device};
    const Tensor x = randn({4, 3, 17, 17}, o, generator), w = leaf(randn({8, 3, 3, 3}, o, generator));
    Tensor y = max_pool2d(relu(conv2d(x, w)), 2);
    y = dropout(batch_norm(y, {}, {}, {}, {}, {.training = true}), 0.5, true, generator);
    y = long_conv(y.flatten(2), ones({8, 49}, o));
    y.sum().backward();
    optim::AdamW optimizer(std::vector<Tensor>{w}, {.lr = 0.1});
    optimizer.step();
    return std::pair(w.detach().to(Device::cpu()), y.detach().to(Device::cpu()));
  };
  const auto first = step(Device::cuda(0)), second = step(Device::cuda(1));
  EXPECT_TRUE(same(second.first, first.first));
  EXPECT_TRUE(same(second.second, first.second));
  EXPECT_TRUE(
      mentions(message_of([] {
                 conv1d(ones({1, 1, 3}, {.device = Device::cuda(0)}), ones({1, 1, 1}, {.device = Device::cuda(1)}));
               }),
               {"cuda:0", "cuda:1"}));
}

// Case 79. A machine without a GPU or driver: CPU work as ever, and one plain sentence for who asks for a GPU.
TEST(FieldDevices, AskingForAGpuThatIsNotThere) {
  const int count = cuda::device_count();
  const std::string text = message_of<DeviceError>([&] { zeros({1}, {.device = Device::cuda(count)}); });
  EXPECT_GT(text.size(), 20u);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_EQ(Device::best().is_cuda(), count > 0);
  EXPECT_EQ((ones({2}) + 1.0).sum().item(), 4);
  EXPECT_THROW(Device::parse("gpu"), ArgumentError);
}

}  // namespace
}  // namespace halo
