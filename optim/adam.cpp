#include <halo/core/error.h>
#include <halo/ops/optim_step.h>
#include <halo/optim/adam.h>

namespace halo::optim {
namespace {

/// Both kinds of options have the same members.
template <class Options>
std::vector<AdamUpdate> updates_of(const std::vector<ParamGroup<Options>>& groups, bool decoupled) {
  std::vector<AdamUpdate> updates;
  for (const auto& [params, o] : groups) {
    updates.push_back({.lr = o.lr,
                       .beta1 = o.beta1,
                       .beta2 = o.beta2,
                       .eps = o.eps,
                       .weight_decay = o.weight_decay,
                       .decoupled = decoupled});
  }
  return updates;
}

}  // namespace

Adam::Adam(const std::vector<Tensor>& params, const AdamOptions& options)
    : Adam(std::vector<ParamGroup<AdamOptions>>{{params, options}}) {}

Adam::Adam(const std::vector<ParamGroup<AdamOptions>>& groups)
    : Adam("Adam", params_of(groups), updates_of(groups, false)) {}

Adam::Adam(const char* name, const std::vector<std::vector<Tensor>>& params, std::vector<AdamUpdate> updates)
    : Optimizer(name, params, {"exp_avg", "exp_avg_sq"}), updates_(std::move(updates)) {
  for (AdamUpdate& u : updates_) {
    if (!(u.beta1 >= 0 && u.beta1 < 1 && u.beta2 >= 0 && u.beta2 < 1)) {
      fail(name, ": betas expected in [0, 1), got ", u.beta1, " and ", u.beta2);
    }
    register_options(
        {{"lr", &u.lr}, {"beta1", &u.beta1}, {"beta2", &u.beta2}, {"eps", &u.eps}, {"weight_decay", &u.weight_decay}});
  }
}

void Adam::update(int group, const std::vector<Slot*>& slots) {
  std::vector<AdamTensors> tensors;
  for (const Slot* slot : slots) {
    tensors.push_back({slot->param, slot->param.grad(), slot->state[0], slot->state[1], slot->step});
  }
  ops::adam_step(updates_[static_cast<std::size_t>(group)], tensors);
}

AdamW::AdamW(const std::vector<Tensor>& params, const AdamWOptions& options)
    : AdamW(std::vector<ParamGroup<AdamWOptions>>{{params, options}}) {}

AdamW::AdamW(const std::vector<ParamGroup<AdamWOptions>>& groups)
    : Adam("AdamW", params_of(groups), updates_of(groups, true)) {}

}  // namespace halo::optim
