// What a person watches while a program trains: one moving line on a terminal, plain lines anywhere else.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace example {

class Progress {
 public:
  /// `total` steps; `unit` is what the rate counts ("images"), `per_step` of them a step.
  Progress(std::string title, int64_t total, std::string unit, int64_t per_step);
  ~Progress();
  /// Call after each step. `text` is shown behind the loss.
  void step(int64_t done, double loss, const std::string& text = "");
  /// Ends the line and says how long it took.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  std::string title_, unit_;
  int64_t total_, per_step_, started_at_ = -1;
  Clock::time_point start_, shown_;
  bool terminal_, finished_ = false;
};

/// Length warm-up: `first` (at least 1), doubled every `every` steps, up to `full`; `full` where `every` is 0.
int64_t warmed_up(int64_t full, int64_t first, int64_t every, int64_t step);

/// "1 h 02 min", "3 min 20 s", "12 s".
std::string duration(double seconds);

}  // namespace example
