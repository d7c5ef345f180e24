#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/backend.h>
#include <halo/ops/binary.h>
#include <halo/ops/binary_backend.h>

namespace halo {

bool is_comparison(BinaryOp op) { return op >= BinaryOp::Equal; }

const char* name(BinaryOp op) {
  switch (op) {
    case BinaryOp::Add: return "add";
    case BinaryOp::Sub: return "sub";
    case BinaryOp::Mul: return "mul";
    case BinaryOp::Div: return "div";
    case BinaryOp::Pow: return "pow";
    case BinaryOp::Maximum: return "maximum";
    case BinaryOp::Minimum: return "minimum";
    case BinaryOp::Equal: return "eq";
    case BinaryOp::NotEqual: return "ne";
    case BinaryOp::Less: return "lt";
    case BinaryOp::LessEqual: return "le";
    case BinaryOp::Greater: return "gt";
    case BinaryOp::GreaterEqual: return "ge";
    case BinaryOp::And: return "logical_and";
    case BinaryOp::Or: return "logical_or";
  }
  fail<InternalError>("name: unknown BinaryOp");
}

namespace ops {

Tensor binary(BinaryOp op, const Tensor& a, const Tensor& b) {
  check_same_dtype_and_device(name(op), {{"a", a}, {"b", b}});
  const Shape shape = broadcast_shapes(name(op), a.shape(), b.shape());
  const DType dtype = is_comparison(op) ? DType::Bool : a.dtype();
  Tensor out = empty(shape, {.dtype = dtype, .device = a.device()});
  const Tensor wide_a = view::expand(a, shape), wide_b = view::expand(b, shape);
  run_backend<HalfKernels::Cuda>(name(op), a.device(), cpu::binary, cuda::binary, op, wide_a, wide_b, writes(out));
  return out;
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  check_defined("where", {{"condition", condition}});
  check_same_dtype_and_device("where", {{"a", a}, {"b", b}});
  if (condition.dtype() != DType::Bool || !(condition.device() == a.device())) {
    fail("where: condition expected bool on ", a.device(), ", got ", condition.describe());
  }
  const Shape shape = broadcast_shapes("where", condition.shape(), broadcast_shapes("where", a.shape(), b.shape()));
  Tensor out = empty(shape, a.options());
  const Tensor wide = view::expand(condition, shape), wide_a = view::expand(a, shape), wide_b = view::expand(b, shape);
  run_backend<HalfKernels::Everywhere>("where", a.device(), cpu::where, cuda::where, wide, wide_a, wide_b, writes(out));
  return out;
}

}  // namespace ops
}  // namespace halo
