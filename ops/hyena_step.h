// One token through the recurrence of a Hyena operator: a short filter with the inputs that came before, then gates and
// long convolutions whose past contributions are known or summed here.
#pragma once

#include <halo/core/tensor.h>

#include <cstdint>

namespace halo {

/// Sizes of a step. `capacity` tokens can follow what `pending` was made for.
struct HyenaStepProblem {
  /// Own contributions are summed term by term within blocks of this many tokens; at the end of a block the caller adds
  /// what it contributes to later ones to `pending`.
  static constexpr int64_t kBlock = 256;

  int64_t batch = 0, channels = 0, order = 2, kernel = 3, capacity = 0;
  int64_t convolutions() const { return order - 1; }
};

/// What a step reads and changes. With x_0, ..., x_{order-1}, v = the parts of the filtered projections and, for
/// i = order - 1, ..., 1 and o = order - 1 - i,
///   u = v x_i,  v = pending[o, t] + sum over the block's s <= t of taps[o, t - s] u[s] + skip[o] u[t]
/// the result is v x_0.
struct HyenaStepTensors {
  Tensor projections{};      ///< [B, (order + 1) D], without their bias
  Tensor projection_bias{};  ///< [(order + 1) D]
  Tensor short_weight{};     ///< [(order + 1) D, kernel]
  Tensor short_bias{};       ///< [(order + 1) D]
  Tensor taps{};             ///< [order - 1, D, at least kBlock]
  Tensor skip{};             ///< [order - 1, D]
  Tensor position{};         ///< int64 [1]: tokens so far, t; not changed
  Tensor window{};           ///< [B, (order + 1) D, kernel - 1]: the last projections with their bias; moved on
  Tensor inputs{};           ///< [B, order - 1, D, capacity]: the u of tokens so far; that of t is written
  Tensor pending{};          ///< [B, order - 1, D, capacity]: what earlier blocks contribute
  template <class F>
  void for_each_tensor(F&& f) {
    for (Tensor* t : {&projections, &projection_bias, &short_weight, &short_bias, &taps, &skip, &position, &window,
                      &inputs, &pending}) {
      f(*t);
    }
  }
};

namespace ops {

/// [B, D]. Nothing waits for the GPU, so that a step can be part of a graph.
Tensor hyena_step(const HyenaStepProblem& problem, const HyenaStepTensors& tensors);

}  // namespace ops
}  // namespace halo
