#include <halo/core/error.h>
#include <halo/ops/long_conv_problem.h>

#include <limits>
#include <span>

namespace halo {
namespace {

std::string show(std::span<const int64_t> values) {
  std::string text = "[";
  for (std::size_t i = 0; i < values.size(); ++i) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}

void check_shape(const char* op, const char* argument, const std::vector<int64_t>& shape, std::size_t rank,
                 const char* axes) {
  if (shape.size() != rank) fail(op, ": ", argument, " expects ", rank, " axes ", axes, ", got ", show(shape));
  int64_t numel = 1;
  bool empty = false;
  for (int64_t extent : shape) {
    if (extent < 0) fail(op, ": ", argument, " expects extents of 0 or more, got ", show(shape));
    empty = empty || extent == 0;
  }
  for (int64_t extent : shape) {
    if (empty) break;
    if (extent > std::numeric_limits<int64_t>::max() / numel) {
      fail(op, ": ", argument, " expects fewer than 2^63 elements, got ", show(shape));
    }
    numel *= extent;
  }
}

}  // namespace

LongConvProblem LongConvProblem::make(const char* op, const std::vector<int64_t>& x_shape,
                                      const std::vector<int64_t>& w_shape, bool causal) {
  check_shape(op, "input", x_shape, 3, "[B, H, L]");
  check_shape(op, "weight", w_shape, 2, "[H, K]");
  if (w_shape[0] != x_shape[1]) {
    fail(op, ": weight expects ", x_shape[1], " channels (input ", show(x_shape), ") but has ", w_shape[0], " (weight ",
         show(w_shape), ")");
  }
  if (w_shape[1] < 1) fail(op, ": weight expects at least one tap, got ", show(w_shape));
  return {x_shape[0], x_shape[1], x_shape[2], w_shape[1], causal};
}

double LongConvProblem::bytes(std::size_t element_size) const {
  return static_cast<double>(element_size) * (2.0 * static_cast<double>(x_numel()) + static_cast<double>(w_numel()));
}

std::string LongConvProblem::str() const {
  return concat("long_conv x[", batch, ",", channels, ",", length, "] w[", channels, ",", kernel, "] ",
                causal ? "causal" : "two-sided");
}

std::size_t hash_value(const LongConvProblem& p) {
  std::size_t seed = 0;
  for (int64_t v : {p.batch, p.channels, p.length, p.kernel, static_cast<int64_t>(p.causal)}) {
    seed ^= static_cast<std::size_t>(v) + 0x9e3779b97f4a7c15ULL + (seed << 6) + (seed >> 2);
  }
  return seed;
}

}  // namespace halo
