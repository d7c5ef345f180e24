// The classifier of whole sequences.
#include <halo/nn/models/dna_tokenizer.h>
#include <halo/nn/models/hyena_classifier.h>

#include "tests/testing.h"

namespace halo::models {
namespace {

HyenaLMOptions small() { return {.mixer = {.d_model = 8, .l_max = 32}, .n_layer = 1, .vocab_size = 12}; }

TEST(HyenaClassifier, MeanLeavesPaddingOut) {
  const NoGradGuard no_grad;
  HyenaClassifier model(small(), 3);
  model.eval();
  const auto ids = encode_dna("ACGTTGCA", {.sep = false, .pad_to = 13});
  const Tensor batch = from_vector(ids, {1, 13});
  const Tensor states = model.language_model().hidden(batch);
  const Tensor head = model.named_parameters().back().tensor;  // the bias of the head
  ASSERT_EQ(head.shape(), Shape{3});
  const auto logits_of = [&](const Tensor& pooled) {
    for (const auto& [name, tensor] : model.named_parameters()) {
      if (name == "head.weight") return matmul(pooled, tensor.transpose(0, 1)) + head;
    }
    return Tensor();
  };
  const Tensor expected = logits_of(mean(states.slice(1, 5, 13), {1}));
  EXPECT_TRUE(testing::near(model(batch), expected, 1e-6));
  EXPECT_FALSE(testing::near(model(batch), logits_of(mean(states, {1})), 1e-6));
  const Tensor only_padding = full({1, 4}, int64_t{kPad}, {.dtype = int64});
  EXPECT_TRUE(testing::near(model(only_padding), head.unsqueeze(0), 1e-6));  // no division by zero
}

TEST(HyenaClassifier, LastIsTheLastState) {
  const NoGradGuard no_grad;
  HyenaClassifier model(small(), 2, SequencePooling::Last);
  model.eval();
  const Tensor ids = randint(7, 11, {3, 16});
  const Tensor changed = cat({randint(7, 11, {3, 1}), ids.slice(1, 1, 16)}, 1);
  EXPECT_EQ(model(ids).shape(), (Shape{3, 2}));
  EXPECT_FALSE(testing::near(model(changed), model(ids), 1e-7));  // it has seen the first token
}

TEST(HyenaClassifier, LearnsASimpleRule) {
  manual_seed(3);
  HyenaClassifier model(small(), 2);
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  const Tensor ids = randint(7, 11, {64, 16});
  // Whether more than three of the sixteen bases are A.
  const Tensor is_a = eq(ids, full({}, int64_t{7}, {.dtype = int64})).to(float32);
  const Tensor target = gt(sum(is_a, {1}), full({}, 3.5)).to(int64);
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    const Tensor loss = cross_entropy(model(ids), target);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (step == 0) first = loss.item();
    last = loss.item();
  }
  EXPECT_LT(last, 0.5 * first);
}

}  // namespace
}  // namespace halo::models
