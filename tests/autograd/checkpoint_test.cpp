// Checkpoints: the same bits for less memory.
#include <halo/autograd/node.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/testing.h"

namespace halo {
namespace {

using testing::leaf;
using testing::message_of;
using testing::same;
using Tensors = std::vector<Tensor>;

/// Blocks that save several times what goes from one to the next.
struct Net : nn::Module {
  explicit Net(int blocks) {
    for (int i = 0; i < blocks; ++i) {
      layers.push_back(&register_module("layer" + std::to_string(i), nn::Linear(37, 37)));
      norms.push_back(&register_module("norm" + std::to_string(i), nn::BatchNorm1d(37)));
    }
  }
  Tensor block(std::size_t i, const Tensor& x) {
    return x + dropout(tanh((*norms[i])(gelu((*layers[i])(x)))), 0.3, true, generator);
  }
  std::vector<nn::Linear*> layers;
  std::vector<nn::BatchNorm1d*> norms;
  Generator generator{11};
};

enum class Way { Plain, Blocks, Pairs, Nested };

Tensor forward(Net& net, const Tensor& x, Way way) {
  const auto block = [&net](std::size_t i) { return [&net, i](const Tensor& t) { return net.block(i, t); }; };
  const auto from = [&, n = net.layers.size()](std::size_t begin, std::size_t step) {
    return [block, begin, end = std::min(n, begin + step), way](const Tensor& t) {
      Tensor y = t;
      for (std::size_t i = begin; i < end; ++i) y = way == Way::Nested ? checkpoint(block(i), y) : block(i)(y);
      return y;
    };
  };
  Tensor y = x;
  const std::size_t step = way == Way::Blocks ? 1 : way == Way::Pairs ? 2 : net.layers.size();
  for (std::size_t i = 0; i < net.layers.size(); i += step) {
    y = way == Way::Plain ? from(i, step)(y) : checkpoint(from(i, step), y);
  }
  return y;
}

struct Outcome {
  Tensors tensors;             ///< result, gradients of the input and of the parameters, running statistics
  PhiloxState draws;           ///< where the generator ends
  int64_t kept = 0, peak = 0;  ///< bytes after forward; the most in all
};

Outcome train(Way way) {
  manual_seed(5);
  Net net(8);
  const Tensor x = leaf(randn({203, 37})), up = randn({203, 37});
  const int64_t before = memory_statistics(Device::cpu()).live_bytes;
  reset_peak_memory(Device::cpu());
  Outcome outcome;
  {
    const Tensor y = forward(net, x, way);
    outcome.kept = memory_statistics(Device::cpu()).live_bytes - before;
    outcome.tensors.push_back(y.detach());
    y.backward(up);
  }
  outcome.peak = memory_statistics(Device::cpu()).peak_bytes - before;
  outcome.tensors.push_back(x.grad());
  for (const Tensor& p : net.parameters()) outcome.tensors.push_back(p.grad());
  for (const auto& buffer : net.named_buffers()) outcome.tensors.push_back(buffer.tensor);
  outcome.draws = net.generator.state();
  return outcome;
}

TEST(Checkpoint, SameBitsForLessMemory) {
  const Outcome plain = train(Way::Plain);
  for (Way way : {Way::Blocks, Way::Pairs, Way::Nested}) {
    const Outcome got = train(way);
    ASSERT_EQ(got.tensors.size(), plain.tensors.size());
    for (std::size_t i = 0; i < got.tensors.size(); ++i) EXPECT_TRUE(same(got.tensors[i], plain.tensors[i])) << i;
    EXPECT_EQ(got.draws.offset, plain.draws.offset);
    EXPECT_LT(got.kept, plain.kept / 3);
    EXPECT_LT(got.peak, plain.peak * 2 / 3);
  }
  // One checkpoint around all keeps least and gains nothing at the peak; with checkpoints inside it does.
  EXPECT_LT(train(Way::Nested).kept, train(Way::Blocks).kept / 4);
  EXPECT_EQ(plain.kept, train(Way::Plain).kept);  // the measure itself
}

TEST(Checkpoint, RunsTwiceForOneBackward) {
  int runs = 0;
  const Tensor x = leaf(tensor({1, 2}));
  const auto f = [&runs](const Tensor& t) {
    ++runs;
    return exp(sin(t)) * t;
  };
  const Tensor y = checkpoint(f, x);
  EXPECT_EQ(runs, 1);
  y.sum().backward({}, true);
  EXPECT_EQ(runs, 2);
  y.sum().backward();
  EXPECT_EQ(runs, 3);
  const Tensor plain = leaf(tensor({1, 2}));
  for (int i = 0; i < 2; ++i) (exp(sin(plain)) * plain).sum().backward();
  EXPECT_TRUE(same(x.grad(), plain.grad()));
  const NoGradGuard guard;
  EXPECT_FALSE(checkpoint(f, x).requires_grad());
  EXPECT_EQ(runs, 4);
}

// Operations that ask for a saved value twice, or for many, cost one more run, not several; nested ones one a level.
TEST(Checkpoint, RunsOnceMoreWhateverIsSaved) {
  int outer = 0, inner = 0;
  const Tensor x = leaf(randn({3, 5})), w = leaf(randn({4, 5}));
  const auto f = [&](const Tensor& t) {
    ++outer;
    const auto g = [&](const Tensor& u) {
      ++inner;
      const auto [sum, projected] = residual_norm_linear(sin(u), {}, tanh(u), {}, {}, w);
      return sum.sum() + projected.sum() + softmax(u * u, 1).select(1, 0).sum();
    };
    return checkpoint(g, exp(t)) + checkpoint(g, cos(t));
  };
  checkpoint(f, x).backward();
  EXPECT_EQ(outer, 2);
  EXPECT_EQ(inner, 6);  // in each run of the outer one two, and each of the two again
}

TEST(Checkpoint, GradientsOfWhatTheFunctionUses) {
  const Tensor x = tensor({1, 2}), w = leaf(tensor({3, 4}));  // only w wants a gradient
  const Tensor y = checkpoint([&](const Tensor& t) { return exp(t * w); }, x);
  const Tensor g = grad({y.sum()}, {w})[0];
  EXPECT_TRUE(same(g, exp(x * w.detach()) * x));
}

TEST(Checkpoint, SeveralInputsAndResults) {
  const Tensor x = leaf(tensor({1, 2, 3})), rows = from_vector<int64_t>({2, 0}, {2});
  const auto f = [](const Tensors& in) {
    const Tensor picked = index_select(in[0], 0, in[1]);
    EXPECT_FALSE(in[2].defined());
    return Tensors{tanh(picked), picked * picked, in[0]};
  };
  const Tensors got = checkpoint(f, {x, rows, Tensor()});
  (got[0].sum() + got[1].sum() + got[2].sum()).backward();
  const Tensor plain = leaf(x);
  const Tensors expected = f({plain, rows, Tensor()});
  (expected[0].sum() + expected[1].sum() + expected[2].sum()).backward();
  EXPECT_TRUE(same(x.grad(), plain.grad()));
}

TEST(Checkpoint, SecondOrder) {
  manual_seed(2);
  const Tensor x = leaf(rand({3, 4}, {.dtype = float64})), w = leaf(rand({4, 4}, {.dtype = float64}));
  const auto inner = [](const Tensor& t, const Tensor& u) { return tanh(matmul(t, u)) * sigmoid(t); };
  const auto plain = [&](const Tensors& in) { return sin(inner(in[0], in[1])); };
  const auto once = [&](const Tensors& in) {
    return checkpoint([&](const Tensor& t, const Tensor& u) { return sin(inner(t, u)); }, in[0], in[1]);
  };
  const auto nested = [&](const Tensors& in) {
    const auto f = [&inner](const Tensor& t, const Tensor& u) { return sin(checkpoint(inner, t, u)); };
    return checkpoint(f, in[0], in[1]);
  };
  const auto second = [&](const auto& f) {
    const Tensor up = leaf(ones({3, 4}, {.dtype = float64}));
    const auto first = grad({f(Tensors{x, w})}, {x, w}, {up}, {.create_graph = true});
    return grad({first[0].sum() + (first[1] * first[1]).sum()}, {x, w, up});
  };
  for (const auto& f : {std::function<Tensor(const Tensors&)>(once), std::function<Tensor(const Tensors&)>(nested)}) {
    const auto result = gradcheck(f, {x, w});
    EXPECT_TRUE(result.ok) << result.message;
    const auto got = second(f), expected = second(plain);
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same(got[i], expected[i])) << i;
  }
}

TEST(Checkpoint, GradientInsideTheFunction) {
  const auto penalty = [](const Tensor& t) {
    const Tensor y = checkpoint([](const Tensor& u) { return exp(sin(u)); }, t);
    return y + grad({y.sum()}, {t}, {}, {.create_graph = true})[0];
  };
  const Tensor x = leaf(tensor({0.5f, -1})), plain = leaf(x);
  checkpoint(penalty, x).sum().backward();
  const Tensor y = exp(sin(plain));
  (y + grad({y.sum()}, {plain}, {}, {.create_graph = true})[0]).sum().backward();
  EXPECT_TRUE(same(x.grad(), plain.grad()));
}

TEST(Checkpoint, ModesAndGeneratorsOfTheFirstRun) {
  std::vector<Precision> seen;
  std::vector<bool> again;
  const Tensor x = leaf(ones({50}));
  Generator generator(3);
  Tensor y;
  {
    const PrecisionGuard guard(Precision::TF32);
    y = checkpoint(
        [&](const Tensor& t) {
          seen.push_back(precision());
          again.push_back(is_recomputing());
          EXPECT_TRUE(grad_enabled());
          return dropout(t * t, 0.5, true, generator) * rand({50});
        },
        x);
  }
  rand({7}, {}, generator);  // others go on drawing
  manual_seed(99);
  const PhiloxState own = generator.state(), common = default_generator().state();
  std::thread([&] { y.sum().backward(); }).join();
  EXPECT_EQ(seen, (std::vector<Precision>{Precision::TF32, Precision::TF32}));
  EXPECT_EQ(again, (std::vector<bool>{false, true}));
  EXPECT_FALSE(is_recomputing());
  EXPECT_TRUE(same(x.grad(), y.detach() * 2.0));  // of c x^2 at 1
  EXPECT_EQ(generator.state().offset, own.offset);
  EXPECT_EQ(default_generator().state().seed, common.seed);
  EXPECT_EQ(default_generator().state().offset, common.offset);
}

TEST(Checkpoint, HooksRunOnce) {
  int calls = 0;
  const Tensor x = leaf(tensor({1, 2}));
  const Tensor y = checkpoint(
      [&](const Tensor& t) {
        const Tensor inner = sin(t);
        inner.register_hook([&](const Tensor& g) {
          ++calls;
          return g * 10.0;
        });
        return exp(inner);
      },
      x);
  y.sum().backward();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(same(x.grad(), exp(sin(x.detach())) * 10.0 * cos(x.detach())));
}

TEST(Checkpoint, WhatWouldBeWrongIsAnError) {
  const auto said = [](const std::function<void(const Tensor& w)>& between,
                       const std::function<Tensor(const Tensor&, const Tensor&, bool first)>& f) {
    const Tensor x = leaf(tensor({1, 2})), w = leaf(tensor({3, 4}));
    bool first = true;
    const Tensor y = checkpoint([&](const Tensor& t) { return f(t, w, std::exchange(first, false)); }, x);
    const Tensor loss = y.sum();
    const NoGradGuard guard;
    between(w);
    return message_of([&] { loss.backward(); });
  };
  const auto nothing = [](const Tensor&) {};
  const std::string other =
      said(nothing, [](const Tensor& t, const Tensor&, bool first) { return first ? exp(t) : exp(sin(t)); });
  EXPECT_NE(other.find("saved more than 1 tensors"), std::string::npos) << other;
  const std::string fewer =
      said(nothing, [](const Tensor& t, const Tensor&, bool first) { return first ? sin(sin(t)) : sin(t); });
  EXPECT_NE(fewer.find("saved 1 tensors instead of 2"), std::string::npos) << fewer;
  const std::string shape = said(nothing, [](const Tensor& t, const Tensor&, bool first) {
    return first ? sin(t * 2.0).sum() : sin((t * 2.0).sum());
  });
  EXPECT_NE(shape.find("saved float32 [] on cpu instead of float32 [2] on cpu"), std::string::npos) << shape;
  const std::string draws = said(nothing, [](const Tensor& t, const Tensor&, bool first) {
    return sin(t * (first ? rand({2}) : rand({3}).sum()));
  });
  EXPECT_NE(draws.find("random numbers"), std::string::npos) << draws;
  // A bias is saved by nobody, but what is computed again depends on it.
  const std::string step = said([](const Tensor& w) { w.add_(ones({2})); },
                                [](const Tensor& t, const Tensor& w, bool) { return sin(t + w); });
  EXPECT_NE(step.find("before the optimiser's step"), std::string::npos) << step;
  const Tensor buffer = tensor({5, 6});
  const std::string table = said([&](const Tensor&) { buffer.fill_(1); },
                                 [&](const Tensor& t, const Tensor&, bool) { return sin(t) * buffer; });
  EXPECT_NE(table.find("changed in place"), std::string::npos) << table;
  const std::string thrown = said(nothing, [](const Tensor& t, const Tensor&, bool first) {
    if (!first) fail("the second run failed");
    return sin(sin(t));
  });
  EXPECT_EQ(thrown, "the second run failed");
  EXPECT_FALSE(is_recomputing());
  EXPECT_THROW(checkpoint(CheckpointFunction(), {}), ArgumentError);
}

TEST(Checkpoint, LongChainsNeitherOverflowNorLeak) {
  const int64_t nodes = autograd::live_nodes(), bytes = memory_statistics(Device::cpu()).live_bytes;
  {
    const Tensor x = leaf(from_vector<double>({0.5}, {1}));
    Tensor y = x;
    for (int i = 0; i < 20000; ++i) y = checkpoint([](const Tensor& t) { return t + 1e-5 * sin(t); }, y);
    y.backward();
    EXPECT_GT(x.grad().item(), 1);
    Tensor unused = x;
    for (int i = 0; i < 20000; ++i) unused = checkpoint([](const Tensor& t) { return sin(t); }, unused);
  }
  EXPECT_EQ(autograd::live_nodes(), nodes);
  EXPECT_EQ(memory_statistics(Device::cpu()).live_bytes, bytes);
}

}  // namespace
}  // namespace halo
