#include <halo/core/copy.h>
#include <halo/core/state_dict.h>

namespace halo {

StateDict clone(const StateDict& state) {
  StateDict result;
  for (const auto& [name, tensor] : state) {
    Tensor& own = result[name];
    if (!tensor.defined()) continue;
    own = empty_like(tensor);
    copy(tensor, own);
  }
  return result;
}

}  // namespace halo
