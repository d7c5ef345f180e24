// Scores and continues DNA given on the command line with a model that dna_train left, or classifies the sequences of
// FASTA files with one that dna_classify left.
//
//   dna_use runs/dna/model.safetensors score ACGTACGT...
//   dna_use runs/dna/model.safetensors continue ACGTACGT... --bases 50 --temperature 0.8
//   dna_use runs/classify/model.safetensors classify new.fa more.fa.gz
#include <halo/cuda/graph.h>
#include <halo/data/fasta.h>
#include <halo/halo.h>
#include <halo/nn/models/dna_tokenizer.h>
#include <halo/nn/models/hyena_decoder.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "dna_classifier.h"
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
    fail("score expected a sequence of 2 to ", spec.l_max, " bases, got ", length);
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
  if (ids.empty()) fail("continue expected a sequence of at least one base");
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

/// The likeliest classes of every sequence in a FASTA file, a line each.
void classify(models::HyenaClassifier& model, const example::DnaClassifierSpec& spec, const std::string& path,
              int64_t top, Device device) {
  constexpr std::size_t kBatch = 64;
  const auto records = data::read_fasta(path);
  const int64_t shown = std::min(top, static_cast<int64_t>(spec.classes.size()));
  for (std::size_t first = 0; first < records.size(); first += kBatch) {
    std::vector<std::string> sequences;
    for (std::size_t i = first; i < std::min(records.size(), first + kBatch); ++i)
      sequences.push_back(records[i].sequence);
    const Tensor tokens = example::classifier_tokens(sequences, spec.length).to(device);
    const auto best = topk(softmax(model(tokens), 1), shown, 1);
    const auto shares = best.values.to_vector<double>();
    const auto classes = best.indices.to_vector<int64_t>();
    for (std::size_t i = 0; i < classes.size(); ++i) {
      const std::size_t row = i / static_cast<std::size_t>(shown), place = i % static_cast<std::size_t>(shown);
      if (place == 0) std::printf("%s:", records[first + row].name.c_str());
      std::printf("%s %s %.1f %%", place > 0 ? "," : "", spec.classes[static_cast<std::size_t>(classes[i])].c_str(),
                  100 * shares[i]);
      if (place + 1 == static_cast<std::size_t>(shown)) std::printf("\n");
    }
  }
}

template <class Model>
void prepare(Model& model, const SafetensorsContent& file, Device device) {
  model.load_state_dict(file.tensors);
  model.to(device);
  model.eval();
}

struct Options {
  std::string model, sequence, device;
  std::vector<std::string> files;
  int64_t bases = 60, top = 1;
  double temperature = 1;
  uint64_t seed = 1;
};

int run(const CLI::App& app, const Options& o) {
  const NoGradGuard no_grad;
  const Device device = example::device_of(o.device);
  manual_seed(o.seed);
  const SafetensorsContent file = load_safetensors(o.model);
  const bool classifier = file.metadata.contains("class.0");
  if (app.got_subcommand("classify")) {
    const auto spec = example::DnaClassifierSpec::from(file.metadata);
    models::HyenaClassifier model = spec.make();
    prepare(model, file, device);
    for (const std::string& path : o.files) classify(model, spec, path, o.top, device);
    return 0;
  }
  if (classifier) fail<FileError>(o.model, ": expected a language model (of dna_train), got a classifier");
  const auto spec = example::DnaSpec::from(file.metadata);
  models::HyenaLM model(spec.options());
  prepare(model, file, device);
  if (app.got_subcommand("score")) {
    score(model, o.sequence, spec, device);
  } else {
    extend(model, o.sequence, spec, device, o.bases, o.temperature);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Scores, continues and classifies DNA", "dna_use"};
  Options o;
  app.add_option("model", o.model, "model.safetensors of a training")->required()->check(CLI::ExistingFile);
  example::add_device(app, o.device);
  CLI::App& score_command = *app.add_subcommand("score", "bits a base of a sequence");
  CLI::App& continue_command = *app.add_subcommand("continue", "more bases after a sequence");
  CLI::App& classify_command = *app.add_subcommand("classify", "the classes of the sequences in FASTA files");
  for (CLI::App* command : {&score_command, &continue_command})
    command->add_option("sequence", o.sequence, "A, C, G, T")->required();
  example::add_count(continue_command, "--bases", o.bases, "how many", 0);
  example::add_number(continue_command, "--temperature", o.temperature, "0: always the likeliest", 0, 1000);
  example::add_seed(continue_command, o.seed);
  classify_command.add_option("files", o.files, "FASTA, gzipped or not")->required()->check(CLI::ExistingFile);
  example::add_count(classify_command, "--top", o.top, "classes shown a sequence");
  app.require_subcommand(1);
  return example::run_program(app, argc, argv, [&] { return run(app, o); });
}
