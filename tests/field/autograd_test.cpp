// Field cases of the autograd engine.
#include <halo/autograd/node.h>

#include <thread>

#include "field_testing.h"
#include <pthread.h>

namespace halo {
namespace {

using namespace testing;

using FieldAutograd = Field;
INSTANTIATE_TEST_SUITE_P(Devices, FieldAutograd, both_devices(), device_name);

struct Counts {
  int64_t nodes = autograd::live_nodes();
  int64_t bytes = allocator(Device::cpu()).stats().live_bytes;
  bool operator==(const Counts&) const = default;
};

/// Runs `body` on a thread with a stack of 256 KiB.
void on_small_stack(std::function<void()> body) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, std::size_t{256} << 10);
  pthread_t thread{};
  const auto run = [](void* f) -> void* {
    (*static_cast<std::function<void()>*>(f))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, run, &body), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

// Case 31. A long chain of nodes freed by recursion overflows the stack. A million steps, dropped without backward,
// after backward, and on a thread with little stack.
TEST(FieldDeepGraph, AMillionNodes) {
  constexpr int kSteps = 500000, kFewer = 100000;  // two nodes a step
  const Counts before;
  const auto chain = [](const Tensor& x, int steps) {
    Tensor y = x;
    for (int i = 0; i < steps; ++i) y = y + 2e-6 * y;
    return y;
  };
  { chain(leaf(ones({1}, {.dtype = float64})), kFewer); }
  EXPECT_EQ(Counts(), before);
  {
    const Tensor x = leaf(ones({1}, {.dtype = float64}));
    Tensor y = chain(x, kSteps);
    y.backward();
    EXPECT_NEAR(x.grad().item(), std::pow(1 + 2e-6, kSteps), 1e-8);
  }
  EXPECT_EQ(Counts(), before);
  {
    Tensor y = chain(leaf(ones({1}, {.dtype = float64})), kFewer);
    on_small_stack([&y] { y = Tensor(); });
  }
  EXPECT_EQ(Counts(), before);
  {
    const Tensor x = leaf(ones({1}, {.dtype = float64}));
    Tensor y = chain(x, kFewer);
    on_small_stack([&y] {
      y.backward();
      y = Tensor();
    });
    EXPECT_TRUE(x.grad().defined());
  }
  EXPECT_EQ(Counts(), before);
}

// Case 32. A gradient with a graph of its own, stored in the leaf it points back to, is a ring that is never freed.
// Halo returns such gradients and refuses to store them.
TEST_P(FieldAutograd, GradientsWithAGraphDoNotLeak) {
  const auto live = [&] { return allocator(device()).stats().live_bytes; };
  const int64_t nodes = autograd::live_nodes(), bytes = live();
  for (int round = 0; round < 20; ++round) {
    const Tensor x = leaf(randn({100000}, options()));
    const Tensor y = tanh(x);
    const Tensor first = grad({y.sum()}, {x}, {}, {.create_graph = true})[0];
    const Tensor second = grad({first.sum()}, {x})[0];
    EXPECT_TRUE(second.defined());
    EXPECT_TRUE(mentions(message_of([&] { x.set_grad(first); }), {"grad"}));
  }
  EXPECT_EQ(autograd::live_nodes(), nodes);
  EXPECT_EQ(live(), bytes);
}

// Case 34. A factor changed between forward and backward: the gradient silently used the new value. Whatever changes it
// (a sum, a view, an optimiser, a load of weights, an activation in place) must be seen; where it does not matter, not.
TEST_P(FieldAutograd, SavedValuesChangedInPlace) {
  const Tensor v = leaf(ones({4, 2}, options()));
  const auto expect_refused = [&](const std::function<void(const Tensor&)>& change, const char* how) {
    const Tensor s = full({1}, 5, options());
    const Tensor y = (v * s).sum();
    change(s);
    const std::string text = message_of([&] { y.backward(); });
    EXPECT_TRUE(mentions(text, {"mul", "version"})) << how;
  };
  expect_refused([&](const Tensor& s) { s.add_(full({1}, 5, options())); }, "add_");
  expect_refused([](const Tensor& s) { s.mul_(2); }, "mul_");
  expect_refused([](const Tensor& s) { s.fill_(1); }, "fill_");
  expect_refused([&](const Tensor& s) { s.copy_(zeros({1}, options())); }, "copy_");
  expect_refused([](const Tensor& s) { s.reshape({1, 1}).select(0, 0).add_(s); }, "a view");
  expect_refused(
      [](const Tensor& s) {
        s.requires_grad_();
        s.set_grad(ones_like(s));
        optim::SGD(std::vector<Tensor>{s}, {.lr = 0.1}).step();
      },
      "an optimiser");
  const Tensor s = full({1}, 5, options());
  const Tensor sum = (v + s).sum();
  s.fill_(7);
  sum.backward();
  EXPECT_TRUE(same(v.grad(), ones_like(v)));
}

TEST_P(FieldAutograd, WeightsLoadedBetweenForwardAndBackward) {
  nn::Linear layer(3, 2);
  layer.to(device());
  const StateDict other = nn::Linear(3, 2).state_dict();
  const Tensor x = leaf(ones({1, 3}, options()));
  const Tensor y = layer(x).sum();
  layer.load_state_dict(other);
  EXPECT_TRUE(mentions(message_of([&] { y.backward(); }), {"version"}));
}

// Case 35. One buffer handed to both inputs of a sum, and added to in place for one of them.
TEST_P(FieldAutograd, GradientBuffersAreNotShared) {
  const Tensor x = leaf(ones({1}, options())), y = leaf(ones({1}, options()));
  const Tensor z = x + y;
  (x / z).backward();
  EXPECT_EQ(x.grad().item(), 0.25);
  EXPECT_EQ(y.grad().item(), -0.25);
  const Tensor up = full({1}, 7, options());
  for (int round = 1; round <= 2; ++round) {
    const Tensor u = leaf(ones({1}, options())), v = leaf(ones({1}, options()));
    const Tensor w = u + v;
    backward({w, w}, {up, up});
    EXPECT_EQ(u.grad().item(), 14);
    u.grad().add_(u.grad());
    EXPECT_EQ(v.grad().item(), 14);
    EXPECT_EQ(up.item(), 7);
  }
}

// Case 37. Forward finite, gradient NaN: 0 times infinity in a branch that was not taken. Halo's rule: a zero upstream
// gradient gives a zero gradient, whatever the slope.
TEST_P(FieldAutograd, MaskedBranchesGiveZero) {
  const Tensor x = leaf(zeros({1}, options())), y = leaf(zeros({1}, options()));
  maximum(sqrt(x * x + y * y), full({1}, 1e-10, options())).backward();
  EXPECT_EQ(x.grad().item(), 0);
  const Tensor v = leaf(zeros({3}, options()));
  norm(v).backward();
  EXPECT_TRUE(holds(v.grad(), {0, 0, 0}));
  const Tensor u = leaf(make({0, INFINITY}));
  where(lt(u, ones({2}, options())), cos(u), zeros({2}, options())).sum().backward();
  EXPECT_TRUE(holds(u.grad(), {0, 0}));
  // Every function with an infinite slope somewhere.
  const Tensor zero = leaf(zeros({1}, options()));
  for (const auto& f : std::vector<std::function<Tensor(const Tensor&)>>{
           [](const Tensor& t) { return sqrt(t); }, [](const Tensor& t) { return log(t); },
           [](const Tensor& t) { return pow(t, 0.5); }, [](const Tensor& t) { return reciprocal(t); },
           [](const Tensor& t) { return pow(t, -1); }, [](const Tensor& t) { return 1.0 / t; }}) {
    const Tensor masked = where(gt(zero, ones({1}, options())), f(zero), zeros({1}, options()));
    EXPECT_EQ(grad({masked}, {zero})[0].item(), 0);
  }
  // The other rule, named by the mode that looks for it.
  set_detect_anomaly(true);
  EXPECT_TRUE(mentions(message_of([&] { (sqrt(leaf(full({1}, -1, options()))) * 2.0).backward(); }), {"sqrt"}));
  set_detect_anomaly(false);
}

// Case 38. Backward held by one lock, the grad mode lost on worker threads, races in a shared generator.
TEST_P(FieldAutograd, ThreadsAddIntoASharedLeaf) {
  const Tensor w = leaf(ones({1}, options()));
  const int rounds = on_gpu() ? 50 : 1000;
  std::vector<std::thread> threads;
  for (int c = 1; c <= 8; ++c) {
    threads.emplace_back([&w, c, rounds] {
      for (int i = 0; i < rounds; ++i) (w * static_cast<double>(c)).backward();
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(w.grad().item(), 36.0 * rounds);
}

TEST_P(FieldAutograd, NoGradHoldsOnWorkerThreads) {
  const Tensor x = leaf(randn({8, 4, 16, 16}, options())), w = leaf(randn({4, 4, 3, 3}, options()));
  const int64_t nodes = autograd::live_nodes();
  const NoGradGuard guard;
  const Tensor y = conv2d(x, w);
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(autograd::live_nodes(), nodes);
  parallel_for(64, 1, [&](int64_t, int64_t) {
    if (grad_enabled()) ADD_FAILURE() << "a worker records";
  });
  const PrecisionGuard inner(Precision::TF32);
  parallel_for(64, 1, [&](int64_t, int64_t) {
    if (precision() != Precision::TF32) ADD_FAILURE() << "a worker has another precision";
  });
}

TEST_P(FieldAutograd, ThreadsShareAModelAndTheGenerator) {
  nn::Sequential net(nn::Conv2d(3, 8, 3, {.padding = 1}), nn::ReLU(), nn::Conv2d(8, 4, 3));
  net.eval();
  net.to(device());
  const Tensor x = randn({4, 3, 12, 12}, options());
  const NoGradGuard guard;
  const Tensor expected = net(x);
  std::vector<std::thread> threads;
  std::vector<Tensor> results(4);
  for (Tensor& result : results) {
    threads.emplace_back([&] {
      const NoGradGuard inside;
      for (int i = 0; i < 20; ++i) {
        result = net(x);
        rand({100}, options());
      }
    });
  }
  for (auto& t : threads) t.join();
  for (const Tensor& result : results) EXPECT_TRUE(same(result, expected));
}

}  // namespace
}  // namespace halo
