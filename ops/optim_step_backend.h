// What a backend must provide for the optimisers' steps: all tensors on one device, each entry of one shape and dtype,
// any strides, no element twice.
#pragma once

#include <halo/ops/optim_step.h>

namespace halo::cpu {
void sgd_step(const SgdUpdate& update, const std::vector<SgdTensors>& tensors);
void adam_step(const AdamUpdate& update, const std::vector<AdamTensors>& tensors);
}  // namespace halo::cpu

namespace halo::cuda {
void sgd_step(const SgdUpdate& update, const std::vector<SgdTensors>& tensors);
void adam_step(const AdamUpdate& update, const std::vector<AdamTensors>& tensors);
}  // namespace halo::cuda
