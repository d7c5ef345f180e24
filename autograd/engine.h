// Running the tape backward.
#pragma once

#include <halo/core/tensor.h>

#include <vector>

namespace halo {

/// What grad() may be told beside the tensors.
struct GradOptions {
  bool retain_graph = false;  ///< keep what the graph saved, to run it again
  bool create_graph = false;  ///< make the gradients differentiable themselves (implies retain_graph)
  bool allow_unused = false;  ///< an input that `outputs` do not depend on gets zeros instead of an error
};

/// Gradients of sum(outputs * grad_outputs) with respect to `inputs`, in their order; leaves are left alone.
/// An undefined grad_output stands for 1 and needs an output of one element.
/// Gradients with a graph are only ever returned from here, never stored in a leaf, where they would keep themselves
/// alive. @throws ArgumentError for an output or input that requires no gradient, a grad_output that does not fit its
/// output, an input that nothing depends on (see allow_unused), a graph that was used up, and a saved value that was
/// changed in place.
std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& grad_outputs = {}, const GradOptions& options = {});

/// Adds the gradients of `outputs` to `.grad()` of every leaf they came from. @throws ArgumentError as grad does.
void backward(const std::vector<Tensor>& outputs, const std::vector<Tensor>& grad_outputs = {},
              bool retain_graph = false);

}  // namespace halo
