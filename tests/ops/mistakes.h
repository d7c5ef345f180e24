// Calls that are wrong: an error begins with the name of the function that the caller wrote, whichever shared helper
// found the mistake.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/testing.h"

namespace halo::testing {

struct Mistake {
  const char* function;
  std::function<void()> call;
};

inline void expect_names(const std::vector<Mistake>& mistakes) {
  for (std::size_t i = 0; i < mistakes.size(); ++i) {
    const std::string text = message_of(mistakes[i].call), start = concat(mistakes[i].function, ": ");
    EXPECT_TRUE(text.starts_with(start)) << i << ": expected \"" << start << "\", got: " << text;
  }
}

}  // namespace halo::testing
