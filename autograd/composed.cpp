#include <halo/autograd/composed.h>
#include <halo/autograd/engine.h>
#include <halo/autograd/grad_mode.h>

namespace halo::autograd {

std::vector<Tensor> composed_grads(const Composed& function, const std::vector<Tensor>& inputs,
                                   const std::vector<Tensor>& grads) {
  const GradGuard recording(true);
  // Views of their own, so that an input made from another one is no path between them.
  std::vector<Tensor> own = inputs, asked;
  const auto is_asked = [](const Tensor& t) { return t.defined() && t.requires_grad(); };
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!is_asked(inputs[i])) continue;
    own[i] = inputs[i].reshape(inputs[i].shape());
    asked.push_back(own[i]);
  }
  const auto found =
      grad(function(own), asked, grads, {.retain_graph = true, .create_graph = true, .allow_unused = true});
  std::vector<Tensor> result(inputs.size());
  std::size_t next = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (is_asked(inputs[i])) result[i] = found[next++];
  }
  return result;
}

}  // namespace halo::autograd
