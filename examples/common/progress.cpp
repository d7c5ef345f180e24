#include "progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include <unistd.h>

namespace example {

int64_t warmed_up(int64_t full, int64_t first, int64_t every, int64_t step) {
  if (every <= 0) return full;
  int64_t length = std::max<int64_t>(1, first);
  for (int64_t s = every; s <= step && length < full; s += every) length *= 2;
  return std::min(length, full);
}

std::string duration(double seconds) {
  const auto s = static_cast<int64_t>(std::lround(std::max(0.0, seconds)));
  char text[64];
  if (s >= 3600) {
    std::snprintf(text, sizeof text, "%d h %02d min", static_cast<int>(s / 3600), static_cast<int>(s / 60 % 60));
  } else if (s >= 60) {
    std::snprintf(text, sizeof text, "%d min %02d s", static_cast<int>(s / 60), static_cast<int>(s % 60));
  } else {
    std::snprintf(text, sizeof text, "%d s", static_cast<int>(s));
  }
  return text;
}

Progress::Progress(std::string title, int64_t total, std::string unit, int64_t per_step)
    : title_(std::move(title)),
      unit_(std::move(unit)),
      total_(total),
      per_step_(per_step),
      start_(Clock::now()),
      shown_(start_ - std::chrono::hours(1)),
      terminal_(isatty(STDOUT_FILENO) != 0) {}

Progress::~Progress() { finish(); }

void Progress::step(int64_t done, double loss, const std::string& text) {
  const auto now = Clock::now();
  if (started_at_ < 0) started_at_ = done - 1;
  const double pause = std::chrono::duration<double>(now - shown_).count();
  if (pause < (terminal_ ? 0.1 : 10.0) && done != total_) return;
  shown_ = now;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const auto steps = static_cast<double>(done - started_at_);
  const double rate = elapsed > 0 ? steps * static_cast<double>(per_step_) / elapsed : 0;
  const double left = steps > 0 ? elapsed / steps * static_cast<double>(total_ - done) : 0;
  const double share = static_cast<double>(done) / static_cast<double>(std::max<int64_t>(1, total_));
  if (terminal_) {
    constexpr int kWidth = 24;
    const int filled = static_cast<int>(share * kWidth);
    std::string bar;
    for (int i = 0; i < kWidth; ++i) bar += i < filled ? "\u2588" : "\u2591";
    std::printf("\r\033[2K%s %s %3.0f%%  loss %.4f  %.0f %s/s  %s left  %s", title_.c_str(), bar.c_str(), 100 * share,
                loss, rate, unit_.c_str(), duration(left).c_str(), text.c_str());
  } else {
    std::printf("%s %3.0f%%  step %lld/%lld  loss %.4f  %.0f %s/s  %s left  %s\n", title_.c_str(), 100 * share,
                static_cast<long long>(done), static_cast<long long>(total_), loss, rate, unit_.c_str(),
                duration(left).c_str(), text.c_str());
  }
  std::fflush(stdout);
}

void Progress::finish() {
  if (std::exchange(finished_, true)) return;
  const double elapsed = std::chrono::duration<double>(Clock::now() - start_).count();
  if (terminal_) std::printf("\n");
  std::printf("%s done in %s\n", title_.c_str(), duration(elapsed).c_str());
  std::fflush(stdout);
}

}  // namespace example
