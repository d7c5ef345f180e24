// Time of a function on a device, by the wall clock.
#pragma once

#include <halo/core/device.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

namespace halo::bench {

/// Median milliseconds a call, over seven rounds of `calls` after `warmup` calls.
inline double median_ms(Device device, int calls, int warmup, const std::function<void()>& body) {
  using Clock = std::chrono::steady_clock;
  constexpr int kRounds = 7;
  for (int i = 0; i < warmup; ++i) body();
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    synchronize(device);
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) body();
    synchronize(device);
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count() / calls);
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

}  // namespace halo::bench
