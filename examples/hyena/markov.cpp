#include "markov.h"

#include <halo/data/fasta.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

namespace example {
namespace {

int code(char base) {
  switch (base) {
    case 'A': return 0;
    case 'C': return 1;
    case 'G': return 2;
    case 'T': return 3;
    default: return -1;
  }
}

/// Calls f(context and base as one number of order + 1 digits) for every position with a whole context.
template <class F>
void for_each_word(const std::string& sequence, int order, F&& f) {
  const uint64_t mask = (uint64_t{1} << (2 * (order + 1))) - 1;
  uint64_t word = 0;
  int known = 0;
  for (char base : sequence) {
    const int c = code(base);
    known = c < 0 ? 0 : known + 1;
    word = ((word << 2) | static_cast<uint64_t>(c < 0 ? 0 : c)) & mask;
    if (known > order) f(word);
  }
}

}  // namespace

MarkovResult markov_baseline(const std::string& training, const std::string& held_out, int order) {
  std::vector<uint32_t> counts(std::size_t{1} << (2 * (order + 1)), 0);
  for_each_word(training, order, [&](uint64_t w) { ++counts[w]; });
  const std::string other = halo::data::reverse_complement(training);
  for_each_word(other, order, [&](uint64_t w) { ++counts[w]; });
  constexpr std::array<double, 9> kSmoothings{0.01, 0.1, 0.5, 1, 2, 4, 8, 16, 32};
  std::array<double, kSmoothings.size()> nats{};
  int64_t positions = 0;
  for_each_word(held_out, order, [&](uint64_t w) {
    const uint64_t first = w & ~uint64_t{3};
    const double total = static_cast<double>(counts[first]) + counts[first + 1] + counts[first + 2] + counts[first + 3];
    for (std::size_t i = 0; i < kSmoothings.size(); ++i) {
      nats[i] -= std::log((counts[w] + kSmoothings[i]) / (total + 4 * kSmoothings[i]));
    }
    ++positions;
  });
  MarkovResult best{order, 0, INFINITY};
  for (std::size_t i = 0; i < kSmoothings.size(); ++i) {
    const double bits = nats[i] / std::log(2.0) / static_cast<double>(positions);
    if (bits < best.bits) best = {order, kSmoothings[i], bits};
  }
  return best;
}

MarkovResult best_markov_baseline(const std::string& training, const std::string& held_out, int largest_order) {
  MarkovResult best{0, 0, INFINITY};
  for (int order = 1; order <= largest_order; ++order) {
    const MarkovResult result = markov_baseline(training, held_out, order);
    if (result.bits < best.bits) best = result;
  }
  return best;
}

}  // namespace example
