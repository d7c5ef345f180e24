// Streams, threads and full memory: what goes wrong only when much happens at once.
#include <halo/autograd/node.h>

#include <atomic>
#include <thread>

#include "tests/cuda/gpu_testing.h"

namespace halo {
namespace {

using testing::Gpu;
using testing::leaf;
using testing::same;

constexpr Device kGpu = Device::cuda();

/// A training step of a small net of many kinds of layers: its loss and gradients, the same bits each time.
std::vector<Tensor> training_step(int64_t seed) {
  Generator generator(static_cast<uint64_t>(seed));
  const TensorOptions o{.device = kGpu};
  const Tensor x = randn({64, 3, 65, 63}, o, generator);
  const Tensor w = leaf(randn({16, 3, 5, 5}, o, generator) * 0.1), d = leaf(randn({16, 1, 3, 3}, o, generator));
  const Tensor filter = leaf(randn({16, 256}, o, generator) * 0.1), head = leaf(randn({10, 16}, o, generator));
  Tensor y = local_response_norm(relu(conv2d(x, w, {}, {.stride = 2, .padding = 2})), 3);
  y = max_pool2d(conv2d(y, d, {}, {.padding = 1, .groups = 16}), 2);
  y = batch_norm(y, {}, {}, {}, {}, {.training = true});
  y = dropout(long_conv(y.flatten(2), filter), 0.3, true, generator);
  const Tensor logits = linear(mean(y, {2}), head);
  const Tensor target = randint(0, 10, {64}, {.dtype = int64}, generator).to(kGpu);
  const Tensor loss = cross_entropy(logits, target);
  std::vector<Tensor> results = grad({loss}, {w, d, filter, head});
  results.push_back(loss.detach());
  return results;
}

void expect_same(const std::vector<Tensor>& got, const std::vector<Tensor>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(same(got[i].to(Device::cpu()), expected[i].to(Device::cpu()))) << "result " << i;
  }
}

TEST_F(Gpu, ManyThreadsOnManyStreams) {
  constexpr int kThreads = 8, kRounds = 12;
  std::vector<std::vector<Tensor>> expected;
  for (int seed = 0; seed < 4; ++seed) expected.push_back(training_step(seed));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const Stream stream = t % 2 == 0 ? Stream::create(kGpu) : Stream(kGpu);
      const StreamGuard guard(stream);
      for (int round = 0; round < kRounds; ++round) {
        const auto seed = static_cast<std::size_t>((t + round) % 4);
        expect_same(training_step(static_cast<int64_t>(seed)), expected[seed]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// A chain that hops between streams: each link waits for the one before, and what it read is freed at once.
TEST_F(Gpu, TensorsPassFromStreamToStream) {
  std::vector<Stream> streams;
  for (int i = 0; i < 5; ++i) streams.push_back(Stream::create(kGpu));
  Tensor x = full({1 << 20}, 1, {.device = kGpu});
  Stream before = current_stream(kGpu);
  for (int i = 0; i < 200; ++i) {
    const Stream& stream = streams[static_cast<std::size_t>(i * 7 % 5)];
    stream.wait(before);
    const StreamGuard guard(stream);
    x = x + 1.0;
    const Tensor garbage = randn({1 << 18}, {.device = kGpu});
    before = stream;
  }
  before.synchronize();
  EXPECT_EQ(amin(x).item(), 201);
  EXPECT_EQ(amax(x).item(), 201);
}

/// Takes all of a GPU's memory but a few blocks of 2 MiB.
class Ballast {
 public:
  explicit Ballast(std::size_t free_blocks) {
    for (int64_t bytes = int64_t{16} << 30; bytes >= kBlock; bytes /= 8) {
      try {
        for (;;) blocks_.push_back(empty({bytes}, {.dtype = uint8, .device = kGpu}));
      } catch (const OutOfMemoryError&) {  // that size is used up
      }
    }
    try {
      for (;;) blocks_.push_back(empty({kBlock}, {.dtype = uint8, .device = kGpu}));
    } catch (const OutOfMemoryError&) {
    }
    blocks_.resize(blocks_.size() - std::min(free_blocks, blocks_.size()));
  }

 private:
  static constexpr int64_t kBlock = int64_t{2} << 20;
  std::vector<Tensor> blocks_;
};

/// A step fails wherever the memory happens to end; the next one, with memory again, gives the bits it should, and
/// nothing of the failed one is left.
TEST_F(Gpu, AStepThatRunsOutOfMemoryLeavesTheProcessUsable) {
  const std::vector<Tensor> expected = training_step(1);
  allocator(kGpu).release_cache();
  const int64_t live = allocator(kGpu).stats().live_bytes, nodes = autograd::live_nodes();
  int failures = 0;
  for (std::size_t free_blocks : {0, 1, 2, 4, 8, 12, 16, 24, 32, 64}) {
    {
      const Ballast ballast(free_blocks);
      try {
        expect_same(training_step(1), expected);
      } catch (const OutOfMemoryError&) {
        ++failures;
      }
    }
    EXPECT_EQ(allocator(kGpu).stats().live_bytes, live) << free_blocks;
    EXPECT_EQ(autograd::live_nodes(), nodes) << free_blocks;
    expect_same(training_step(1), expected);
  }
  EXPECT_GT(failures, 0);
}

TEST_F(Gpu, AThreadThatRunsOutOfMemoryDoesNotHurtTheOthers) {
  const std::vector<Tensor> expected = training_step(2);
  std::atomic<bool> stop{false};
  std::thread greedy([&] {
    const Stream stream = Stream::create(kGpu);
    const StreamGuard guard(stream);
    while (!stop) EXPECT_THROW(empty({int64_t{1} << 50}, {.dtype = uint8, .device = kGpu}), OutOfMemoryError);
  });
  for (int round = 0; round < 10; ++round) expect_same(training_step(2), expected);
  stop = true;
  greedy.join();
}

}  // namespace
}  // namespace halo
