#include <halo/core/error.h>
#include <halo/optim/schedule.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

namespace halo::optim {
namespace {

/// Half a cosine from `from` (share 0) to `to` (share 1).
double half_cosine(double from, double to, double share) {
  return to + (from - to) * 0.5 * (1 + std::cos(std::numbers::pi * std::clamp(share, 0.0, 1.0)));
}

/// How far `step` is from `begin` to `end`; 1 where they are one point.
double share_of(double step, double begin, double end) { return end > begin ? (step - begin) / (end - begin) : 1.0; }

}  // namespace

Schedule step_schedule(int64_t step_size, double gamma) {
  if (step_size < 1) fail("step_schedule: step_size expected at least 1, got ", step_size);
  return [=](int64_t step) {
    const int64_t whole = step / step_size;
    return std::pow(gamma, static_cast<double>(whole));
  };
}

Schedule cosine_schedule(const CosineOptions& o) {
  if (o.warmup_steps < 0 || o.steps < 1 || o.warmup_steps > o.steps) {
    fail("cosine_schedule: expected 0 <= warmup_steps <= steps and steps of at least 1, got ", o.warmup_steps, " and ",
         o.steps);
  }
  return [o](int64_t step) {
    if (step < o.warmup_steps) {
      return o.warmup_start + (1 - o.warmup_start) * static_cast<double>(step) / static_cast<double>(o.warmup_steps);
    }
    return half_cosine(
        1, o.end,
        share_of(static_cast<double>(step), static_cast<double>(o.warmup_steps), static_cast<double>(o.steps)));
  };
}

Schedule one_cycle_schedule(const OneCycleOptions& o) {
  if (o.steps < 1) fail("one_cycle_schedule: steps expected at least 1, got ", o.steps);
  if (!(o.warmup_share >= 0 && o.warmup_share <= 1)) {
    fail("one_cycle_schedule: warmup_share expected in [0, 1], got ", o.warmup_share);
  }
  return [o](int64_t step) {
    const auto at = static_cast<double>(step), last = static_cast<double>(o.steps - 1);
    const double top = std::max(0.0, o.warmup_share * static_cast<double>(o.steps) - 1);
    return at <= top ? half_cosine(o.start, 1, share_of(at, 0, top)) : half_cosine(1, o.end, share_of(at, top, last));
  };
}

Scheduler::Scheduler(Optimizer& optimizer, Schedule schedule) : optimizer_(optimizer), schedule_(std::move(schedule)) {
  set_step(0);
}

void Scheduler::set_step(int64_t step) {
  if (step < 0) fail("Scheduler: step expected 0 or more, got ", step);
  step_ = step;
  const double factor = schedule_(step);
  for (int i = 0; i < optimizer_.groups(); ++i) optimizer_.set_lr(optimizer_.initial_lr(i) * factor, i);
}

ReduceOnPlateau::ReduceOnPlateau(Optimizer& optimizer, const PlateauOptions& options)
    : optimizer_(optimizer),
      options_(options),
      best_(options.maximize ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity()) {
  if (!(options.factor > 0 && options.factor < 1)) {
    fail("ReduceOnPlateau: factor expected between 0 and 1, got ", options.factor);
  }
}

void ReduceOnPlateau::step(double metric) {
  const double margin = std::isfinite(best_) ? std::abs(best_) * options_.threshold : 0;
  const bool better = options_.maximize ? metric > best_ + margin : metric < best_ - margin;
  if (better) {
    best_ = metric;
    bad_calls_ = 0;
  } else {
    ++bad_calls_;
  }
  if (cooldown_left_ > 0) {
    --cooldown_left_;
    bad_calls_ = 0;
  }
  if (bad_calls_ <= options_.patience) return;
  for (int i = 0; i < optimizer_.groups(); ++i) {
    const double lr = optimizer_.lr(i);
    if (lr > options_.min_lr) optimizer_.set_lr(std::max(options_.min_lr, lr * options_.factor), i);
  }
  cooldown_left_ = options_.cooldown;
  bad_calls_ = 0;
}

StateDict ReduceOnPlateau::state_dict() const {
  return {{"best", full({}, best_, {.dtype = DType::Float64})},
          {"bad_calls", full({}, bad_calls_, {.dtype = DType::Int64})},
          {"cooldown_left", full({}, cooldown_left_, {.dtype = DType::Int64})}};
}

void ReduceOnPlateau::load_state_dict(const StateDict& state) {
  const auto number = [&](const char* name) {
    const auto found = state.find(name);
    if (found == state.end()) fail("ReduceOnPlateau: load_state_dict: ", name, " is missing");
    return found->second.item();
  };
  const double best = number("best"), bad_calls = number("bad_calls"), cooldown_left = number("cooldown_left");
  best_ = best;
  bad_calls_ = static_cast<int64_t>(bad_calls);
  cooldown_left_ = static_cast<int64_t>(cooldown_left);
}

}  // namespace halo::optim
