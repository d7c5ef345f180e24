#include <filesystem>
#include <map>
#include <set>

#include "tests/testing.h"

namespace halo::testing {
namespace {

using namespace models;

// --- AlexNet --------------------------------------------------------------------------------------------------------

TEST(AlexNet, TorchvisionHasItsParameters) {
  AlexNet net({.hidden = 16, .num_classes = 10});
  const std::map<std::string, Shape> expected{
      {"features.0.weight", {64, 3, 11, 11}},   {"features.3.weight", {192, 64, 5, 5}},
      {"features.6.weight", {384, 192, 3, 3}},  {"features.8.weight", {256, 384, 3, 3}},
      {"features.10.weight", {256, 256, 3, 3}}, {"classifier.1.weight", {16, 9216}},
      {"classifier.4.weight", {16, 16}},        {"classifier.6.weight", {10, 16}}};
  const StateDict state = net.state_dict();
  EXPECT_EQ(state.size(), 16u);
  for (const auto& [name, shape] : expected) EXPECT_EQ(state.at(name).shape(), shape) << name;
  // 61,100,840 with 4096 hidden units and 1000 classes: what the smaller head leaves out.
  const auto head = [](int64_t hidden, int64_t classes) {
    return 9217 * hidden + (hidden + 1) * hidden + (hidden + 1) * classes;
  };
  EXPECT_EQ(net.num_parameters() - head(16, 10) + head(4096, 1000), 61'100'840);
  net.eval();
  const NoGradGuard guard;
  EXPECT_EQ(net(randn({1, 3, 63, 63})).shape(), Shape({1, 10}));
  message_of([&] { net(randn({1, 3, 62, 62})); });
}

TEST(AlexNet, OriginalHasGroupsAndItsStart) {
  manual_seed(1);
  AlexNet net({.variant = AlexNetVariant::Original, .num_classes = 5, .width = 0.25});
  const StateDict state = net.state_dict();
  EXPECT_EQ(state.at("features.0.weight").shape(), Shape({24, 3, 11, 11}));
  EXPECT_EQ(state.at("features.3.weight").shape(), Shape({64, 12, 5, 5}));
  EXPECT_EQ(state.at("features.8.weight").shape(), Shape({96, 48, 3, 3}));
  EXPECT_EQ(state.at("classifier.1.weight").shape(), Shape({1024, 64 * 36}));
  EXPECT_NEAR(amax(state.at("features.3.bias")).item(), 0.1, 1e-8);
  EXPECT_EQ(amax(abs(state.at("features.6.bias"))).item(), 0);
  const Tensor w = state.at("classifier.1.weight");
  EXPECT_NEAR(std::sqrt(mean(w * w).item()), 0.005, 1e-4);
  message_of([] { AlexNet({.channels = {1, 2}}); });
}

TEST(AlexNet, DropoutOnlyInTraining) {
  manual_seed(2);
  AlexNet net({.channels = {4, 4, 4, 4, 4}, .hidden = 32, .num_classes = 5});
  const NoGradGuard guard;
  const Tensor x = randn({1, 3, 63, 63});
  EXPECT_FALSE(same(net(x), net(x)));
  net.eval();
  EXPECT_TRUE(same(net(x), net(x)));
}

// --- Hyena ----------------------------------------------------------------------------------------------------------

HyenaLMOptions small(int64_t order = 2) {
  return {.mixer = {.d_model = 8, .order = order, .l_max = 32, .filter_order = 16}, .n_layer = 2};
}

TEST(Hyena, NamesOfPublishedWeights) {
  HyenaLM model({.mixer = {.d_model = 128, .l_max = 1026}, .n_layer = 2});
  const StateDict state = model.state_dict();
  const std::string mixer = "backbone.layers.1.mixer.";
  const std::map<std::string, Shape> expected{{"backbone.embeddings.word_embeddings.weight", {16, 128}},
                                              {"lm_head.weight", {16, 128}},
                                              {mixer + "in_proj.weight", {384, 128}},
                                              {mixer + "short_filter.weight", {384, 1, 3}},
                                              {mixer + "filter_fn.bias", {128}},
                                              {mixer + "filter_fn.implicit_filter.0.weight", {64, 5}},
                                              {mixer + "filter_fn.implicit_filter.5.freq", {1, 64}},
                                              {mixer + "filter_fn.implicit_filter.6.weight", {128, 64}},
                                              {mixer + "filter_fn.pos_emb.z", {1, 1026, 5}},
                                              {mixer + "filter_fn.pos_emb.t", {1, 1026, 1}},
                                              {mixer + "filter_fn.modulation.deltas", {1, 1, 128}},
                                              {"backbone.layers.0.mlp.fc1.weight", {512, 128}},
                                              {"backbone.layers.0.norm2.bias", {128}},
                                              {"backbone.ln_f.weight", {128}}};
  for (const auto& [name, shape] : expected) EXPECT_EQ(state.at(name).shape(), shape) << name;
  EXPECT_FALSE(state.contains(mixer + "filter_fn.implicit_filter.6.bias"));
  EXPECT_EQ(state.size(), 2 + 2 * 28u + 2);
  EXPECT_NEAR(static_cast<double>(model.num_parameters()), 0.44e6, 0.005e6);
}

TEST(Hyena, PositionTablesByTheirFormulas) {
  HyenaLM model(small());
  const StateDict state = model.state_dict();
  const auto table = [&](const char* name) {
    return state.at(std::string("backbone.layers.0.mixer.filter_fn.") + name).to_vector<double>();
  };
  const auto z = table("pos_emb.z"), t = table("pos_emb.t"), deltas = table("modulation.deltas");
  const double w = 2 * 3.14159265358979 * 7 / 32;
  EXPECT_NEAR(z[7 * 5], 7.0 / 31, 1e-6);
  EXPECT_NEAR(z[7 * 5 + 1], std::cos(1e-4 * w), 1e-6);
  EXPECT_NEAR(z[7 * 5 + 2], std::cos(w), 1e-6);
  EXPECT_NEAR(z[7 * 5 + 4], -std::sin(w), 1e-6);
  EXPECT_NEAR(t[31], 1, 0);
  EXPECT_NEAR(deltas[0], std::log(1e-2) / 1.5, 1e-6);
  EXPECT_NEAR(deltas[7], std::log(1e-2) / 0.3, 1e-5);
}

TEST(Hyena, TheFutureDoesNotReachThePast) {
  manual_seed(3);
  for (int64_t order : {2, 3}) {
    HyenaLM model(small(order));
    model.to(float64);
    model.eval();
    const NoGradGuard guard;
    const Tensor ids = randint(0, 12, {2, 29});
    const Tensor changed = ids.clone();
    changed.select(1, 17).fill_(11);
    changed.select(1, 18).fill_(3);
    const Tensor a = model(ids), b = model(changed);
    EXPECT_TRUE(near(a.slice(1, 0, 17), b.slice(1, 0, 17), 1e-12));
    EXPECT_FALSE(near(a.slice(1, 18, 29), b.slice(1, 18, 29), 1e-6));
  }
}

/// The bank's channels in the other order.
Tensor other_layout(const Tensor& bank, int64_t orders) {
  Shape split = bank.shape();
  split[0] /= orders;
  split.insert(0, orders);
  return bank.reshape(split).transpose(0, 1).reshape(bank.shape());
}

TEST(Hyena, LayoutsDifferInTheOrderOfTheBankAlone) {
  manual_seed(4);
  HyenaOptions options = small(4).mixer;
  HyenaOperator slow(options);
  options.layout = FilterLayout::OrderFastest;
  HyenaOperator fast(options);
  StateDict state = slow.state_dict();
  const Tensor u = randn({2, 21, 8});
  const NoGradGuard guard;
  fast.load_state_dict(state);
  EXPECT_FALSE(near(fast(u), slow(u), 1e-3));
  for (const char* name : {"filter_fn.bias", "filter_fn.implicit_filter.6.weight"}) {
    state[name] = other_layout(state[name], 3);
  }
  Tensor& deltas = state["filter_fn.modulation.deltas"];
  deltas = other_layout(deltas.reshape({24}), 3).reshape({1, 1, 24});
  fast.load_state_dict(state);
  EXPECT_TRUE(near(fast(u), slow(u), 1e-6));
}

TEST(Hyena, SwitchesAndLengths) {
  manual_seed(5);
  HyenaOperator op(small().mixer);
  const NoGradGuard guard;
  EXPECT_EQ(op(randn({2, 40, 8})).shape(), Shape({2, 32, 8}));
  EXPECT_EQ(op(randn({2, 1, 8})).shape(), Shape({2, 1, 8}));
  EXPECT_EQ(op(randn({0, 5, 8})).shape(), Shape({0, 5, 8}));
  const Tensor u = randn({1, 9, 8});
  for (HyenaOptions other : {HyenaOptions{.modulate = false}, HyenaOptions{.shift = 0}}) {
    other.d_model = 8, other.l_max = 32, other.filter_order = 16;
    HyenaOperator changed(other);
    changed.load_state_dict(op.state_dict());
    EXPECT_FALSE(near(changed(u), op(u), 1e-3));
  }
  message_of([] { HyenaOperator({.order = 1}); });
  message_of([] { HyenaOperator({.emb_dim = 4}); });
  message_of([&] { op(randn({2, 3, 7})); });
  HyenaLM model(small());
  message_of([&] { model(zeros({1, 33}, {.dtype = int64})); });
}

// Inference computes the filters once for each state of their parameters.
TEST(Hyena, FiltersAreKeptInInference) {
  const int64_t before = allocator(Device::cpu()).stats().live_bytes;
  {
    HyenaFilter filter({.d_model = 6, .l_max = 50, .filter_order = 8});
    const Tensor recorded = filter.filters(31);
    EXPECT_TRUE(recorded.requires_grad());
    const NoGradGuard guard;
    const Tensor first = filter.filters(31);
    EXPECT_TRUE(same(first, recorded.detach()));
    EXPECT_EQ(filter.filters(31).data(), first.data());
    EXPECT_FALSE(filter.filters(31).requires_grad());
    EXPECT_TRUE(near(filter.filters(17), first.slice(2, 0, 17), 1e-6));
    EXPECT_NE(filter.filters(31).data(), first.data());  // one length is kept
    for (const auto& [name, parameter] : filter.named_parameters()) {
      const Tensor old = filter.filters(31);
      parameter.add_(ones_like(parameter), 0.1);
      const Tensor now = filter.filters(31);
      if (name == "bias") continue;  // the skip weights are no part of them
      EXPECT_FALSE(same(now, old)) << name;
      const GradGuard on(true);
      EXPECT_TRUE(same(now, filter.filters(31).detach())) << name;
    }
    const Tensor now = filter.filters(31), copy = now.clone();
    now.zero_();  // a caller who changes them
    EXPECT_TRUE(same(filter.filters(31), copy));
    filter.to(float64);
    EXPECT_EQ(filter.filters(31).dtype(), float64);
    {
      const GradGuard on(true);
      EXPECT_NE(filter.filters(31).data(), filter.filters(31).data());
    }
  }
  EXPECT_EQ(allocator(Device::cpu()).stats().live_bytes, before);
}

TEST(Hyena, CheckpointedBlocksGiveTheSameBitsForLessMemory) {
  for (int64_t order : {2, 3}) {
    std::vector<std::vector<Tensor>> results;
    std::vector<int64_t> kept;
    for (bool checkpoint : {false, true}) {
      manual_seed(3);
      HyenaLMOptions options = small(order);
      options.n_layer = 5;
      options.embed_dropout = options.resid_dropout = options.mixer.dropout = 0.2;
      options.checkpoint = checkpoint;
      HyenaLM model(options);
      const Tensor ids = randint(0, 12, {3, 31});
      const int64_t before = memory_statistics(Device::cpu()).live_bytes;
      const Tensor loss = cross_entropy(model(ids).flatten(0, 1), ids.flatten());
      kept.push_back(memory_statistics(Device::cpu()).live_bytes - before);
      loss.backward();
      results.push_back({loss.detach()});
      for (const Tensor& p : model.parameters()) results.back().push_back(p.grad());
    }
    for (std::size_t i = 0; i < results[0].size(); ++i) EXPECT_TRUE(same(results[1][i], results[0][i])) << i;
    EXPECT_LT(kept[1], kept[0] / 3);
  }
}

TEST(Hyena, DropoutInTrainingOnly) {
  manual_seed(6);
  HyenaLMOptions options = small();
  options.embed_dropout = 0;
  HyenaLM without(options);
  options.mixer.dropout = 0.5;
  HyenaLM with(options);
  with.load_state_dict(without.state_dict());
  const Tensor ids = randint(0, 12, {2, 9});
  const NoGradGuard guard;
  EXPECT_TRUE(same(without(ids), without(ids)));
  EXPECT_FALSE(near(with(ids), without(ids), 1e-3));
  with.eval();
  EXPECT_TRUE(near(with(ids), without(ids), 1e-6));
}

TEST(Hyena, PublishedFormsLoad) {
  manual_seed(7);
  HyenaLM source(small()), target(small());
  StateDict lightning, converted;
  for (const auto& [name, tensor] : source.state_dict()) {
    std::string wrapped = name;
    for (const char* half : {".mixer.", ".mlp."}) {
      const auto at = wrapped.find(half);
      if (at != std::string::npos) wrapped.insert(at + std::string(half).size(), "layer.");
    }
    lightning.emplace("model." + wrapped, tensor);
    const bool table = name.find("pos_emb") != std::string::npos || name.find("deltas") != std::string::npos;
    const bool alias = name.ends_with(".3.freq") || name.ends_with(".5.freq") || name == "lm_head.weight";
    if (!table && !alias) converted.emplace("hyena." + name, tensor);
  }
  lightning.emplace("train_torchmetrics.num_tokens", zeros({1}));
  converted.emplace("score.weight", zeros({2, 8}));
  const Tensor ids = randint(0, 12, {1, 9});
  const NoGradGuard guard;
  source.eval();
  target.eval();
  for (const StateDict& published : {lightning, converted}) {
    target.load_state_dict(HyenaLM(small()).state_dict());
    EXPECT_FALSE(near(target(ids), source(ids), 1e-3));
    load_hyenadna(target, published);
    EXPECT_TRUE(same(target(ids), source(ids)));
  }
  converted.erase("hyena.backbone.ln_f.bias");
  EXPECT_NE(message_of([&] { load_hyenadna(target, converted); }).find("missing: backbone.ln_f.bias"),
            std::string::npos);
}

TEST(Hyena, GradientsReachEveryParameter) {
  manual_seed(8);
  HyenaLMOptions options = small(3);
  options.mixer.train_z = true;
  HyenaLM model(options);
  const Tensor ids = randint(0, 12, {2, 32});
  cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward();
  for (const auto& [name, parameter] : model.named_parameters()) {
    ASSERT_TRUE(parameter.grad().defined()) << name;
    EXPECT_GT(amax(abs(parameter.grad())).item(), 0) << name;
  }
}

// --- Tokens and recall ----------------------------------------------------------------------------------------------

TEST(DnaTokenizer, Values) {
  using Ids = std::vector<int64_t>;
  EXPECT_EQ(encode_dna("ACGTN"), (Ids{7, 8, 9, 10, 11, 1}));
  EXPECT_EQ(encode_dna("acx", {.cls = true, .sep = false}), (Ids{0, 7, 8, 6}));
  EXPECT_EQ(encode_dna("ACGT", {.max_length = 3, .pad_to = 5}), (Ids{4, 4, 7, 8, 1}));
  EXPECT_EQ(encode_dna(""), (Ids{1}));
  EXPECT_EQ(decode_dna({4, 0, 7, 6, 11, 1}), "A.N");
  message_of([] { decode_dna({12}); });
  message_of([] { encode_dna("A", {.cls = true, .max_length = 1}); });
}

TEST(Recall, BatchesAreConsistent) {
  const RecallOptions options{.batch = 50, .pairs = 7, .vocab_size = 10};
  Generator a(5), b(5);
  const RecallBatch batch = make_recall_batch(options, a);
  EXPECT_TRUE(same(batch.ids, make_recall_batch(options, b).ids));
  EXPECT_FALSE(same(batch.ids, make_recall_batch(options, b).ids));
  const auto ids = batch.ids.to_vector<int64_t>(), target = batch.target.to_vector<int64_t>();
  std::set<int64_t> values_of_first_key;
  for (std::size_t s = 0; s < 50; ++s) {
    std::map<int64_t, int64_t> dictionary;
    for (std::size_t i = 0; i < 7; ++i) {
      const int64_t key = ids[s * 15 + 2 * i], value = ids[s * 15 + 2 * i + 1];
      EXPECT_TRUE(key >= 0 && key < 5 && value >= 5 && value < 10);
      EXPECT_EQ(dictionary.emplace(key, value).first->second, value);
    }
    ASSERT_TRUE(dictionary.contains(ids[s * 15 + 14]));
    EXPECT_EQ(dictionary[ids[s * 15 + 14]], target[s]);
    if (dictionary.contains(0)) values_of_first_key.insert(dictionary[0]);
  }
  EXPECT_GT(values_of_first_key.size(), 1u);  // each sequence has its own dictionary
  message_of([] { make_recall_batch({.vocab_size = 3}); });
}

/// The parameters after `steps` of training, with a stop, a file and a fresh start after the third when `resume`.
std::vector<Tensor> trained(bool resume, int64_t steps) {
  const RecallOptions task{.batch = 4, .pairs = 3, .vocab_size = 6};
  HyenaLMOptions options = recall_model_options(task);
  options.embed_dropout = 0.2;
  const auto path = (std::filesystem::temp_directory_path() / "halo_models_test_resume").string();
  struct Run {
    HyenaLM model;
    optim::AdamW adam;
    explicit Run(const HyenaLMOptions& o) : model(o), adam(model.parameters(), {.lr = 3e-3}) {}
  };
  manual_seed(12);
  auto run = std::make_unique<Run>(options);
  for (int64_t step = 0; step < steps; ++step) {
    if (resume && step == 3) {
      save_checkpoint(path, {.model = run->model.state_dict(),
                             .optimizer = run->adam.state_dict(),
                             .generator = default_generator().state(),
                             .step = step});
      run = std::make_unique<Run>(options);
      const Checkpoint checkpoint = load_checkpoint(path);
      std::filesystem::remove(path);
      run->model.load_state_dict(checkpoint.model);
      run->adam.load_state_dict(checkpoint.optimizer);
      default_generator().set_state(checkpoint.generator);
      EXPECT_EQ(checkpoint.step, step);
    }
    const RecallBatch batch = make_recall_batch(task);
    run->adam.zero_grad();
    cross_entropy(recall_logits(run->model, batch.ids), batch.target).backward();
    optim::clip_grad_norm_(run->model.parameters(), 1);
    run->adam.step();
  }
  return run->model.parameters();
}

TEST(Recall, ResumedTrainingIsBitwise) {
  const auto whole = trained(false, 6), resumed = trained(true, 6), other = trained(false, 5);
  ASSERT_EQ(whole.size(), resumed.size());
  bool all_same = true, other_same = true;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    all_same = all_same && same(resumed[i], whole[i]);
    other_same = other_same && same(other[i], whole[i]);
  }
  EXPECT_TRUE(all_same);
  EXPECT_FALSE(other_same);
}

TEST(Recall, LossFalls) {
  manual_seed(13);
  const RecallOptions task{.batch = 16, .pairs = 2, .vocab_size = 4};
  HyenaLM model(recall_model_options(task));
  optim::AdamW adam(model.parameters(), {.lr = 3e-3});
  double last = 0;
  for (int step = 0; step < 40; ++step) {
    const RecallBatch batch = make_recall_batch(task);
    adam.zero_grad();
    const Tensor loss = cross_entropy(recall_logits(model, batch.ids), batch.target);
    loss.backward();
    adam.step();
    last = loss.item();
  }
  EXPECT_LT(last, std::log(2.0));  // what knowing the values, but not which, gives
}

}  // namespace
}  // namespace halo::testing
