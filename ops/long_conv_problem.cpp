#include <halo/core/error.h>
#include <halo/ops/long_conv_problem.h>

#include "extents.h"

namespace halo {
namespace {

void check_axes(const char* op, const char* argument, const Shape& shape, int rank, const char* axes) {
  if (shape.rank() != rank) fail(op, ": ", argument, " expects ", rank, " axes ", axes, ", got ", shape);
  for (int64_t extent : shape) {
    if (extent < 0) fail(op, ": ", argument, " expects extents of 0 or more, got ", shape);
  }
  extents::product(op, argument, shape);
}

}  // namespace

LongConvProblem LongConvProblem::make(const char* op, const Shape& x_shape, const Shape& w_shape, bool causal) {
  check_axes(op, "input", x_shape, 3, "[B, H, L]");
  check_axes(op, "weight", w_shape, 2, "[H, K]");
  if (w_shape[0] != x_shape[1]) {
    fail(op, ": weight expects ", x_shape[1], " channels (input ", x_shape, ") but has ", w_shape[0], " (weight ",
         w_shape, ")");
  }
  if (w_shape[1] < 1) fail(op, ": weight expects at least one tap, got ", w_shape);
  return {x_shape[0], x_shape[1], x_shape[2], w_shape[1], causal};
}

double LongConvProblem::bytes(std::size_t element_size) const {
  return static_cast<double>(element_size) * (2.0 * static_cast<double>(x_numel()) + static_cast<double>(w_numel()));
}

std::string LongConvProblem::str() const {
  return concat("long_conv x[", batch, ",", channels, ",", length, "] w[", channels, ",", kernel, "] ",
                causal ? "causal" : "two-sided");
}

}  // namespace halo
