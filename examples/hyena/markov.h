// The baseline a DNA model must beat: an order-k Markov chain, counted on both strands.
#pragma once

#include <string>

namespace example {

struct MarkovResult {
  int order = 0;
  double smoothing = 0;  ///< added to every count; the best of a few
  double bits = 0;       ///< per base, on the held-out sequence
};

/// Counts on `training` and its reverse complement, cross-entropy on `held_out` (A, C, G, T; other letters are skipped
/// with the k bases after them). 4^(k+1) counts of four bytes are kept: 268 MB for k = 12.
MarkovResult markov_baseline(const std::string& training, const std::string& held_out, int order);

/// The best order from 1 to `largest_order`.
MarkovResult best_markov_baseline(const std::string& training, const std::string& held_out, int largest_order);

}  // namespace example
