// The gradient of a fused function as a graph: through the differentiable pieces that it stands for.
#pragma once

#include <halo/core/tensor.h>

#include <functional>
#include <vector>

namespace halo::autograd {

/// The outputs of a function of `inputs`, from differentiable pieces.
using Composed = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)>;

/// For the closure of a fused node where context.create_graph asks for a graph: the gradients of sum(outputs * grads)
/// with respect to those of `inputs` that require one (the others may be undefined), themselves differentiable.
std::vector<Tensor> composed_grads(const Composed& function, const std::vector<Tensor>& inputs,
                                   const std::vector<Tensor>& grads);

}  // namespace halo::autograd
