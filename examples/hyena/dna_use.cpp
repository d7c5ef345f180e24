// Scores and continues DNA given on the command line with a model that dna_train left.
//
//   dna_use runs/dna/model.safetensors score ACGTACGT...
//   dna_use runs/dna/model.safetensors continue ACGTACGT... --bases 50 --temperature 0.8
#include <halo/halo.h>
#include <halo/nn/models/dna_tokenizer.h>

#include <cmath>
#include <cstdio>

#include "dna_model.h"
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

/// Appends bases, each drawn from what the model expects (temperature 0: the likeliest).
void extend(models::HyenaLM& model, const std::string& sequence, const example::DnaSpec& spec, Device device,
            int64_t bases, double temperature) {
  constexpr int64_t kFirstBase = 7, kBases = 4;  // A, C, G, T
  auto ids = models::encode_dna(sequence, {.sep = false});
  if (ids.empty()) fail("continue: sequence expected at least one base");
  for (int64_t i = 0; i < bases; ++i) {
    const auto length = std::min(static_cast<int64_t>(ids.size()), spec.l_max);
    const std::vector<int64_t> context(ids.end() - length, ids.end());
    const Tensor logits = model(from_vector(context, {1, length}).to(device)).select(0, 0).select(0, length - 1);
    const Tensor choices = logits.slice(0, kFirstBase, kFirstBase + kBases).to(Device::cpu());
    const int64_t chosen = temperature > 0
                               ? static_cast<int64_t>(multinomial(softmax(choices / temperature, 0), 1).item())
                               : static_cast<int64_t>(argmax(choices).item());
    ids.push_back(kFirstBase + chosen);
  }
  std::printf("%s\n", models::decode_dna(ids).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Scores and continues DNA"};
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
  CLI11_PARSE(app, argc, argv);
  try {
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
  } catch (const std::exception& e) {
    std::fprintf(stderr, "dna_use: %s\n", e.what());
    return 2;
  }
}
