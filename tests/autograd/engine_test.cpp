#include <halo/autograd/node.h>
#include <halo/core/allocator.h>

#include <thread>

#include "tests/testing.h"

namespace halo {
namespace {

using testing::leaf;
using testing::message_of;
using testing::same;

TEST(Engine, AccumulatesIntoLeavesAndOverSharedPaths) {
  const Tensor x = leaf(tensor({1, 2, 3}));
  (x * x + x).sum().backward();
  EXPECT_TRUE(same(x.grad(), tensor({3, 5, 7})));
  (x * 2.0).sum().backward();
  EXPECT_TRUE(same(x.grad(), tensor({5, 7, 9})));
}

// The backward of add hands one gradient to both inputs; an accumulation in place would change the other's.
TEST(Engine, SharedGradientBuffersAreNeverChangedInPlace) {
  const Tensor x = leaf(tensor({1})), y = leaf(tensor({1}));
  const Tensor z = x + y, p = x / z;
  p.backward();
  EXPECT_EQ(x.grad().item(), 0.25);
  EXPECT_EQ(y.grad().item(), -0.25);
  const Tensor up = tensor({7});
  const Tensor u = leaf(tensor({1}));
  for (int i = 0; i < 2; ++i) (u + 0.0).backward(up);
  EXPECT_EQ(u.grad().item(), 14);
  u.grad().mul_(3);
  EXPECT_EQ(up.item(), 7);
}

TEST(Engine, SavedValuesChangedInPlaceAreNoticed) {
  const Tensor v = leaf(ones({4, 2})), s = tensor({5});
  const Tensor y = v * s;
  s.add_(tensor({5}));
  const std::string text = message_of([&] { y.sum().backward(); });
  EXPECT_NE(text.find("mul"), std::string::npos);
  EXPECT_NE(text.find("version 0"), std::string::npos);
  const Tensor base = tensor({5, 6}), part = base.slice(0, 0, 1);
  const Tensor through_view = v * part;
  base.fill_(1);
  EXPECT_THROW(through_view.sum().backward(), ArgumentError);
  const Tensor harmless = v + s;
  s.fill_(0);
  EXPECT_NO_THROW(harmless.sum().backward());
}

TEST(Engine, SecondRunNeedsRetainGraph) {
  const Tensor x = leaf(tensor({2}));
  const Tensor y = x * x;
  y.backward();
  EXPECT_NE(message_of([&] { y.backward(); }).find("retain_graph"), std::string::npos);
  const Tensor z = x * x;
  z.backward({}, true);
  EXPECT_NO_THROW(z.backward());
}

TEST(Engine, DeepGraphsNeitherOverflowNorLeak) {
  const int64_t nodes = autograd::live_nodes(), bytes = allocator(Device::cpu()).stats().live_bytes;
  constexpr int kDepth = 200000;
  {
    const Tensor x = leaf(from_vector<double>({1}, {1}));
    Tensor y = x;
    for (int i = 0; i < kDepth; ++i) y = y + 5e-6 * y;
    y.backward();
    EXPECT_NEAR(x.grad().item(), std::pow(1 + 5e-6, kDepth), 1e-9);
  }
  {
    Tensor y = leaf(from_vector<double>({1}, {1}));
    for (int i = 0; i < kDepth; ++i) y = tanh(y);
    std::thread([last = std::move(y)]() mutable { last = Tensor(); }).join();
  }
  EXPECT_EQ(autograd::live_nodes(), nodes);
  EXPECT_EQ(allocator(Device::cpu()).stats().live_bytes, bytes);
}

TEST(Engine, GraphsOfGradientsDoNotKeepThemselvesAlive) {
  const int64_t nodes = autograd::live_nodes();
  for (int i = 0; i < 10; ++i) {
    const Tensor x = leaf(randn({100}));
    const Tensor y = tanh(x).sum();
    const Tensor g = grad({y}, {x}, {}, {.create_graph = true})[0];
    EXPECT_THROW(x.set_grad(g), ArgumentError);
  }
  EXPECT_EQ(autograd::live_nodes(), nodes);
}

TEST(Engine, ThreadsShareALeaf) {
  const Tensor w = leaf(tensor({1}));
  std::vector<std::thread> threads;
  for (int c = 1; c <= 8; ++c) {
    threads.emplace_back([&w, c] {
      for (int i = 0; i < 100; ++i) (w * static_cast<double>(c)).backward();
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(w.grad().item(), 3600);
}

TEST(Engine, NoGradRecordsNothing) {
  const Tensor x = leaf(tensor({1}));
  const NoGradGuard guard;
  EXPECT_FALSE((x * x).requires_grad());
}

TEST(Engine, GradOfIntermediateAndUnused) {
  const Tensor x = leaf(tensor({3})), other = leaf(tensor({1}));
  const Tensor y = x * x, z = y * y;
  const auto grads = grad({z}, {y, x, other}, {}, {.allow_unused = true});
  EXPECT_EQ(grads[0].item(), 18);
  EXPECT_EQ(grads[1].item(), 108);
  EXPECT_EQ(grads[2].item(), 0);
  EXPECT_FALSE(x.grad().defined());
  const Tensor again = x * x;
  EXPECT_NE(message_of([&] { grad({again}, {other}); }).find("allow_unused"), std::string::npos);
}

TEST(Engine, AnomalyModeNamesTheFirstNan) {
  const Tensor x = leaf(tensor({-1}));
  set_detect_anomaly(true);
  EXPECT_NE(message_of([&] { (sqrt(x) * 2.0).sum().backward(); }).find("sqrt"), std::string::npos);
  set_detect_anomaly(false);
}

// Zero upstream gives zero: a masked branch with an infinite slope leaves no NaN.
TEST(Engine, ZeroUpstreamThroughAnInfiniteSlopeIsZero) {
  const Tensor x = leaf(tensor({0}));
  maximum(sqrt(x * x), full({1}, 1e-10)).backward();
  EXPECT_EQ(x.grad().item(), 0);
  const Tensor v = leaf(tensor({0, INFINITY}));
  where(lt(v, ones({2})), cos(v), zeros({2})).sum().backward();
  EXPECT_TRUE(same(v.grad(), tensor({0, 0})));
}

}  // namespace
}  // namespace halo
