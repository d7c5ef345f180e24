#include <halo/core/copy.h>
#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/multinomial.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace halo {
namespace {

void check_row(const double* row, int64_t classes, int64_t number, int64_t needed) {
  int64_t positive = 0;
  for (int64_t c = 0; c < classes; ++c) {
    if (!(row[c] >= 0 && std::isfinite(row[c]))) {
      fail("multinomial: weights expected 0 or more and finite, got ", row[c], " for class ", c, " of row ", number);
    }
    positive += row[c] > 0;
  }
  if (positive < needed) {
    fail("multinomial: row ", number, " expected at least ", needed, " classes with a positive weight, got ", positive);
  }
}

/// The class in whose part of [0, total) each draw falls.
void draw_with_replacement(const double* row, int64_t classes, int64_t samples, PhiloxState state, uint64_t first,
                           int64_t* out) {
  std::vector<double> ends(static_cast<std::size_t>(classes));
  std::partial_sum(row, row + classes, ends.begin());
  int64_t last = classes - 1;  // the last class that has a part
  while (row[last] == 0) --last;
  for (int64_t s = 0; s < samples; ++s) {
    const double at = random_uniform64(state, first + static_cast<uint64_t>(s)) * ends.back();
    const auto found = std::upper_bound(ends.begin(), ends.end(), at) - ends.begin();
    out[s] = std::min<int64_t>(found, last);
  }
}

/// Each class waits for an exponentially distributed time with its weight as the rate; the first ones are drawn.
/// Source: Efraimidis, Spirakis, "Weighted random sampling with a reservoir", Information Processing Letters 97, 2006.
void draw_without_replacement(const double* row, int64_t classes, int64_t samples, PhiloxState state, uint64_t first,
                              int64_t* out) {
  std::vector<double> times(static_cast<std::size_t>(classes));
  std::vector<int64_t> order(times.size());
  for (int64_t c = 0; c < classes; ++c) {
    const double uniform = 1 - random_uniform64(state, first + static_cast<uint64_t>(c));  // (0, 1]
    times[static_cast<std::size_t>(c)] = row[c] > 0 ? -std::log(uniform) / row[c] : INFINITY;
  }
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return times[static_cast<std::size_t>(a)] < times[static_cast<std::size_t>(b)];
  });
  std::copy_n(order.begin(), samples, out);
}

}  // namespace

Tensor multinomial(const Tensor& weights, int64_t samples, bool replacement, Generator& generator) {
  check_defined("multinomial", {{"weights", weights}});
  if (!is_floating_point(weights.dtype()) || weights.rank() < 1 || weights.rank() > 2) {
    fail("multinomial: weights expected [classes] or [rows, classes] of a floating dtype, got ", weights.describe());
  }
  if (samples < 0) fail("multinomial: num_samples expected 0 or more, got ", samples);
  const int64_t classes = weights.size(-1), rows = weights.rank() == 2 ? weights.size(0) : 1;
  const Tensor host = view::dense(convert(weights, DType::Float64, Device::cpu()));
  for (int64_t r = 0; r < rows; ++r) {
    check_row(host.data<double>() + r * classes, classes, r, replacement ? std::min<int64_t>(1, samples) : samples);
  }
  Shape shape = weights.shape();
  shape[shape.rank() - 1] = samples;
  const Tensor out = empty(shape, {.dtype = DType::Int64});
  const int64_t draws = replacement ? samples : classes;  // of a row
  const PhiloxState state = generator.reserve(static_cast<uint64_t>(rows * draws));
  const auto draw = replacement ? draw_with_replacement : draw_without_replacement;
  for (int64_t r = 0; r < rows && samples > 0; ++r) {
    draw(host.data<double>() + r * classes, classes, samples, state, static_cast<uint64_t>(r * draws),
         out.data<int64_t>() + r * samples);
  }
  return convert(out, DType::Int64, weights.device());
}

}  // namespace halo
