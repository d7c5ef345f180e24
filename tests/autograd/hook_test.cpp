// Hooks on gradients: when they run, what they are given, what they may return.
#include <halo/autograd/node.h>
#include <halo/core/allocator.h>

#include <string>
#include <vector>

#include "tests/testing.h"

namespace halo {
namespace {

using testing::leaf;
using testing::message_of;
using testing::same;

TEST(Hook, SeesTheAccumulatedGradientOnceABackward) {
  const Tensor x = leaf(tensor({1, 2, 3}));
  const Tensor y = x * 2.0;
  std::vector<Tensor> of_x, of_y;
  x.register_hook([&](const Tensor& g) { of_x.push_back(g); });
  y.register_hook([&](const Tensor& g) { of_y.push_back(g); });
  (y * y + y + x).sum().backward({}, true);
  ASSERT_EQ(of_x.size(), 1U);
  ASSERT_EQ(of_y.size(), 1U);
  EXPECT_TRUE(same(of_y[0], tensor({5, 9, 13})));
  EXPECT_TRUE(same(of_x[0], tensor({11, 19, 27})));
  EXPECT_TRUE(same(x.grad(), tensor({11, 19, 27})));
  (y + y).sum().backward();
  ASSERT_EQ(of_x.size(), 2U);
  EXPECT_TRUE(same(of_x[1], tensor({4, 4, 4})));  // this backward's share, not the sum of both
  EXPECT_TRUE(same(x.grad(), tensor({15, 23, 31})));
}

TEST(Hook, ReplacesTheGradientInOrderOfRegistration) {
  const Tensor x = leaf(tensor({1, 2}));
  const Tensor y = x * 3.0;
  y.register_hook([](const Tensor& g) { return g + 1.0; });
  y.register_hook([](const Tensor&) { return Tensor(); });  // leaves it
  y.register_hook([](const Tensor& g) { return g * 10.0; });
  x.register_hook([](const Tensor& g) { return -g; });
  y.sum().backward();
  EXPECT_TRUE(same(x.grad(), tensor({-60, -60})));
}

TEST(Hook, HandleRemovesItAndOnlyIt) {
  const Tensor x = leaf(tensor({1}));
  int first = 0, second = 0;
  HookHandle handle = x.register_hook([&](const Tensor&) { ++first; });
  x.register_hook([&](const Tensor&) { ++second; });
  (x * 1.0).backward();
  handle.remove();
  handle.remove();
  (x * 1.0).backward();
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 2);
  HookHandle late;
  {
    const Tensor gone = leaf(tensor({1}));
    late = gone.register_hook([](const Tensor&) {});
  }
  late.remove();
  HookHandle().remove();
}

TEST(Hook, MayRemoveItselfWhileItRuns) {
  const Tensor x = leaf(tensor({1}));
  int calls = 0;
  HookHandle handle;
  handle = x.register_hook([&](const Tensor&) {
    ++calls;
    handle.remove();
  });
  for (int i = 0; i < 3; ++i) (x * 1.0).backward();
  EXPECT_EQ(calls, 1);
}

TEST(Hook, RunsInGradForWhatLeadsToTheInputsAndNowhereElse) {
  const Tensor x = leaf(tensor({2})), other = leaf(tensor({3}));
  int of_other = 0, aside = 0;
  other.register_hook([&](const Tensor&) { ++of_other; });
  x.register_hook([](const Tensor& g) { return g * 100.0; });
  const Tensor y = x * other, unrelated = other * 5.0;
  y.register_hook([](const Tensor& g) { return g + 1.0; });
  unrelated.register_hook([&](const Tensor&) { ++aside; });
  const auto grads = grad({(y + unrelated).sum()}, {x, y});
  EXPECT_EQ(grads[0].item(), 600);
  EXPECT_EQ(grads[1].item(), 2);
  EXPECT_EQ(of_other + aside, 0);
}

TEST(Hook, OfTheRootAndOfALeafThatIsTheRoot) {
  const Tensor x = leaf(tensor({2}));
  const Tensor y = x * x;
  y.register_hook([](const Tensor& g) { return g * 7.0; });
  y.backward();
  EXPECT_EQ(x.grad().item(), 28);
  const Tensor z = leaf(tensor({1}));
  z.register_hook([](const Tensor& g) { return g * 7.0; });
  z.backward();
  EXPECT_EQ(z.grad().item(), 7);
}

TEST(Hook, EachOutputOfAnOperationHasItsOwn) {
  const Tensor x = leaf(tensor({3, 1, 2}));
  const auto sorted = sort(x, 0);
  sorted.values.register_hook([](const Tensor& g) { return g * 2.0; });
  const auto parts = split(x, 1, 0);
  parts[1].register_hook([](const Tensor& g) { return g * 1000.0; });
  (sorted.values.sum() + parts[0].sum() + parts[1].sum()).backward();
  EXPECT_TRUE(same(x.grad(), tensor({3, 1002, 2})));
}

TEST(Hook, IsRecordedUnderCreateGraph) {
  const Tensor x = leaf(from_vector<double>({0.7}, {1}));
  const Tensor y = sin(x);
  bool recording = false;
  HookHandle handle = y.register_hook([&](const Tensor& g) {
    recording = grad_enabled();
    return g * y;  // d/dx sin = cos x becomes sin x cos x
  });
  const Tensor first = grad({y}, {x}, {}, {.create_graph = true})[0];
  EXPECT_TRUE(recording);
  EXPECT_NEAR(first.item(), std::sin(0.7) * std::cos(0.7), 1e-15);
  handle.remove();  // or it would change the gradient that comes to y from `first`
  EXPECT_NEAR(grad({first}, {x})[0].item(), std::cos(1.4), 1e-15);
  const Tensor z = sin(x);
  z.register_hook([&](const Tensor&) { recording = grad_enabled(); });
  z.backward();
  EXPECT_FALSE(recording);
}

TEST(Hook, WrongGradientsAndWrongTensorsAreErrors) {
  const Tensor x = leaf(tensor({1, 2}));
  const auto said = [&](const std::function<Tensor(const Tensor&)>& hook, bool of_leaf) {
    const Tensor y = x * 1.0;
    HookHandle handle = (of_leaf ? x : y).register_hook(hook);
    const std::string text = message_of([&] { y.sum().backward(); });
    handle.remove();
    return text;
  };
  const std::string shape = said([](const Tensor&) { return tensor({1, 2, 3}); }, false);
  EXPECT_NE(shape.find("float32 [2] on cpu, got float32 [3]"), std::string::npos) << shape;
  EXPECT_NE(shape.find("mul"), std::string::npos) << shape;
  const std::string dtype = said([](const Tensor& g) { return g.to(float64); }, true);
  EXPECT_NE(dtype.find("leaf"), std::string::npos) << dtype;
  EXPECT_NE(dtype.find("got float64 [2]"), std::string::npos) << dtype;
  EXPECT_FALSE(x.grad().defined());

  const Tensor plain = tensor({1});
  EXPECT_NE(message_of([&] { plain.register_hook([](const Tensor&) {}); }).find("requires grad"), std::string::npos);
  EXPECT_THROW(x.register_hook(GradHook()), ArgumentError);
  EXPECT_THROW(plain.retain_grad(), ArgumentError);
  EXPECT_THROW(plain.register_post_accumulate_grad_hook([](const Tensor&) {}), ArgumentError);
  const Tensor result = x * 2.0;
  EXPECT_NE(message_of([&] { result.register_post_accumulate_grad_hook([](const Tensor&) {}); }).find("leaf"),
            std::string::npos);
}

TEST(Hook, ThatThrowsEndsTheBackward) {
  const Tensor x = leaf(tensor({1}));
  HookHandle handle = x.register_hook([](const Tensor&) { fail("stop here"); });
  EXPECT_EQ(message_of([&] { (x * 1.0).backward(); }), "stop here");
  EXPECT_FALSE(x.grad().defined());
  handle.remove();
  (x * 1.0).backward();
  EXPECT_EQ(x.grad().item(), 1);
}

TEST(Hook, AfterAccumulationCanStepAndDropTheGradient) {
  const Tensor w = leaf(tensor({1})), v = leaf(tensor({5}));
  HookHandle handle = w.register_post_accumulate_grad_hook([](const Tensor& parameter) {
    EXPECT_FALSE(grad_enabled());
    parameter.add_(parameter.grad(), -0.5);
    parameter.set_grad({});
  });
  for (int i = 0; i < 3; ++i) (w * 2.0 + v).backward();
  EXPECT_EQ(w.item(), -2);
  EXPECT_FALSE(w.grad().defined());
  EXPECT_EQ(v.grad().item(), 3);
  grad({w * 2.0}, {w});  // nothing is accumulated, so nothing is called
  EXPECT_EQ(w.item(), -2);
  handle.remove();
  (w * 2.0).backward();
  EXPECT_EQ(w.grad().item(), 2);
}

TEST(Hook, RetainGradKeepsThatOfAResultAfterItsHooks) {
  const Tensor x = leaf(tensor({1, 2}));
  const Tensor y = x * 3.0, z = x * 3.0;
  y.retain_grad();
  y.register_hook([](const Tensor& g) { return g * 2.0; });
  (y.sum() + z.sum()).backward({}, true);
  EXPECT_TRUE(same(y.grad(), tensor({2, 2})));
  EXPECT_FALSE(z.grad().defined());
  grad({y.sum()}, {x}, {}, {.retain_graph = true});
  EXPECT_TRUE(same(y.grad(), tensor({2, 2})));  // grad() leaves it alone
  y.sum().backward();
  EXPECT_TRUE(same(y.grad(), tensor({4, 4})));
  x.retain_grad();  // a leaf's is kept anyway
  EXPECT_TRUE(x.grad().defined());
}

// A hook kept by the caller's own tensors: nothing stays when they go, and a million nodes need no stack.
TEST(Hook, LongChainsWithHooksNeitherOverflowNorLeak) {
  const int64_t nodes = autograd::live_nodes(), bytes = allocator(Device::cpu()).stats().live_bytes;
  constexpr int kDepth = 1000000;
  int calls = 0;
  {
    const Tensor x = leaf(from_vector<double>({1}, {1}));
    Tensor y = x;
    for (int i = 0; i < kDepth; ++i) {
      y = y + 1e-6;
      if (i % 1000 == 0) {
        y.register_hook([&calls, held = y](const Tensor& g) {  // holds what it hangs on, until the graph has run
          ++calls;
          return g * 2.0;
        });
        y.retain_grad();
      }
    }
    y.backward();
    EXPECT_EQ(x.grad().item(), std::pow(2.0, 1000));
  }
  EXPECT_EQ(calls, 1000);
  {
    Tensor y = leaf(from_vector<double>({1}, {1}));
    for (int i = 0; i < kDepth / 10; ++i) {
      const Tensor before = y;
      y = y + 1e-6;
      if (i % 1000 == 0) y.register_hook([before](const Tensor&) {});
    }
  }
  EXPECT_EQ(autograd::live_nodes(), nodes);
  EXPECT_EQ(allocator(Device::cpu()).stats().live_bytes, bytes);
}

}  // namespace
}  // namespace halo
