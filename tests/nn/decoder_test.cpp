// Generation token by token against the model itself.
#include <halo/nn/models/hyena_decoder.h>
#include <halo/ops/hyena_step.h>

#include "tests/testing.h"

namespace halo::models {
namespace {

using testing::near;
using testing::relative_error;

HyenaLMOptions small(int64_t order, int64_t short_filter) {
  return {.mixer = {.d_model = 6, .order = order, .l_max = 900, .short_filter = short_filter, .filter_order = 8},
          .n_layer = 2,
          .vocab_size = 11};
}

/// The model with weights large enough to matter.
HyenaLM model_of(const HyenaLMOptions& options, DType dtype) {
  HyenaLM model(options);
  model.to(dtype);
  const NoGradGuard no_grad;
  for (const Tensor& parameter : model.parameters()) parameter.add_(0.2 * randn(parameter.shape()).to(dtype));
  model.eval();
  return model;
}

void expect_equal_logits(HyenaLM& model, int64_t prefix, int64_t capacity, int64_t steps, double bound) {
  const NoGradGuard no_grad;
  const Tensor ids = randint(0, 11, {2, prefix + steps});
  const Tensor expected = model(ids);
  HyenaDecoder decoder(model, capacity);
  for (int round = 0; round < 2; ++round) {  // prefill starts over
    EXPECT_TRUE(near(decoder.prefill(ids.slice(1, 0, prefix)), expected.select(1, prefix - 1), bound));
    for (int64_t t = prefix; t < prefix + steps; ++t) {
      EXPECT_TRUE(near(decoder.step(ids.select(1, t)), expected.select(1, t), bound)) << "token " << t;
    }
  }
  EXPECT_EQ(decoder.room(), capacity - steps);
  EXPECT_FALSE(near(decoder.step(ids.select(1, 0)), expected.select(1, prefix), bound));  // another token's logits
}

TEST(HyenaDecoder, EqualsTheModel) {
  for (const auto& [order, taps] : {std::pair<int64_t, int64_t>{2, 3}, {3, 4}, {2, 1}}) {
    HyenaLM model = model_of(small(order, taps), float64);
    expect_equal_logits(model, 1, 9, 8, 1e-10);
    expect_equal_logits(model, 37, 20, 15, 1e-10);
  }
}

TEST(HyenaDecoder, AcrossBlocks) {
  // Far enough for one block and for two blocks at once to be added to what comes.
  constexpr int64_t kBlock = HyenaStepProblem::kBlock;
  HyenaLM model = model_of(small(2, 3), float64);
  expect_equal_logits(model, 50, 3 * kBlock + 50, 2 * kBlock + 30, 1e-10);
  HyenaLM single = model_of(small(2, 3), float32);
  expect_equal_logits(single, 50, kBlock + 7, kBlock + 5, 1e-5);
}

TEST(HyenaDecoder, SaysWhatItNeeds) {
  HyenaLM model = model_of(small(2, 3), float32);
  HyenaDecoder decoder(model, 2);
  EXPECT_NE(testing::message_of([&] { decoder.step(zeros({1}, {.dtype = int64})); }).find("prefill"),
            std::string::npos);
  EXPECT_NE(testing::message_of([&] {
              decoder.prefill(zeros({1, 899}, {.dtype = int64}));
            }).find("l_max 900"),
            std::string::npos);
  decoder.prefill(zeros({1, 3}, {.dtype = int64}));
  for (int i = 0; i < 2; ++i) decoder.step(zeros({1}, {.dtype = int64}));
  EXPECT_NE(testing::message_of([&] { decoder.step(zeros({1}, {.dtype = int64})); }).find("at most 2"),
            std::string::npos);
}

}  // namespace
}  // namespace halo::models
