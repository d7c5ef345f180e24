#include <halo/core/error.h>
#include <halo/ops/optim_step.h>
#include <halo/optim/sgd.h>

namespace halo::optim {
namespace {

/// A velocity is kept where any group has momentum.
std::vector<std::string> state_names(const std::vector<ParamGroup<SGDOptions>>& groups) {
  for (const auto& group : groups) {
    if (group.options.momentum != 0) return {"momentum_buffer"};
  }
  return {};
}

}  // namespace

SGD::SGD(const std::vector<Tensor>& params, const SGDOptions& options)
    : SGD(std::vector<ParamGroup<SGDOptions>>{{params, options}}) {}

SGD::SGD(const std::vector<ParamGroup<SGDOptions>>& groups)
    : Optimizer("SGD", params_of(groups), state_names(groups)), options_(options_of(groups)) {
  for (SGDOptions& o : options_) {
    if (o.nesterov && o.momentum == 0) fail("SGD: nesterov expected a momentum above 0, got 0");
    register_options({{"lr", &o.lr}, {"momentum", &o.momentum}, {"weight_decay", &o.weight_decay}});
  }
}

void SGD::update(int group, const std::vector<Slot*>& slots) {
  std::vector<SgdTensors> tensors;
  for (const Slot* slot : slots) {
    tensors.push_back({slot->param, slot->param.grad(), slot->state.empty() ? Tensor() : slot->state[0]});
  }
  ops::sgd_step(options_[static_cast<std::size_t>(group)], tensors);
}

}  // namespace halo::optim
