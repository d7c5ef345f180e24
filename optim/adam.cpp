#include <halo/core/error.h>
#include <halo/ops/optim_step.h>
#include <halo/optim/adam.h>

namespace halo::optim {
namespace {

std::vector<ParamGroup<AdamOptions>> decoupled(const std::vector<ParamGroup<AdamWOptions>>& groups) {
  std::vector<ParamGroup<AdamOptions>> result;
  for (const auto& [params, o] : groups) {
    result.push_back({params,
                      {.lr = o.lr,
                       .beta1 = o.beta1,
                       .beta2 = o.beta2,
                       .eps = o.eps,
                       .weight_decay = o.weight_decay,
                       .decoupled = true}});
  }
  return result;
}

}  // namespace

Adam::Adam(const std::vector<Tensor>& params, const AdamOptions& options)
    : Adam(std::vector<ParamGroup<AdamOptions>>{{params, options}}) {}

Adam::Adam(const std::vector<ParamGroup<AdamOptions>>& groups)
    : Optimizer("Adam", params_of(groups), {"exp_avg", "exp_avg_sq"}), options_(options_of(groups)) {
  for (AdamOptions& o : options_) {
    if (!(o.beta1 >= 0 && o.beta1 < 1 && o.beta2 >= 0 && o.beta2 < 1)) {
      fail("Adam: betas expected in [0, 1), got ", o.beta1, " and ", o.beta2);
    }
    register_options(
        {{"lr", &o.lr}, {"beta1", &o.beta1}, {"beta2", &o.beta2}, {"eps", &o.eps}, {"weight_decay", &o.weight_decay}});
  }
}

void Adam::update(int group, const std::vector<Slot*>& slots) {
  std::vector<AdamTensors> tensors;
  for (const Slot* slot : slots) {
    tensors.push_back({slot->param, slot->param.grad(), slot->state[0], slot->state[1], slot->step});
  }
  ops::adam_step(options_[static_cast<std::size_t>(group)], tensors);
}

AdamW::AdamW(const std::vector<Tensor>& params, const AdamWOptions& options)
    : AdamW(std::vector<ParamGroup<AdamWOptions>>{{params, options}}) {}

AdamW::AdamW(const std::vector<ParamGroup<AdamWOptions>>& groups) : Adam(decoupled(groups)) {}

}  // namespace halo::optim
