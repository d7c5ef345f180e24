#include <optional>

#include "tests/testing.h"

namespace halo::testing {
namespace {

/// y = x * weight + offset.
struct Scale : nn::Module {
  explicit Scale(float value) : weight(register_parameter("weight", tensor({value}))) {}
  Tensor forward(const Tensor& x) override { return x * weight + offset; }

  Tensor& weight;
  Tensor& offset = register_buffer("offset", tensor({1}));
  Tensor& scratch = register_buffer("scratch", zeros({3}), false);
  Tensor& absent = register_parameter("absent", {});
};

struct Tied : nn::Module {
  Scale& first = register_module("first", Scale(2));
  nn::Sequential& rest = register_module("rest", nn::Sequential(Scale(3), Scale(4)));
  Scale& last = register_module("last", Scale(5));
  Tied() { last.weight = first.weight; }
  Tensor forward(const Tensor& x) override { return last(rest(first(x))); }
};

std::vector<std::string> names(const std::vector<nn::NamedParameter>& parameters) {
  std::vector<std::string> result;
  for (const auto& parameter : parameters) result.push_back(parameter.name);
  return result;
}

std::vector<std::string> names(const StateDict& state) {
  std::vector<std::string> result;
  for (const auto& [name, tensor] : state) result.push_back(name);
  return result;
}

using Names = std::vector<std::string>;

TEST(Module, NamesAndTies) {
  Tied net;
  EXPECT_EQ(names(net.named_parameters()), (Names{"first.weight", "rest.0.weight", "rest.1.weight"}));
  EXPECT_EQ(names(net.named_buffers()).size(), 8u);
  EXPECT_EQ(names(net.state_dict()), (Names{"first.offset", "first.weight", "last.offset", "last.weight",
                                            "rest.0.offset", "rest.0.weight", "rest.1.offset", "rest.1.weight"}));
  EXPECT_EQ(net.num_parameters(), 3);
  EXPECT_EQ(net(tensor({1})).item(), ((((1 * 2 + 1) * 3 + 1) * 4 + 1) * 2 + 1));
  net(tensor({1})).backward();
  // d/dw of w * (12 (w x + 1) + 5) + 1 at w = 2, x = 1: the sum over both uses.
  EXPECT_EQ(net.first.weight.grad().item(), 12 * 2 * 2 + 17);
  EXPECT_TRUE(net.last.weight.is_same(net.first.weight));
}

TEST(Module, MovingKeepsReferencesAndTies) {
  Tied net;
  Tied moved(std::move(net));
  EXPECT_EQ(moved(tensor({1})).item(), 83);
  moved.first.weight.set_grad(tensor({7}));
  moved.to(float64);
  EXPECT_EQ(moved.first.weight.dtype(), float64);
  EXPECT_TRUE(moved.last.weight.is_same(moved.first.weight));
  EXPECT_TRUE(moved.first.weight.requires_grad());
  EXPECT_FALSE(moved.first.offset.requires_grad());
  EXPECT_TRUE(same(moved.first.weight.grad(), full({1}, 7, {.dtype = float64})));
  EXPECT_EQ(moved(full({1}, 1, {.dtype = float64})).item(), 83);
  message_of([&] { moved.to(int64); });
}

// An optimiser made before the move, and whoever else holds a parameter, go on with the same tensor.
TEST(Module, MovingKeepsTheParametersThemselves) {
  const auto train = [](bool before) {
    manual_seed(4);
    nn::Linear net(5, 3);
    const Tensor held = net.weight;
    std::optional<optim::AdamW> optimizer;
    const auto make = [&] { optimizer.emplace(net.parameters(), optim::AdamWOptions{.lr = 0.1}); };
    if (before) make();
    net.to(float64);
    if (!before) make();
    EXPECT_TRUE(net.weight.is_same(held));
    EXPECT_EQ(held.dtype(), float64);
    const Tensor start = held.detach().clone(), x = randn({7, 5}, {.dtype = float64});
    for (int i = 0; i < 3; ++i) {
      optimizer->zero_grad();
      mean(net(x) * net(x)).backward();
      optimizer->step();
    }
    EXPECT_FALSE(same(held, start));
    net.to(float32);  // after steps: their state follows
    optimizer->zero_grad();
    mean(net(x.to(float32))).backward();
    optimizer->step();
    return net.weight.detach();
  };
  EXPECT_TRUE(same(train(true), train(false)));
}

TEST(Module, GraphsFromBeforeAMoveAreRefused) {
  Scale net(2);
  const Tensor weight = net.weight, x = leaf(tensor({3}));
  int calls = 0;
  weight.register_hook([&](const Tensor&) { ++calls; });
  const Tensor saved = net(x), unsaved = net(tensor({1})) + weight;
  net.to(float64);
  EXPECT_NE(message_of([&] { saved.backward(); }).find("changed in place"), std::string::npos);
  EXPECT_NE(message_of([&] { unsaved.backward(); }).find("moved or converted"), std::string::npos);
  EXPECT_EQ(calls, 1);
  net(full({1}, 3, {.dtype = float64})).backward();
  EXPECT_EQ(calls, 2);  // hooks stay
  EXPECT_EQ(weight.grad().item(), 3);
}

TEST(Tensor, SetData) {
  const Tensor x = leaf(tensor({1, 2})), other = x;
  x.set_grad(tensor({5, 6}));
  x.set_data(tensor({3, 4}));
  EXPECT_TRUE(same(other.detach(), tensor({3, 4})));
  EXPECT_TRUE(x.requires_grad());
  EXPECT_TRUE(same(x.grad(), tensor({5, 6})));
  x.set_data(from_vector<double>({7, 8}, {2}));
  EXPECT_FALSE(x.grad().defined());  // it was of another dtype
  (other * other).sum().backward();
  EXPECT_TRUE(same(x.grad(), from_vector<double>({14, 16}, {2})));
  EXPECT_NE(message_of([&] { x.set_data(tensor({1})); }).find("shape [2]"), std::string::npos);
  EXPECT_THROW(x.set_data(from_vector<int64_t>({1, 2}, {2})), ArgumentError);
  EXPECT_THROW((x * 2.0).set_data(x), ArgumentError);
}

TEST(Module, CheckpointsInOneLine) {
  const auto train = [](int64_t segments) {
    manual_seed(8);
    nn::Sequential net;
    for (int i = 0; i < 5; ++i)
      net.push_back(nn::Linear(6, 6)), net.push_back(nn::GELU()), net.push_back(nn::Dropout());
    const Tensor x = leaf(randn({4, 6}));
    const Tensor y = segments == 0  ? net(x)
                     : segments < 0 ? nn::checkpoint(net, x)
                                    : checkpoint_sequential(net, segments, x);
    y.sum().backward();
    std::vector<Tensor> results{y.detach(), x.grad()};
    for (const Tensor& p : net.parameters()) results.push_back(p.grad());
    return results;
  };
  const auto plain = train(0);
  for (int64_t segments : {-1, 1, 2, 4, 15, 40}) {
    const auto got = train(segments);
    for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(same(got[i], plain[i])) << segments << " " << i;
  }
  nn::Sequential none;
  message_of([&] { checkpoint_sequential(none, 0, tensor({1})); });
  EXPECT_EQ(checkpoint_sequential(none, 3, tensor({1})).item(), 1);
}

TEST(Module, StateComesBackAndIsConverted) {
  Tied a, b;
  a.to(float64);
  {
    const NoGradGuard guard;
    a.first.weight.fill_(0.5);
    a.rest[1].state_dict().at("offset").fill_(9);  // shares memory
  }
  b.load_state_dict(a.state_dict());
  EXPECT_EQ(b.first.weight.dtype(), float32);
  EXPECT_EQ(b(tensor({1})).item(), a(full({1}, 1, {.dtype = float64})).item());
  EXPECT_TRUE(b.last.weight.is_same(b.first.weight));
}

TEST(Module, OneNameOfATiedParameterIsEnough) {
  Tied net;
  StateDict state = net.state_dict();
  state.erase("first.weight");
  state["last.weight"] = tensor({6});
  net.load_state_dict(state);
  EXPECT_EQ(net.first.weight.item(), 6);
  state["first.weight"] = tensor({7});
  EXPECT_NE(message_of([&] { net.load_state_dict(state); }).find("last.weight: expected the values of first.weight"),
            std::string::npos);
}

TEST(Module, AStateThatDoesNotFitChangesNothing) {
  Tied net;
  StateDict state = net.state_dict();
  state.erase("rest.0.weight");
  state["rest.1.weight"] = zeros({2});
  state["first.offset"] = zeros({1}, {.dtype = int64});
  state["last.offset"] = full({1}, 99);
  state["stray"] = zeros({1});
  const std::string text = message_of([&] { net.load_state_dict(state); });
  for (const char* part : {"missing: rest.0.weight", "rest.1.weight: expected float32 [1] on cpu, got float32 [2]",
                           "first.offset: expected float32", "unexpected: stray"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  EXPECT_EQ(net.last.offset.item(), 1);
  state.erase("first.offset");
  state.erase("rest.1.weight");
  net.load_state_dict(state, false);
  EXPECT_EQ(net.last.offset.item(), 99);
}

TEST(Module, ModesAndFreezing) {
  Tied net;
  EXPECT_TRUE(net.rest[0].is_training());
  net.eval();
  EXPECT_FALSE(net.rest[0].is_training());
  net.train();
  EXPECT_TRUE(net.is_training());
  net.requires_grad_(false);
  EXPECT_FALSE(net(tensor({1})).requires_grad());
  net.requires_grad_();
  net(tensor({1})).backward();
  net.zero_grad();
  EXPECT_FALSE(net.first.weight.grad().defined());
  int modules = 0;
  net.for_each_module([&](const std::string& name, nn::Module&) { modules += name != "none"; });
  EXPECT_EQ(modules, 6);
}

TEST(Module, Refusals) {
  struct Twice : nn::Module {
    Tensor& a = register_parameter("a", tensor({1}));
    Tensor& b = register_buffer("a", tensor({1}));
  };
  message_of([] { Twice(); });
  struct Unnamed : nn::Module {
    Scale& a = register_module("", Scale(1));
  };
  message_of([] { Unnamed(); });
  message_of([] { nn::Sequential(Scale(1))[1]; });
  message_of([] { nn::Module().forward({}); });
  EXPECT_TRUE(same(nn::Sequential()(tensor({3})), tensor({3})));
}

TEST(Init, Distributions) {
  manual_seed(5);
  const Tensor w = zeros({64, 32, 3, 3}).requires_grad_();
  const auto moments = [&] {
    const Tensor d = w.detach().to(float64);
    const double m = mean(d).item();
    return std::pair{m, std::sqrt(mean((d - m) * (d - m)).item())};
  };
  const double fan_in = 32 * 9, fan_out = 64 * 9;
  EXPECT_EQ(nn::init::fan_of(w).in, fan_in);
  EXPECT_EQ(nn::init::fan_of(w).out, fan_out);
  const auto check = [&](double std) {
    const auto [m, s] = moments();
    EXPECT_NEAR(m, 0, 0.03 * std);
    EXPECT_NEAR(s, std, 0.02 * std);
    EXPECT_GT(std::abs(s - 1.1 * std), 0.02 * std);
  };
  nn::init::kaiming_uniform_(w, std::sqrt(5.0));
  check(std::sqrt(1 / (3 * fan_in)));
  EXPECT_LE(amax(abs(w.detach())).item(), 1 / std::sqrt(fan_in));
  nn::init::kaiming_normal_(w, 0, nn::init::FanMode::Out);
  check(std::sqrt(2 / fan_out));
  nn::init::xavier_uniform_(w, 2);
  check(2 * std::sqrt(2 / (fan_in + fan_out)));
  nn::init::xavier_normal_(w);
  check(std::sqrt(2 / (fan_in + fan_out)));
  nn::init::normal_(w, 0, 0.5);
  check(0.5);
  nn::init::constant_(w, 3);
  EXPECT_EQ(amin(w.detach()).item(), 3);
  EXPECT_TRUE(w.requires_grad());
  message_of([] { nn::init::xavier_normal_(zeros({3})); });
}

}  // namespace
}  // namespace halo::testing
