// Every op family as a row of one table, for properties that all of them must have.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/testing.h"

namespace halo::testing {

using Tensors = std::vector<Tensor>;

/// A differentiable function at a size n, which stands on the axis that its tiles, vectors or rows are cut along.
struct Family {
  std::string name;
  /// Operands for size n, in float64 on the CPU (integer ones in their own type); floating ones get gradients.
  std::function<Tensors(int64_t n)> operands;
  std::function<Tensor(const Tensors&)> f;
  /// Sizes at and on both sides of the edges of tiles; 0 and 1 where the function has them.
  std::vector<int64_t> sizes;
  /// Operand 0 and the result have samples on axis 0 that do not see each other.
  bool samples = true;
  /// Between devices, relative, in float32; 0 where the results are copies or small exact numbers.
  double bound = 4e-6;
  /// Between layouts of the operands, relative, in float32; 0 asks for the same bits.
  double layouts = 0;
  /// NaN and infinities come out in the same places on every device.
  bool special = true;
};

const std::vector<Family>& families();
/// The rows of families_fused.cpp.
void add_fused(std::vector<Family>& all);

}  // namespace halo::testing
