// Gradient checkpointing: less memory for more arithmetic.
#pragma once

#include <halo/core/tensor.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

namespace halo {

using CheckpointFunction = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)>;

/// f(inputs), of which only the inputs are kept for backward: f is run again when backward comes to it. Gradients are
/// the same to the last bit as without, through parameters that f uses too, and so are gradients of gradients, hooks,
/// and checkpoints inside f.
///
/// The second run has the modes of the first (precision, streams) and draws the same random numbers from every
/// generator without moving it. f is kept until then, so what it refers to must live as long; it must do the same both
/// times, and not change what it has no right to change twice: batch_norm leaves its running statistics alone the
/// second time, a counter of your own asks is_recomputing(). Backward throws ArgumentError where the second run saves
/// other tensors or draws other random numbers than the first, or where a parameter was changed in between.
std::vector<Tensor> checkpoint(CheckpointFunction f, const std::vector<Tensor>& inputs);

/// The same for a function of tensors that returns one: `checkpoint([&](const Tensor& t) { return block(t); }, x)`.
template <class F, class... Inputs>
requires(sizeof...(Inputs) > 0 && (std::same_as<Inputs, Tensor> && ...) &&
         std::is_invocable_r_v<Tensor, F&, const Inputs&...>) Tensor checkpoint(F f, const Inputs&... inputs) {
  const auto call = [f = std::move(f)](const std::vector<Tensor>& in) mutable {
    return [&]<std::size_t... i>(std::index_sequence<i...>) { return std::vector<Tensor>{f(in[i]...)}; }
    (std::index_sequence_for<Inputs...>{});
  };
  return checkpoint(CheckpointFunction(call), {inputs...})[0];
}

/// Whether this thread is inside a checkpointed function that is being run again.
bool is_recomputing();

}  // namespace halo
