// What a backend must provide for a step of a Hyena operator. All tensors are dense, of one dtype and on one device
// (position: int64 on it), shapes checked.
#pragma once

#include <halo/ops/hyena_step.h>

namespace halo::cpu {
void hyena_step(const HyenaStepProblem& problem, const HyenaStepTensors& tensors, const Tensor& y);
}

namespace halo::cuda {
void hyena_step(const HyenaStepProblem& problem, const HyenaStepTensors& tensors, const Tensor& y);
}
