// Learning-rate schedules. Steps are updates of the optimiser, counted from 0.
#pragma once

#include <halo/optim/optimizer.h>

#include <cstdint>
#include <functional>

namespace halo::optim {

/// The factor on the initial learning rate after so many steps. A pure function, so that resuming needs the step alone.
using Schedule = std::function<double(int64_t step)>;

/// gamma^(step / step_size), whole steps. @throws ArgumentError for a step_size below 1.
Schedule step_schedule(int64_t step_size, double gamma = 0.1);

struct CosineOptions {
  int64_t steps = 1;         ///< of the whole run, warm-up included
  int64_t warmup_steps = 0;  ///< straight from `warmup_start` to 1
  double warmup_start = 0;
  double end = 0;  ///< where the cosine ends, and stays
};
/// Warm-up, then half a cosine down (Loshchilov and Hutter, "SGDR", ICLR 2017). @throws ArgumentError unless
/// 0 <= warmup_steps <= steps and steps >= 1.
Schedule cosine_schedule(const CosineOptions& options);

struct OneCycleOptions {
  int64_t steps = 1;
  double warmup_share = 0.3;  ///< of `steps`
  double start = 1.0 / 25;    ///< factor at step 0
  double end = 1.0 / 250000;  ///< factor at the last step
};
/// Half a cosine up to 1, then down (Smith and Topin, "Super-convergence", 2018). The optimiser's initial learning rate
/// is the largest one. @throws ArgumentError for steps below 1 or a warmup_share outside [0, 1].
Schedule one_cycle_schedule(const OneCycleOptions& options);

/// Sets the learning rate of every group to its initial one times a schedule's factor.
class Scheduler {
 public:
  /// Sets the rate of step 0. `optimizer` must outlive this.
  Scheduler(Optimizer& optimizer, Schedule schedule);
  /// To be called after each optimiser step.
  void step() { set_step(step_ + 1); }
  /// Goes to a step: how a resumed run goes on. @throws ArgumentError for a negative one.
  void set_step(int64_t step);
  int64_t current_step() const { return step_; }

 private:
  Optimizer& optimizer_;
  Schedule schedule_;
  int64_t step_ = 0;
};

struct PlateauOptions {
  double factor = 0.1;      ///< on the learning rate, each time
  int64_t patience = 10;    ///< calls without improvement that are still allowed
  double threshold = 1e-4;  ///< an improvement is better than the best by this share of it
  int64_t cooldown = 0;     ///< calls after a cut that count nothing
  double min_lr = 0;
  bool maximize = false;  ///< larger is better
};

/// Cuts the learning rate when a metric stops getting better. NaN is never better.
class ReduceOnPlateau {
 public:
  /// @throws ArgumentError for a factor outside (0, 1).
  explicit ReduceOnPlateau(Optimizer& optimizer, const PlateauOptions& options = {});
  void step(double metric);
  /// What a checkpoint stores: `best`, `bad_calls`, `cooldown_left`.
  StateDict state_dict() const;
  /// @throws ArgumentError naming what is missing.
  void load_state_dict(const StateDict& state);

 private:
  Optimizer& optimizer_;
  PlateauOptions options_;
  double best_;
  int64_t bad_calls_ = 0, cooldown_left_ = 0;
};

}  // namespace halo::optim
