// One line of a problem file as a ConvProblem.
#pragma once

#include <halo/ops/conv_problem.h>

#include <cstdint>
#include <string>
#include <vector>

namespace halo::bench {

/// What a problem file says, under its own names.
struct ConvCase {
  std::string id;
  bool transposed = false;
  int64_t n = 0, in_channels = 0, out_channels = 0, groups = 1;
  std::vector<int64_t> input, kernel, stride, padding, dilation, output_padding;
  int64_t offset = 0;  ///< elements that each operand begins behind an aligned address

  ConvProblem problem() const;
  /// The pass of problem() that computes `pass` of this case: a transposed convolution exchanges the activations.
  ConvPass pass_of_problem(ConvPass pass) const;
  /// Every extent moved a little, the same way each time; channels stay multiples of the groups.
  ConvCase jittered() const;
  /// "listed": as it is; "odd_width": the last extent one less; "odd": every even extent one less; "slice":
  /// operands an element behind an aligned address.
  ConvCase in_form(const std::string& form) const;
};

/// The cases of `path` whose id is in `only` (all if empty), in the file's order.
std::vector<ConvCase> read_cases(const std::string& path, const std::vector<std::string>& only);

}  // namespace halo::bench
