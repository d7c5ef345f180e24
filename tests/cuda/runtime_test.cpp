// Devices, memory, streams and graphs.
#include <halo/cuda/graph.h>

#include <chrono>
#include <thread>

#include "tests/cuda/gpu_testing.h"

namespace halo {
namespace {

using testing::Gpu;
using testing::message_of;
using testing::near;
using testing::same;

TEST(Cuda, WithoutAGpuItSaysWhy) {
  if (cuda::device_count() > 0) GTEST_SKIP() << "there is a GPU: " << cuda::describe(0);
  EXPECT_NE(cuda::describe(0).find("no GPU"), std::string::npos);
  EXPECT_EQ(Device::best(), Device::cpu());
  const std::string message = message_of<DeviceError>([] { zeros({2}, {.device = Device::cuda()}); });
  EXPECT_NE(message.find("CUDA"), std::string::npos) << message;
  EXPECT_NEAR(ones({2}).sum().item(), 2, 0);  // the CPU goes on
}

TEST_F(Gpu, AnAbsentGpuIsNamed) {
  const std::string message = message_of<DeviceError>([] { zeros({2}, {.device = Device::cuda(99)}); });
  EXPECT_NE(message.find("99"), std::string::npos) << message;
}

TEST_F(Gpu, BytesGoThereAndBack) {
  const Tensor x = randn({3, 5, 7});
  EXPECT_TRUE(same(x.to(Device::cuda()).to(Device::cpu()), x));
  EXPECT_TRUE(same(x.transpose(0, 2).to(Device::cuda()).to(Device::cpu()), x.transpose(0, 2)));
  EXPECT_TRUE(same(x.to(Device::cuda()).transpose(0, 2).to(Device::cpu()), x.transpose(0, 2)));
  EXPECT_EQ(zeros({0, 3}, {.device = Device::cuda()}).to(Device::cpu()).numel(), 0);
}

TEST_F(Gpu, MemoryIsCountedAndReused) {
  Allocator& memory = allocator(Device::cuda());
  const MemoryStats before = memory.stats();
  void* address = nullptr;
  {
    const Tensor x = empty({1 << 20}, {.device = Device::cuda()});
    address = x.data();
    EXPECT_EQ(memory.stats().live_bytes - before.live_bytes, 4 << 20);
  }
  EXPECT_EQ(memory.stats().live_bytes, before.live_bytes);
  EXPECT_GE(memory.stats().cached_bytes, 4 << 20);
  EXPECT_EQ(empty({1 << 20}, {.device = Device::cuda()}).data(), address);
  memory.release_cache();
  EXPECT_LT(memory.stats().cached_bytes, 4 << 20);
}

TEST_F(Gpu, IsDescribed) {
  const DeviceProperties gpu = device_properties(Device::cuda());
  EXPECT_EQ(gpu.name, cuda::describe(0));
  EXPECT_GE(gpu.major, 8);
  EXPECT_GT(gpu.multi_processor_count, 0);
  EXPECT_GT(gpu.free_memory, 0);
  EXPECT_GE(gpu.total_memory, gpu.free_memory);
  message_of<DeviceError>([] { device_properties(Device::cuda(99)); });
  message_of<DeviceError>([] { DeviceGuard guard(Device::cuda(99)); });
  const DeviceGuard guard(Device::cuda(device_count() - 1));
  const ProfilerRange range("halo");
  EXPECT_EQ(ones({3}, {.device = Device::cuda()}).sum().item(), 3);  // Halo's functions do not look at it
}

TEST_F(Gpu, MemoryLimit) {
  const Device gpu = Device::cuda();
  constexpr int64_t kMiB = int64_t{1} << 20;
  empty_cache(gpu);
  const MemoryStats start = memory_statistics(gpu);
  set_memory_limit(gpu, start.live_bytes + start.cached_bytes + 100 * kMiB);
  const auto bytes = [&](int64_t mib) { return empty({mib * kMiB}, {.dtype = uint8, .device = gpu}); };
  const std::string text = message_of<OutOfMemoryError>([&] { bytes(120); });
  EXPECT_NE(text.find("limit"), std::string::npos) << text;
  { const Tensor fits = bytes(60); }
  { const Tensor fits = bytes(90); }  // the 60 in the cache make room
  EXPECT_EQ(memory_limit(gpu), memory_statistics(gpu).limit_bytes);
  set_memory_limit(gpu, 0);
  { const Tensor fits = bytes(120); }
  reset_peak_memory(gpu);
  EXPECT_EQ(memory_statistics(gpu).peak_bytes, memory_statistics(gpu).live_bytes);
}

TEST_F(Gpu, EventsWaitAndTakeTheTime) {
  const Device gpu = Device::cuda();
  const Stream side = Stream::create(gpu);
  const Tensor a = randn({2048, 2048}, {.device = gpu});
  Event start(gpu), end(gpu), ready(gpu);
  EXPECT_TRUE(start.query());
  ready.record();
  ready.wait(side);
  Tensor b = a;
  {
    const StreamGuard guard(side);
    start.record();
    for (int i = 0; i < 50; ++i) b = matmul(b, a) * 0.01;
    end.record();
  }
  EXPECT_GT(start.elapsed_time(end), 0);
  EXPECT_TRUE(end.query());
  EXPECT_TRUE(side.query());
  end.wait();
  EXPECT_EQ(b.to(Device::cpu()).shape(), a.shape());
  message_of([&] { (void)start.elapsed_time(Event(gpu)); });
  message_of([&] { (void)start.elapsed_time(Event(Device::cpu())); });
}

/// Backward runs each operation on the stream of its forward, and what is not in order there waits.
TEST_F(Gpu, BackwardCrossesStreams) {
  const Device gpu = Device::cuda();
  const Stream side = Stream::create(gpu);
  const Tensor values = randn({1024, 1024}, {.device = gpu});
  const auto gradient = [&](bool two_streams) {
    const Tensor x = testing::leaf(values);
    Tensor y = x * 0.5;
    {
      std::optional<StreamGuard> guard;
      if (two_streams) guard.emplace(side);
      if (two_streams) side.wait(Stream(gpu));
      for (int i = 0; i < 20; ++i) y = matmul(y, values) * 0.03;
    }
    if (two_streams) Stream(gpu).wait(side);
    (y * x).sum().backward();
    return x.grad().to(Device::cpu());
  };
  const Tensor expected = gradient(false);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(same(gradient(true), expected));
}

TEST_F(Gpu, CheckpointsGiveTheSameBitsForLessMemory) {
  const Device gpu = Device::cuda();
  std::vector<std::vector<Tensor>> results;
  std::vector<int64_t> kept;
  for (bool checkpoint : {false, true}) {
    manual_seed(3);
    models::HyenaLM model(
        {.mixer = {.d_model = 64, .l_max = 512, .dropout = 0.1}, .n_layer = 6, .checkpoint = checkpoint});
    optim::AdamW optimizer(model.parameters());  // made before the move
    model.to(gpu);
    const Tensor ids = randint(0, 12, {4, 512}).to(gpu);
    const int64_t before = memory_statistics(gpu).live_bytes;
    const Tensor loss = cross_entropy(model(ids).flatten(0, 1), ids.flatten());
    kept.push_back(memory_statistics(gpu).live_bytes - before);
    loss.backward();
    optimizer.step();
    results.push_back({loss.detach().to(Device::cpu())});
    for (const Tensor& p : model.parameters()) results.back().push_back(p.detach().to(Device::cpu()));
  }
  for (std::size_t i = 0; i < results[0].size(); ++i) EXPECT_TRUE(same(results[1][i], results[0][i])) << i;
  EXPECT_LT(kept[1], kept[0] / 2);
}

TEST_F(Gpu, NewMemoryIsPoisoned) {
  const auto values = empty({1001}, {.device = Device::cuda()}).to_vector<float>();
  for (float v : values) ASSERT_TRUE(std::isnan(v));
}

TEST_F(Gpu, OutOfMemoryIsAnErrorOneCanGoOnFrom) {
  const std::string message =
      message_of<OutOfMemoryError>([] { empty({int64_t{1} << 50}, {.dtype = uint8, .device = Device::cuda()}); });
  EXPECT_NE(message.find(std::to_string(int64_t{1} << 50)), std::string::npos) << message;
  EXPECT_EQ(ones({3}, {.device = Device::cuda()}).sum().item(), 3);
}

/// A block freed while another stream reads it must not be handed out: the copy on the side stream would see the ones.
TEST_F(Gpu, AFreedBlockWaitsForOtherStreams) {
  constexpr int64_t kNumel = int64_t{1} << 26;
  const Stream side = Stream::create(Device::cuda());
  Tensor x = full({kNumel}, 3, {.device = Device::cuda()});
  const Tensor y = empty({kNumel}, {.device = Device::cuda()}), slow = randn({4096, 4096}, {.device = Device::cuda()});
  side.wait(current_stream(Device::cuda()));
  {
    const StreamGuard guard(side);
    Tensor busy = slow;
    for (int i = 0; i < 20; ++i) busy = matmul(busy, slow);
    y.copy_(x);
  }
  x = Tensor();
  const Tensor reuse = full({kNumel}, 1, {.device = Device::cuda()});
  side.synchronize();
  EXPECT_EQ(y.sum().item(), 3.0 * kNumel);
  EXPECT_EQ(reuse.sum().item(), 1.0 * kNumel);
}

/// The same while another thread destroys the side stream, which waits for what is queued there.
TEST_F(Gpu, AFreedBlockWaitsForAStreamThatEnds) {
  constexpr int64_t kNumel = int64_t{1} << 26;
  std::optional<Stream> side = Stream::create(Device::cuda());
  Tensor x = full({kNumel}, 3, {.device = Device::cuda()});
  const Tensor y = empty({kNumel}, {.device = Device::cuda()}), slow = randn({4096, 4096}, {.device = Device::cuda()});
  side->wait(current_stream(Device::cuda()));
  {
    const StreamGuard guard(*side);
    Tensor busy = slow;
    for (int i = 0; i < 20; ++i) busy = matmul(busy, slow);
    y.copy_(x);
  }
  std::thread end([&] { side.reset(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));  // it has begun; the products take ten times as long
  x = Tensor();
  const Tensor reuse = full({kNumel}, 1, {.device = Device::cuda()});
  end.join();
  EXPECT_EQ(y.sum().item(), 3.0 * kNumel);
  EXPECT_EQ(reuse.sum().item(), 1.0 * kNumel);
}

TEST_F(Gpu, ThreadsAndStreamsGiveTheSameBits) {
  const Tensor x = randn({257, 129}, {.device = Device::cuda()}), w = randn({129, 65}, {.device = Device::cuda()});
  const Tensor expected = exp(matmul(x, w) * 0.1).sum();
  synchronize(Device::cuda());
  std::vector<Tensor> results(4);
  std::vector<std::thread> threads;
  for (Tensor& result : results) {
    threads.emplace_back([&] {
      const Stream stream = Stream::create(Device::cuda());
      const StreamGuard guard(stream);
      for (int i = 0; i < 20; ++i) result = exp(matmul(x, w) * 0.1).sum();
      stream.synchronize();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Tensor& result : results) EXPECT_TRUE(same(result.to(Device::cpu()), expected.to(Device::cpu())));
}

TEST_F(Gpu, AGraphReplays) {
  const Device gpu = Device::cuda();
  const Tensor x = randn({31, 17}, {.device = gpu}), w = randn({17, 13}, {.device = gpu});
  const auto body = [&] { return log(exp(matmul(x, w)) + 1.0).sum(); };
  body();
  Tensor result;
  const cuda::Graph graph = cuda::Graph::capture(gpu, [&] { result = body(); });
  for (int i = 0; i < 3; ++i) {
    x.copy_(randn({31, 17}, {.device = gpu}));
    graph.replay();
    const Tensor noise = randn({100, 100}, {.device = gpu});  // must not land on the graph's memory
    EXPECT_TRUE(same(result.to(Device::cpu()), body().to(Device::cpu())));
  }
}

TEST_F(Gpu, AGraphHoldsATrainingStep) {
  const Device gpu = Device::cuda();
  const Tensor x = randn({2, 3, 9, 7}, {.device = gpu});
  const Tensor w = randn({5, 3, 3, 3}, {.device = gpu}).requires_grad_();
  const auto step = [&] {
    w.set_grad(Tensor());
    relu(conv2d(x, w)).sum().backward();
    return w.grad();
  };
  const Tensor expected = step().clone();
  Tensor gradient;
  const cuda::Graph graph = cuda::Graph::capture(gpu, [&] { gradient = step(); });
  graph.replay();
  EXPECT_TRUE(same(gradient.to(Device::cpu()), expected.to(Device::cpu())));
}

TEST_F(Gpu, WaitingWhileRecordingIsAnError) {
  const Device gpu = Device::cuda();
  const Tensor x = ones({3}, {.device = gpu});
  EXPECT_THROW(cuda::Graph::capture(gpu, [&] { x.sum().item(); }), Error);
  EXPECT_EQ(x.sum().item(), 3);  // and all goes on
}

TEST_F(Gpu, CopyingFromTheHostWhileRecordingIsAnError) {
  const Device gpu = Device::cuda();
  const Tensor x = ones({3});
  Tensor there;
  EXPECT_THROW(cuda::Graph::capture(gpu, [&] { there = x.to(gpu); }), DeviceError);
  EXPECT_EQ(x.to(gpu).sum().item(), 3);
}

}  // namespace
}  // namespace halo
