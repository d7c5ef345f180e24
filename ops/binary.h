// Elementwise functions of two arguments, with broadcasting. Any strides; the result is dense.
#pragma once

#include <halo/core/tensor.h>

namespace halo {

/// Arithmetic gives the operands' dtype; comparisons give bool. Maximum and minimum pass NaN on. Integer division
/// truncates, and by zero gives 0.
enum class BinaryOp : uint8_t {
  Add,
  Sub,
  Mul,
  Div,
  Pow,
  Maximum,
  Minimum,
  Equal,
  NotEqual,
  Less,
  LessEqual,
  Greater,
  GreaterEqual,
  And,
  Or
};

bool is_comparison(BinaryOp op);
/// The function that people call: "add", "maximum", "eq", "logical_and".
const char* name(BinaryOp op);

namespace ops {

/// op(a, b), shapes broadcast. Operands of one dtype and device.
Tensor binary(BinaryOp op, const Tensor& a, const Tensor& b);
/// condition ? a : b, shapes broadcast; condition is bool. a and b of one dtype and device.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);

}  // namespace ops
}  // namespace halo
