// Scores and continues DNA given on the command line with a model that dna_train left.
//
//   dna_use runs/dna/model.safetensors score ACGTACGT...
//   dna_use runs/dna/model.safetensors continue ACGTACGT... --bases 50 --temperature 0.8
#include <halo/cuda/graph.h>
#include <halo/halo.h>
#include <halo/nn/models/dna_tokenizer.h>
#include <halo/nn/models/hyena_decoder.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "dna_model.h"
#include "examples/common/program.h"
#include <CLI/CLI.hpp>

namespace {

using namespace halo;

/// Bits of each base after the first, given those before it.
void score(models::HyenaLM& model, const std::string& sequence, const example::DnaSpec& spec, Device device) {
  const auto ids = models::encode_dna(sequence, {.sep = false});
  const auto length = static_cast<int64_t>(ids.size());
  if (length < 2 || length > spec.l_max) {
    fail("score: sequence expected 2 to ", spec.l_max, " bases, got ", length);
  }
  const Tensor tokens = from_vector(ids, {1, length}).to(device);
  const Tensor logits = model(tokens).select(0, 0).slice(0, 0, length - 1);
  const Tensor losses = cross_entropy(logits, tokens.select(0, 0).slice(0, 1, length), {.reduction = Reduction::None});
  double total = 0;
  for (double nats : losses.to_vector<double>()) total += nats / std::log(2.0);
  std::printf("%lld bases, %.3f bits, %.4f bits a base\n", static_cast<long long>(length), total,
              total / static_cast<double>(length - 1));
}

/// A base drawn from what the model expects (temperature 0: the likeliest), given its logits [1, vocabulary].
int64_t next_base(const Tensor& logits, double temperature) {
  constexpr int64_t kFirstBase = 7, kBases = 4;  // A, C, G, T
  const Tensor choices = logits.select(0, 0).slice(0, kFirstBase, kFirstBase + kBases).to(Device::cpu());
  if (temperature == 0) return kFirstBase + static_cast<int64_t>(argmax(choices).item());
  return kFirstBase + static_cast<int64_t>(multinomial(softmax(choices / temperature, 0), 1).item());
}

/// Appends bases one by one. Where the model's reach ends it goes on from the last half of it.
void extend(models::HyenaLM& model, const std::string& sequence, const example::DnaSpec& spec, Device device,
            int64_t bases, double temperature) {
  auto ids = models::encode_dna(sequence, {.sep = false});
  if (ids.empty()) fail("continue: sequence expected at least one base");
  while (bases > 0) {
    const auto known = static_cast<int64_t>(ids.size());
    const int64_t context = known + bases <= spec.l_max ? known : std::min(known, spec.l_max / 2);
    const int64_t count = std::min(bases, spec.l_max - context);
    models::HyenaDecoder decoder(model, count);
    if (device.is_cuda()) {
      decoder.record_with([device](const std::function<void()>& step) -> std::function<void()> {
        return [graph = cuda::Graph::capture(device, step)] { graph.replay(); };
      });
    }
    const std::vector<int64_t> prefix(ids.end() - context, ids.end());
    Tensor logits = decoder.prefill(from_vector(prefix, {1, context}).to(device));
    for (int64_t i = 0; i < count; ++i) {
      ids.push_back(next_base(logits, temperature));
      if (i + 1 < count) logits = decoder.step(from_vector<int64_t>({ids.back()}, {1}).to(device));
    }
    bases -= count;
  }
  std::printf("%s\n", models::decode_dna(ids).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Scores and continues DNA", "dna_use"};
  std::string path, sequence;
  int64_t bases = 60;
  double temperature = 1;
  uint64_t seed = 1;
  app.add_option("model", path, "model.safetensors of a training")->required()->check(CLI::ExistingFile);
  auto* score_command = app.add_subcommand("score", "bits a base of a sequence");
  auto* continue_command = app.add_subcommand("continue", "more bases after a sequence");
  for (auto* command : {score_command, continue_command})
    command->add_option("sequence", sequence, "A, C, G, T")->required();
  continue_command->add_option("--bases", bases)->check(CLI::NonNegativeNumber);
  continue_command->add_option("--temperature", temperature, "0: always the likeliest")->check(CLI::NonNegativeNumber);
  continue_command->add_option("--seed", seed);
  app.require_subcommand(1);
  return example::run_program(app, argc, argv, [&] {
    const NoGradGuard no_grad;
    const Device device = Device::best();
    manual_seed(seed);
    const SafetensorsContent file = load_safetensors(path);
    const auto spec = example::DnaSpec::from(file.metadata);
    models::HyenaLM model(spec.options());
    model.load_state_dict(file.tensors);
    model.to(device);
    model.eval();
    if (score_command->parsed()) {
      score(model, sequence, spec, device);
    } else {
      extend(model, sequence, spec, device, bases, temperature);
    }
    return 0;
  });
}
