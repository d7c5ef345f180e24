#include <filesystem>

#include "tests/testing.h"

namespace halo::testing {
namespace {

using namespace optim;
using Tensors = std::vector<Tensor>;

const TensorOptions kDouble{.dtype = DType::Float64};

/// A parameter with a gradient.
Tensor with_grad(const std::vector<double>& values, const std::vector<double>& grad, DType dtype = float64) {
  const Shape shape{static_cast<int64_t>(values.size())};
  const Tensor param = leaf(from_vector(values, shape).to(dtype));
  param.set_grad(from_vector(grad, shape).to(dtype));
  return param;
}

Tensor doubles(const std::vector<double>& values) { return from_vector(values, {static_cast<int64_t>(values.size())}); }

TEST(SGD, Plain) {
  const Tensor p = with_grad({1, -2}, {0.5, 4});
  SGD sgd({p}, {.lr = 0.1});
  sgd.step();
  EXPECT_TRUE(near(p, doubles({0.95, -2.4}), 1e-15));
  EXPECT_FALSE(near(p, doubles({0.95, -2.3}), 1e-15));
}

TEST(SGD, MomentumNesterovAndDecayByHand) {
  for (bool nesterov : {false, true}) {
    const Tensor p = with_grad({1}, {0.5});
    SGD sgd({p}, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = nesterov});
    double value = 1, velocity = 0;
    for (int i = 0; i < 5; ++i) {
      const double g = 0.5 + 0.01 * value;
      velocity = 0.9 * velocity + g;
      value -= 0.1 * (nesterov ? g + 0.9 * velocity : velocity);
      sgd.step();
      EXPECT_NEAR(p.item(), value, 1e-14);
    }
  }
  EXPECT_NE(message_of([] { SGD({with_grad({1}, {1})}, {.nesterov = true}); }).find("momentum"), std::string::npos);
}

TEST(Adam, ByHand) {
  for (bool decoupled : {false, true}) {
    const Tensor p = with_grad({1}, {0.5});
    const std::unique_ptr<Adam> adam =
        decoupled ? std::make_unique<AdamW>(Tensors{p}, AdamWOptions{.lr = 0.1, .weight_decay = 0.1})
                  : std::make_unique<Adam>(Tensors{p}, AdamOptions{.lr = 0.1, .weight_decay = 0.1});
    double value = 1, m = 0, v = 0;
    for (int t = 1; t <= 7; ++t) {
      const double upstream = std::sin(t);
      p.set_grad(doubles({upstream}));
      double g = upstream;
      if (decoupled) {
        value -= 0.1 * 0.1 * value;
      } else {
        g += 0.1 * value;
      }
      m = 0.9 * m + 0.1 * g;
      v = 0.999 * v + 0.001 * g * g;
      const double m_hat = m / (1 - std::pow(0.9, t)), v_hat = v / (1 - std::pow(0.999, t));
      value -= 0.1 * m_hat / (std::sqrt(v_hat) + 1e-8);
      adam->step();
      EXPECT_NEAR(p.item(), value, 1e-13) << t << decoupled;
    }
  }
}

TEST(Adam, AdamWHasPyTorchsDecay) {
  const Tensor p = with_grad({1}, {0});
  AdamW adamw({p}, {.lr = 0.5});
  adamw.step();
  EXPECT_NEAR(p.item(), 1 - 0.5 * 0.01, 1e-15);
}

TEST(Optimizer, HalfParametersAreRefusedAtOnce) {
  const Tensor half = leaf(ones({3}).to(bfloat16));
  EXPECT_NE(message_of([&] { SGD({half}); }).find("SGD: params expected float32 or float64, got bfloat16 [3]"),
            std::string::npos);
  EXPECT_NE(message_of([&] { AdamW({half}); }).find("AdamW"), std::string::npos);
  const Tensor later = with_grad({1}, {1});
  SGD sgd({later});
  later.set_data(ones({1}).to(float16));
  later.set_grad(ones({1}).to(float16));
  EXPECT_NE(message_of([&] { sgd.step(); }).find("float16 [1]"), std::string::npos);
}

TEST(Optimizer, Float32AndStridedParameters) {
  manual_seed(3);
  const Tensor value = randn({5, 7}), grad = randn({5, 7});
  const Tensor dense = leaf(value);
  dense.set_grad(grad);
  const Tensor buffer = zeros({7, 5});
  const Tensor strided = buffer.detach().transpose(0, 1);
  strided.copy_(value);
  strided.requires_grad_();
  strided.set_grad(strided_copy(grad));
  Adam a({dense}), b({strided});
  SGD c({dense}, {.momentum = 0.5}), d({strided}, {.momentum = 0.5});
  for (int i = 0; i < 3; ++i) {
    for (Optimizer* optimizer : std::vector<Optimizer*>{&a, &b, &c, &d}) optimizer->step();
  }
  EXPECT_TRUE(same(strided, dense));
  EXPECT_FALSE(same(dense, value));
}

TEST(Optimizer, OnlyParametersWithAGradientMove) {
  const Tensor a = with_grad({1}, {1}), b = leaf(doubles({1})), empty = leaf(zeros({0, 3}, kDouble));
  empty.set_grad(zeros({0, 3}, kDouble));
  Adam adam({a, b, empty});
  adam.step();
  EXPECT_NE(a.item(), 1);
  EXPECT_EQ(b.item(), 1);
  adam.zero_grad();
  EXPECT_FALSE(a.grad().defined());
  const double before = a.item();
  adam.step();
  EXPECT_EQ(a.item(), before);
  EXPECT_FALSE(adam.state_dict().contains("state.1.step"));
}

TEST(Optimizer, GroupsHaveTheirOwnOptions) {
  const Tensor a = with_grad({1}, {1}), b = with_grad({1}, {1});
  SGD sgd({{{a}, {.lr = 0.5}}, {{b}, {.lr = 0.25}}});
  EXPECT_EQ(sgd.groups(), 2);
  EXPECT_EQ(sgd.lr(1), 0.25);
  sgd.set_lr(0.125, 1);
  EXPECT_EQ(sgd.initial_lr(1), 0.25);
  sgd.step();
  EXPECT_EQ(a.item(), 0.5);
  EXPECT_EQ(b.item(), 0.875);
  EXPECT_NE(message_of([&] { sgd.lr(2); }).find("below 2"), std::string::npos);
}

TEST(Optimizer, Refusals) {
  const Tensor p = with_grad({1}, {1});
  message_of([&] { SGD({p, p}); });
  message_of([&] { SGD({Tensor()}); });
  message_of([&] { SGD({zeros({1}, {.dtype = int64})}); });
  message_of([&] { SGD({p * 2}); });
  message_of([&] { Adam({p}, {.beta1 = 1}); });
  const Tensor wide = zeros({1}).expand({3}).requires_grad_();
  wide.set_grad(ones({3}));
  SGD sgd({wide});
  EXPECT_NE(message_of([&] { sgd.step(); }).find("expanded"), std::string::npos);
}

// A value that backward needs was changed by the step: backward must notice.
TEST(Optimizer, AStepCountsAsAChange) {
  const Tensor p = leaf(tensor({2}));
  const Tensor y = p * p;
  p.set_grad(tensor({1}));
  SGD sgd({p});
  sgd.step();
  message_of([&] { sum(y).backward(); });
}

/// Trains a small model for `steps`, stopping halfway to save and load everything when `resume`.
std::vector<double> train(bool resume, int64_t steps) {
  manual_seed(11);
  Tensor w = leaf(randn({3, 5})), b = leaf(zeros({5}));
  auto make = [&] { return std::make_unique<AdamW>(std::vector<Tensor>{w, b}, AdamWOptions{.lr = 0.05}); };
  auto adam = make();
  auto schedule = std::make_unique<Scheduler>(*adam, cosine_schedule({.steps = steps, .warmup_steps = 3}));
  const auto path = std::filesystem::temp_directory_path() / ("halo_resume_" + std::to_string(std::rand()));
  for (int64_t step = 0; step < steps; ++step) {
    if (resume && step == steps / 2) {
      save_checkpoint(path.string(), {.model = {{"w", w}, {"b", b}},
                                      .optimizer = adam->state_dict(),
                                      .generator = default_generator().state(),
                                      .step = step});
      manual_seed(999);  // what the new process would have
      const Checkpoint loaded = load_checkpoint(path.string());
      std::filesystem::remove(path);
      w = leaf(loaded.model.at("w"));
      b = leaf(loaded.model.at("b"));
      adam = make();
      adam->load_state_dict(loaded.optimizer);
      default_generator().set_state(loaded.generator);
      schedule = std::make_unique<Scheduler>(*adam, cosine_schedule({.steps = steps, .warmup_steps = 3}));
      schedule->set_step(loaded.step);
    }
    const Tensor x = randn({3, 1});
    adam->zero_grad();
    sum((sin(w * x + b) - 0.5) * (w + b)).backward();
    adam->step();
    schedule->step();
  }
  std::vector<double> values = w.to_vector<double>();
  values.push_back(sum(b).item());
  return values;
}

TEST(Optimizer, ResumingIsBitwise) {
  const auto whole = train(false, 10);
  EXPECT_EQ(whole, train(true, 10));
  EXPECT_NE(whole, train(true, 11));
}

TEST(Optimizer, AStateThatDoesNotFitChangesNothing) {
  const Tensor p = with_grad({1, 2}, {1, 1});
  Adam adam({p}, {.lr = 0.5});
  adam.step();
  StateDict state = adam.state_dict();
  state.erase("state.0.exp_avg");
  state["state.0.exp_avg_sq"] = zeros({3});
  state["other"] = zeros({1});
  state["group.0.lr"] = full({}, 7.0);
  const std::string text = message_of([&] { adam.load_state_dict(state); });
  for (const char* part : {"missing: state.0.exp_avg", "state.0.exp_avg_sq: expected shape [2]", "unexpected: other"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  EXPECT_EQ(adam.lr(), 0.5);
  EXPECT_TRUE(adam.state_dict().contains("state.0.exp_avg"));
}

TEST(Clip, Norm) {
  const Tensor a = with_grad({0, 0}, {3, 0}), b = with_grad({0}, {4}), none = leaf(doubles({1}));
  EXPECT_NEAR(clip_grad_norm_({a, b, none}, 10).item(), 5, 1e-15);
  EXPECT_TRUE(same(a.grad(), doubles({3, 0})));
  EXPECT_NEAR(clip_grad_norm_({a, b, none}, 1).item(), 5, 1e-15);
  EXPECT_TRUE(near(a.grad(), doubles({0.6, 0}), 1e-6));
  EXPECT_TRUE(near(b.grad(), doubles({0.8}), 1e-6));
  EXPECT_NEAR(clip_grad_norm_({a, b}, 0.4, INFINITY).item(), 0.8, 1e-6);
  EXPECT_TRUE(near(b.grad(), doubles({0.4}), 1e-5));
  EXPECT_EQ(clip_grad_norm_({none}, 1).item(), 0);
  message_of([&] { clip_grad_norm_({a}, 1, 3); });
  message_of([&] { clip_grad_norm_({a}, NAN); });
}

// Squares of these pass the largest float32.
TEST(Clip, LargeGradients) {
  const Tensor a = leaf(zeros({2})), b = leaf(zeros({1}));
  a.set_grad(tensor({3e30f, 0}));
  b.set_grad(tensor({4e30f}));
  EXPECT_NEAR(clip_grad_norm_({a, b}, 1).item() / 5e30, 1, 1e-6);
  EXPECT_TRUE(near(a.grad(), tensor({0.6f, 0}), 1e-6));
}

TEST(Clip, Value) {
  const Tensor a = with_grad({0, 0, 0}, {-3, 0.5, NAN});
  clip_grad_value_({a}, 1);
  EXPECT_TRUE(same(a.grad(), doubles({-1, 0.5, NAN})));
}

TEST(Schedules, Values) {
  const Schedule steps = step_schedule(3, 0.5);
  EXPECT_EQ(steps(2), 1);
  EXPECT_EQ(steps(3), 0.5);
  EXPECT_EQ(steps(8), 0.25);
  const Schedule cosine = cosine_schedule({.steps = 12, .warmup_steps = 4, .warmup_start = 0.2, .end = 0.1});
  EXPECT_NEAR(cosine(0), 0.2, 1e-15);
  EXPECT_NEAR(cosine(2), 0.6, 1e-15);
  EXPECT_NEAR(cosine(4), 1, 1e-15);
  EXPECT_NEAR(cosine(8), 0.55, 1e-15);
  EXPECT_NEAR(cosine(12), 0.1, 1e-15);
  EXPECT_NEAR(cosine(100), 0.1, 1e-15);
  const Schedule cycle = one_cycle_schedule({.steps = 11, .warmup_share = 5.0 / 11, .start = 0.1, .end = 0.001});
  EXPECT_NEAR(cycle(0), 0.1, 1e-15);
  EXPECT_NEAR(cycle(2), 0.55, 1e-12);
  EXPECT_NEAR(cycle(4), 1, 1e-15);
  EXPECT_NEAR(cycle(7), (1 + 0.001) / 2, 1e-12);
  EXPECT_NEAR(cycle(10), 0.001, 1e-15);
  message_of([] { step_schedule(0); });
  message_of([] { cosine_schedule({.steps = 3, .warmup_steps = 4}); });
  message_of([] { one_cycle_schedule({.steps = 0}); });
}

TEST(Schedules, SchedulerScalesEveryGroup) {
  const Tensor a = with_grad({1}, {1}), b = with_grad({1}, {1});
  SGD sgd({{{a}, {.lr = 1}}, {{b}, {.lr = 0.1}}});
  Scheduler scheduler(sgd, step_schedule(2, 0.5));
  scheduler.step();
  EXPECT_EQ(sgd.lr(0), 1);
  scheduler.step();
  EXPECT_EQ(sgd.lr(0), 0.5);
  EXPECT_EQ(sgd.lr(1), 0.05);
  scheduler.set_step(0);
  EXPECT_EQ(sgd.lr(1), 0.1);
}

TEST(Schedules, Plateau) {
  const Tensor a = with_grad({1}, {1});
  SGD sgd({a}, {.lr = 1});
  ReduceOnPlateau plateau(sgd, {.factor = 0.5, .patience = 1, .cooldown = 1, .min_lr = 0.2});
  const auto after = [&](double metric) {
    plateau.step(metric);
    return sgd.lr();
  };
  EXPECT_EQ(after(10), 1);
  EXPECT_EQ(after(9), 1);
  EXPECT_EQ(after(9), 1);
  const StateDict state = plateau.state_dict();
  EXPECT_EQ(after(NAN), 0.5);  // the second call without improvement
  EXPECT_EQ(after(9), 0.5);    // cooldown
  EXPECT_EQ(after(9), 0.5);
  EXPECT_EQ(after(8.9999), 0.25);  // better by less than the threshold
  EXPECT_EQ(after(8), 0.25);
  for (int i = 0; i < 9; ++i) plateau.step(9);
  EXPECT_EQ(sgd.lr(), 0.2);
  ReduceOnPlateau resumed(sgd, {.factor = 0.5, .patience = 1});
  resumed.load_state_dict(state);
  resumed.step(9);
  EXPECT_EQ(sgd.lr(), 0.1);
}

}  // namespace
}  // namespace halo::testing
