// What inference keeps of its weights: the same bits, never out of date, gone with the weight.
#include <halo/cuda/graph.h>
#include <halo/io/dlpack.h>
#include <halo/nn/models/hyena.h>

#include <thread>

#include "tests/cuda/gpu_testing.h"

namespace halo {
namespace {

using testing::same;

/// Convolutions with a weight that inference keeps laid out, on GPUs whose kernels want it so.
class KeptGpu : public testing::Gpu {
 protected:
  static constexpr int64_t kChannels = 64;
  const Device gpu_ = Device::cuda();

  Tensor images(int64_t batch) const { return randn({batch, kChannels, 29, 31}, {.device = gpu_}); }
  Tensor weight() const { return randn({kChannels, kChannels, 3, 3}, {.device = gpu_}).requires_grad_(); }
  /// What a weight nobody keeps gives.
  static Tensor expected(const Tensor& x, const Tensor& w) {
    const NoGradGuard guard;
    return conv2d(x, w.detach(), {}, {.padding = 1}).to(Device::cpu());
  }
  static Tensor inferred(const Tensor& x, const Tensor& w) {
    const NoGradGuard guard;
    return conv2d(x, w, {}, {.padding = 1});
  }
  int64_t live() const { return allocator(gpu_).stats().live_bytes; }
  int64_t allocations() const { return allocator(gpu_).stats().allocations; }
  /// Bytes that inference with `w` begins to keep.
  int64_t kept_by(const Tensor& x, const Tensor& w) const {
    const int64_t before = live();
    inferred(x, w);
    return live() - before;
  }
};

constexpr const char* kNothingKept = "this GPU's kernels take weights as they are";

TEST_F(KeptGpu, GivesTheSameBits) {
  const Tensor x = images(2), w = weight();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(same(inferred(x, w).to(Device::cpu()), expected(x, w)));
  const NoGradGuard guard;
  const Tensor back = conv_transpose2d(x, w.detach(), {}, {.stride = 2}).to(Device::cpu());
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(same(conv_transpose2d(x, w, {}, {.stride = 2}).to(Device::cpu()), back));
  }
}

TEST_F(KeptGpu, SeesChanges) {
  const Tensor x = images(1), w = weight();
  const Tensor before = inferred(x, w).to(Device::cpu());
  {
    const NoGradGuard guard;
    w.mul_(2);
  }
  const Tensor twice = inferred(x, w).to(Device::cpu());
  EXPECT_TRUE(same(twice, expected(x, w)));
  EXPECT_FALSE(same(twice, before));
  optim::SGD optimizer({w}, {.lr = 0.1});
  conv2d(x, w).sum().backward();
  optimizer.step();
  EXPECT_TRUE(same(inferred(x, w).to(Device::cpu()), expected(x, w)));
  EXPECT_FALSE(same(inferred(x, w).to(Device::cpu()), twice));
}

TEST_F(KeptGpu, IsMadeOnceAndGoesWithTheWeight) {
  const Tensor x = images(1);
  const int64_t before = live();
  {
    const Tensor w = weight();
    const int64_t start = allocations();
    const int64_t kept = kept_by(x, w);
    if (kept == 0) GTEST_SKIP() << kNothingKept;
    const int64_t first = allocations() - start;
    inferred(x, w);
    EXPECT_EQ(allocations() - start - first, first - 1);  // all but what is kept
    EXPECT_EQ(kept_by(x, w), 0);
    w.detach().zero_();
    EXPECT_EQ(kept_by(x, w), 0);  // made again where it was
  }
  EXPECT_EQ(live(), before);
}

TEST_F(KeptGpu, IsBounded) {
  const Tensor w = weight();
  const int64_t start = live(), kept = kept_by(images(1), w);
  if (kept == 0) GTEST_SKIP() << kNothingKept;
  for (int64_t batch = 1; batch < 9; ++batch) {
    const Tensor x = images(batch);
    EXPECT_TRUE(same(inferred(x, w).to(Device::cpu()), expected(x, w)));
  }
  EXPECT_LT(live() - start, 3 * kept);  // of eight
}

TEST_F(KeptGpu, TrainingKeepsNothing) {
  const Tensor x = images(1), w = weight();
  if (kept_by(x, weight()) == 0) GTEST_SKIP() << kNothingKept;
  const int64_t before = live();
  for (int i = 0; i < 3; ++i) {
    conv2d(testing::leaf(x), w, {}, {}, {ActivationKind::Relu}).sum().backward();
    w.set_grad(Tensor());
  }
  EXPECT_EQ(live(), before);
}

TEST_F(KeptGpu, AGraphFollowsItsWeight) {
  const Tensor x = images(1), w = weight();
  inferred(x, w);
  Tensor y;
  const cuda::Graph graph = cuda::Graph::capture(gpu_, [&] { y = inferred(x, w); });
  for (int i = 0; i < 3; ++i) {
    graph.replay();
    EXPECT_TRUE(same(y.to(Device::cpu()), expected(x, w))) << i;
    const NoGradGuard guard;
    w.copy_(randn(w.shape(), w.options()));
  }
}

TEST_F(KeptGpu, AGraphChangesAWeight) {
  const Tensor x = images(1), w = weight();
  inferred(x, w);
  Tensor before, after;
  const cuda::Graph graph = cuda::Graph::capture(gpu_, [&] {
    const NoGradGuard guard;
    before = inferred(x, w);
    w.mul_(0.5);
    after = inferred(x, w);
  });
  for (int i = 0; i < 3; ++i) {
    const Tensor old = expected(x, w);
    graph.replay();
    EXPECT_TRUE(same(before.to(Device::cpu()), old)) << i;
    EXPECT_TRUE(same(after.to(Device::cpu()), expected(x, w))) << i;
    EXPECT_TRUE(same(inferred(x, w).to(Device::cpu()), expected(x, w))) << i;
    EXPECT_FALSE(same(after.to(Device::cpu()), old)) << i;
  }
}

// The transforms of long filters, which the skip weights are part of.
TEST_F(KeptGpu, LongFilters) {
  const NoGradGuard guard;
  for (int64_t length : {5, 300, 1000, 8192, 9000, 40001}) {
    SCOPED_TRACE(length);
    const Tensor x = randn({2, 3, length}, {.device = gpu_}), gate = randn(x.shape(), x.options());
    const Tensor w = randn({3, 77}, {.device = gpu_}).requires_grad_();
    const Tensor skip = randn({3}, {.device = gpu_}).requires_grad_();
    const bool causal = length % 2 == 0;
    const auto convolve = [&](const Tensor& in, const Tensor& filter) {
      return long_conv(in, filter, skip, {.causal = causal, .gate_in = in.size(0) == 2 ? gate : Tensor()});
    };
    const auto both_same = [&](const Tensor& in) {
      return same(convolve(in, w).to(Device::cpu()), convolve(in, w.detach()).to(Device::cpu()));
    };
    EXPECT_TRUE(both_same(x));
    EXPECT_TRUE(both_same(x));
    const Tensor first = convolve(x, w).clone();
    const int64_t before = live();
    EXPECT_TRUE(both_same(x.slice(0, 0, 1)));  // any batch
    EXPECT_EQ(live(), before);
    Tensor replayed;
    const cuda::Graph graph = cuda::Graph::capture(gpu_, [&] { replayed = convolve(x, w); });
    for (const Tensor& changed : {w, skip}) {
      changed.mul_(-3);
      graph.replay();
      EXPECT_TRUE(same(replayed.to(Device::cpu()), convolve(x, w.detach()).to(Device::cpu())));
      EXPECT_TRUE(both_same(x));
      EXPECT_FALSE(same(replayed.to(Device::cpu()), first.to(Device::cpu())));
    }
  }
}

TEST_F(KeptGpu, HyenaFiltersInAGraph) {
  const NoGradGuard guard;
  models::HyenaLM model({.mixer = {.d_model = 16, .l_max = 128}, .vocab_size = 12});
  model.to(gpu_);
  model.eval();
  const Tensor ids = randint(0, 12, {2, 100}).to(gpu_);
  model(ids);
  Tensor replayed;
  const cuda::Graph graph = cuda::Graph::capture(gpu_, [&] { replayed = model(ids); });
  for (int i = 0; i < 2; ++i) {
    graph.replay();
    EXPECT_TRUE(same(replayed.to(Device::cpu()), model(ids).to(Device::cpu()))) << i;
    for (const Tensor& parameter : model.parameters()) parameter.mul_(1.5);
  }
}

TEST_F(KeptGpu, ThreadsOnTheirOwnStreams) {
  const Tensor x = images(1), w = weight(), y = expected(x, w);
  synchronize(gpu_);
  std::vector<Tensor> results(4);
  std::vector<std::thread> threads;
  for (Tensor& result : results) {
    threads.emplace_back([&] {
      const Stream stream = Stream::create(gpu_);
      const StreamGuard guard(stream);
      for (int i = 0; i < 20; ++i) result = inferred(x, w);
      stream.synchronize();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Tensor& result : results) EXPECT_TRUE(same(result.to(Device::cpu()), y));
}

TEST_F(KeptGpu, MemoryThatOthersMayChangeIsRead) {
  const Tensor x = images(1), w = weight();
  inferred(x, w);
  const Tensor other = from_dlpack(to_dlpack(w));
  other.mul_(3);  // says nothing to `w`
  EXPECT_TRUE(same(inferred(x, w).to(Device::cpu()), expected(x, w)));
  const Tensor foreign = other.requires_grad_();
  inferred(x, foreign);
  w.detach().mul_(2);
  EXPECT_TRUE(same(inferred(x, foreign).to(Device::cpu()), expected(x, w)));
}

}  // namespace
}  // namespace halo
