// Fine-tunes a HyenaDNA-style model to tell classes of sequences apart.
//
// Data: FASTA files (gzipped or not) whose header lines end in the class, a word of its own:
//   >chr1:1000-1250 promoter
//   >chr7:5000-5250 background
//
//   dna_classify --train train.fa --test test.fa                       from scratch
//   dna_classify ... --pretrained runs/dna/model.safetensors           from a model of dna_train (takes its sizes)
//   dna_classify ... --pretrained hyenadna.safetensors --d-model 256   from published weights (see convert_checkpoint)
#include <halo/data/fasta.h>
#include <halo/data/loader.h>
#include <halo/halo.h>
#include <halo/nn/models/dna_tokenizer.h>
#include <halo/nn/models/hyena_classifier.h>

#include <algorithm>
#include <cstdio>

#include "dna_model.h"
#include "examples/common/program.h"
#include "examples/common/progress.h"
#include "examples/common/run_folder.h"
#include <CLI/CLI.hpp>

namespace {

using namespace halo;

struct Options {
  std::string train, test, pretrained, out = "runs/classify", device;
  example::DnaSpec spec{.d_model = 128, .layers = 2, .l_max = 1026};
  int64_t epochs = 20, batch = 128, length = 0;
  double lr = 6e-4, weight_decay = 0.1, at_least = 0;
  uint64_t seed = 1;
  bool last = false, augment = true;
};

struct Labelled {
  std::vector<std::string> sequences;
  std::vector<int64_t> labels;
};

/// The last word of a header.
std::string class_of(const data::FastaRecord& record) {
  const auto at = record.name.find_last_of(" \t");
  if (at == std::string::npos) fail("dna_classify: header expected a class as its last word, got \"", record.name, '"');
  return record.name.substr(at + 1);
}

Labelled read(const std::string& path, const std::vector<std::string>& classes) {
  Labelled result;
  for (const auto& record : data::read_fasta(path)) {
    const auto found = std::ranges::find(classes, class_of(record));
    if (found == classes.end()) fail("dna_classify: ", path, ": class ", class_of(record), " has no training example");
    result.labels.push_back(found - classes.begin());
    result.sequences.push_back(record.sequence);
  }
  if (result.labels.empty()) fail("dna_classify: ", path, " expected at least one sequence");
  return result;
}

std::vector<std::string> classes_in(const std::string& path) {
  std::vector<std::string> classes;
  for (const auto& record : data::read_fasta(path)) classes.push_back(class_of(record));
  std::ranges::sort(classes);
  const auto rest = std::ranges::unique(classes);
  classes.erase(rest.begin(), rest.end());
  return classes;
}

/// Token numbers of some sequences; `flip`: each is read from the other strand half of the time.
Tensor tokens(const Labelled& data, const std::vector<int64_t>& rows, int64_t length, bool flip) {
  const auto strands = randint(0, 2, {static_cast<int64_t>(rows.size())}).to_vector<int64_t>();
  std::vector<int64_t> ids;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string& sequence = data.sequences[static_cast<std::size_t>(rows[i])];
    const auto encoded =
        models::encode_dna(flip && strands[i] == 1 ? halo::data::reverse_complement(sequence) : sequence,
                           {.sep = false, .max_length = length, .pad_to = length});
    ids.insert(ids.end(), encoded.begin(), encoded.end());
  }
  return from_vector(ids, {static_cast<int64_t>(rows.size()), length});
}

Tensor labels(const Labelled& data, const std::vector<int64_t>& rows) {
  std::vector<int64_t> result;
  for (int64_t row : rows) result.push_back(data.labels[static_cast<std::size_t>(row)]);
  return from_vector(result, {static_cast<int64_t>(rows.size())});
}

double accuracy(models::HyenaClassifier& model, const Labelled& data, const Options& o, Device device) {
  const NoGradGuard no_grad;
  model.eval();
  const auto count = static_cast<int64_t>(data.labels.size());
  int64_t right = 0;
  for (int64_t first = 0; first < count; first += o.batch) {
    std::vector<int64_t> rows;
    for (int64_t i = first; i < std::min(count, first + o.batch); ++i) rows.push_back(i);
    const auto guesses = argmax(model(tokens(data, rows, o.length, false).to(device)), 1).to_vector<int64_t>();
    for (std::size_t i = 0; i < rows.size(); ++i) right += guesses[i] == data.labels[static_cast<std::size_t>(rows[i])];
  }
  model.train();
  return static_cast<double>(right) / static_cast<double>(count);
}

/// Weights into the language model: those of dna_train as they are, published ones under any of their names.
void load_pretrained(models::HyenaLM& model, const SafetensorsContent& file) {
  if (file.metadata.contains("l_max")) return model.load_state_dict(file.tensors);
  models::load_hyenadna(model, file.tensors);
}

int run(Options o) {
  const Device device = example::device_of(o.device);
  manual_seed(o.seed);
  const std::vector<std::string> classes = classes_in(o.train);
  const Labelled train = read(o.train, classes), test = read(o.test, classes);
  SafetensorsContent pretrained;
  if (!o.pretrained.empty()) pretrained = load_safetensors(o.pretrained);
  if (pretrained.metadata.contains("l_max")) o.spec = example::DnaSpec::from(pretrained.metadata);
  if (o.length == 0) {
    for (const auto& sequence : train.sequences) o.length = std::max(o.length, static_cast<int64_t>(sequence.size()));
    o.length = std::min(o.length, o.spec.l_max);
  }
  models::HyenaClassifier model(o.spec.options(), static_cast<int64_t>(classes.size()),
                                o.last ? models::SequencePooling::Last : models::SequencePooling::Mean);
  if (!o.pretrained.empty()) load_pretrained(model.language_model(), pretrained);
  model.to(device);

  data::BatchOrder order(static_cast<int64_t>(train.labels.size()), o.batch, o.seed);
  const int64_t steps = o.epochs * order.batches();
  optim::AdamW optimizer(model.parameters(), {.lr = o.lr, .weight_decay = o.weight_decay});
  optim::Scheduler scheduler(optimizer,
                             optim::cosine_schedule({.steps = steps, .warmup_steps = steps / 20, .end = 0.1}));
  example::RunFolder folder(o.out);
  std::printf("%zu and %zu sequences of up to %lld bases in %zu classes, %lld parameters, on %s\n", train.labels.size(),
              test.labels.size(), static_cast<long long>(o.length), classes.size(),
              static_cast<long long>(model.num_parameters()), device.str().c_str());
  example::Progress progress("classify", steps, "sequences", o.batch);
  for (int64_t epoch = 0, step = 0; epoch < o.epochs; ++epoch) {
    for (int64_t index = 0; index < order.batches(); ++index) {
      const auto rows = order.batch(epoch, index);
      const Tensor loss =
          cross_entropy(model(tokens(train, rows, o.length, o.augment).to(device)), labels(train, rows).to(device));
      optimizer.zero_grad();
      loss.backward();
      optim::clip_grad_norm_(model.parameters(), 1.0);
      optimizer.step();
      scheduler.step();
      const double value = loss.item();
      folder.log(++step, {{"loss", value}});
      progress.step(step, value);
    }
  }
  progress.finish();
  const double share = accuracy(model, test, o, device);
  folder.log(steps, {{"accuracy", share}});
  Metadata metadata = o.spec.metadata();
  for (std::size_t i = 0; i < classes.size(); ++i) metadata[concat("class.", i)] = classes[i];
  save_safetensors(folder.file("model.safetensors"), model.state_dict(), metadata);
  std::printf("\n  %.2f %% of the test sequences are right\n\n", 100 * share);
  return share < o.at_least ? 1 : 0;
}

void declare(CLI::App& app, Options& o) {
  app.add_option("--train", o.train, "FASTA whose headers end in the class")->required()->check(CLI::ExistingFile);
  app.add_option("--test", o.test, "the same, for the accuracy")->required()->check(CLI::ExistingFile);
  app.add_option("--pretrained", o.pretrained, "safetensors to start from")->check(CLI::ExistingFile);
  app.add_option("--out", o.out, "folder for the model and metrics");
  example::add_device(app, o.device);
  app.add_option("--d-model", o.spec.d_model)->check(CLI::PositiveNumber);
  app.add_option("--layers", o.spec.layers)->check(CLI::PositiveNumber);
  app.add_option("--l-max", o.spec.l_max, "of the pretraining; the filters depend on it")->check(CLI::PositiveNumber);
  app.add_option("--length", o.length, "bases used of a sequence; default: those of the longest");
  app.add_option("--epochs", o.epochs)->check(CLI::PositiveNumber);
  app.add_option("--batch", o.batch)->check(CLI::PositiveNumber);
  app.add_option("--lr", o.lr);
  app.add_option("--weight-decay", o.weight_decay);
  app.add_option("--seed", o.seed);
  app.add_option("--at-least", o.at_least, "exit with 1 below this accuracy");
  app.add_flag("--pool-last", o.last, "take the last state instead of the mean");
  app.add_flag("!--no-reverse-complement", o.augment, "train on one strand only");
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Fine-tunes a Hyena model on labelled DNA", "dna_classify"};
  declare(app, options);
  return example::run_program(app, argc, argv, [&] { return run(options); });
}
