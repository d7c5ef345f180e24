// Adam and AdamW.
#pragma once

#include <halo/ops/optim_functors.h>
#include <halo/optim/optimizer.h>

namespace halo::optim {

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;  ///< added to the gradient as weight_decay * param
};

/// Steps of the running mean of the gradient over the root of its running mean square.
class Adam : public Optimizer {
 public:
  explicit Adam(const std::vector<Tensor>& params, const AdamOptions& options = {});
  explicit Adam(const std::vector<ParamGroup<AdamOptions>>& groups);

 protected:
  Adam(const char* name, const std::vector<std::vector<Tensor>>& params, std::vector<AdamUpdate> updates);

 private:
  void update(int group, const std::vector<Slot*>& slots) override;

  std::vector<AdamUpdate> updates_;
};

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
};

/// Adam whose weight decay shrinks the parameters themselves.
class AdamW : public Adam {
 public:
  explicit AdamW(const std::vector<Tensor>& params, const AdamWOptions& options = {});
  explicit AdamW(const std::vector<ParamGroup<AdamWOptions>>& groups);
};

}  // namespace halo::optim
