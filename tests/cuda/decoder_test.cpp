// Generation on the GPU, steps replayed as a graph, against the model and the CPU.
#include <halo/cuda/graph.h>
#include <halo/nn/models/hyena_decoder.h>
#include <halo/ops/hyena_step.h>

#include "tests/cuda/gpu_testing.h"

namespace halo::testing {
namespace {

using DecoderGpu = Gpu;

/// The likeliest token after each of `steps` tokens, chosen on the device, and the last logits.
std::pair<std::vector<int64_t>, Tensor> generate(models::HyenaLM& model, const Tensor& prefix, int64_t steps,
                                                 bool graph) {
  const Device device = prefix.device();
  models::HyenaDecoder decoder(model, steps);
  if (graph) {
    decoder.record_with([device](const std::function<void()>& body) -> std::function<void()> {
      return [recorded = cuda::Graph::capture(device, body)] { recorded.replay(); };
    });
  }
  Tensor logits = decoder.prefill(prefix);
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < steps; ++i) {
    const Tensor next = argmax(logits, 1);
    tokens.push_back(next.to_vector<int64_t>()[0]);
    logits = decoder.step(next);
  }
  return {tokens, logits.clone()};
}

TEST_F(DecoderGpu, GreedyTokensAreThoseOfTheModel) {
  const NoGradGuard no_grad;
  constexpr int64_t kPrefix = 300, kSteps = 2 * HyenaStepProblem::kBlock + 40;
  models::HyenaLM model({.mixer = {.d_model = 32, .l_max = 1200}, .n_layer = 2, .vocab_size = 12});
  for (const Tensor& parameter : model.parameters()) parameter.add_(0.2 * randn(parameter.shape()));
  model.eval();
  const Tensor prefix = randint(0, 12, {1, kPrefix});
  model.to(Device::cuda());
  const auto [eager, eager_logits] = generate(model, prefix.to(Device::cuda()), kSteps, false);
  const auto [tokens, logits] = generate(model, prefix.to(Device::cuda()), kSteps, true);
  EXPECT_EQ(eager, tokens);
  EXPECT_TRUE(same(logits.to(Device::cpu()), eager_logits.to(Device::cpu())));
  const Tensor all = cat({prefix, from_vector(tokens, {1, kSteps})}, 1).to(Device::cuda());
  const Tensor expected = model(all);
  EXPECT_TRUE(near(logits.to(Device::cpu()), expected.select(1, kPrefix + kSteps - 1).to(Device::cpu()), 1e-5));
  const auto choices = argmax(expected, 2).to_vector<int64_t>();
  for (int64_t i = 0; i < kSteps; ++i) {
    EXPECT_EQ(tokens[static_cast<std::size_t>(i)], choices[static_cast<std::size_t>(kPrefix - 1 + i)]) << i;
  }
}

}  // namespace
}  // namespace halo::testing
