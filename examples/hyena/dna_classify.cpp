// Fine-tunes a HyenaDNA-style model to tell classes of sequences apart; dna_use tells them apart with it.
//
// Data: FASTA files (gzipped or not) whose header lines end in the class, a word of its own:
//   >chr1:1000-1250 promoter
//   >chr7:5000-5250 background
//
//   dna_classify --train train.fa --test test.fa                       from scratch
//   dna_classify ... --pretrained runs/dna/model.safetensors           from a model of dna_train (takes its sizes)
//   dna_classify ... --pretrained hyenadna.safetensors --d-model 256   from published weights (see convert_checkpoint)
//   dna_classify ... --resume                                          goes on where the last run stopped
//   dna_use runs/classify/model.safetensors classify new.fa            the classes of other sequences
#include <halo/data/fasta.h>
#include <halo/data/loader.h>
#include <halo/halo.h>

#include <algorithm>
#include <cstdio>

#include "dna_classifier.h"
#include "examples/common/program.h"
#include "examples/common/progress.h"
#include "examples/common/resume.h"
#include "examples/common/run_folder.h"
#include <CLI/CLI.hpp>

namespace {

using namespace halo;

struct Options {
  example::TrainingOptions training{.out = "runs/classify", .batch = 128, .lr = 6e-4};
  std::string train, test, pretrained;
  example::DnaSpec model{.d_model = 128, .layers = 2, .l_max = 1026};
  int64_t epochs = 20, length = 0;
  double weight_decay = 0.1;
  bool last = false, augment = true;
};

struct Labelled {
  std::vector<std::string> sequences;
  std::vector<int64_t> labels;
};

/// The last word of a header.
std::string class_of(const std::string& path, const data::FastaRecord& record) {
  const auto at = record.name.find_last_of(" \t");
  if (at == std::string::npos) {
    fail<FileError>(path, ": header expected a class as its last word, got \"", record.name, '"');
  }
  return record.name.substr(at + 1);
}

Labelled read(const std::string& path, const std::vector<std::string>& classes) {
  Labelled result;
  for (const auto& record : data::read_fasta(path)) {
    const auto found = std::ranges::find(classes, class_of(path, record));
    if (found == classes.end()) fail<FileError>(path, ": class ", class_of(path, record), " has no training example");
    result.labels.push_back(found - classes.begin());
    result.sequences.push_back(record.sequence);
  }
  if (result.labels.empty()) fail<FileError>(path, ": expected at least one sequence");
  return result;
}

std::vector<std::string> classes_in(const std::string& path) {
  std::vector<std::string> classes;
  for (const auto& record : data::read_fasta(path)) classes.push_back(class_of(path, record));
  std::ranges::sort(classes);
  const auto rest = std::ranges::unique(classes);
  classes.erase(rest.begin(), rest.end());
  return classes;
}

/// The sequences of some rows; `flip`: each is read from the other strand half of the time.
std::vector<std::string> sequences(const Labelled& data, const std::vector<int64_t>& rows, bool flip) {
  const auto strands = randint(0, 2, {static_cast<int64_t>(rows.size())}).to_vector<int64_t>();
  std::vector<std::string> result;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string& sequence = data.sequences[static_cast<std::size_t>(rows[i])];
    result.push_back(flip && strands[i] == 1 ? data::reverse_complement(sequence) : sequence);
  }
  return result;
}

Tensor labels(const Labelled& data, const std::vector<int64_t>& rows) {
  std::vector<int64_t> result;
  for (int64_t row : rows) result.push_back(data.labels[static_cast<std::size_t>(row)]);
  return from_vector(result, {static_cast<int64_t>(rows.size())});
}

double accuracy(models::HyenaClassifier& model, const Labelled& data, int64_t length, int64_t batch, Device device) {
  const NoGradGuard no_grad;
  model.eval();
  const auto count = static_cast<int64_t>(data.labels.size());
  int64_t right = 0;
  for (int64_t first = 0; first < count; first += batch) {
    std::vector<int64_t> rows;
    for (int64_t i = first; i < std::min(count, first + batch); ++i) rows.push_back(i);
    const Tensor tokens = example::classifier_tokens(sequences(data, rows, false), length).to(device);
    const auto guesses = argmax(model(tokens), 1).to_vector<int64_t>();
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

/// What the options and the data say, for a model that begins with the weights of `pretrained`.
example::DnaClassifierSpec spec_of(const Options& o, const std::vector<std::string>& classes, const Labelled& train,
                                   const Metadata& pretrained) {
  example::DnaClassifierSpec spec{.model = pretrained.contains("l_max") ? example::DnaSpec::from(pretrained) : o.model,
                                  .classes = classes,
                                  .length = o.length,
                                  .pooling = o.last ? models::SequencePooling::Last : models::SequencePooling::Mean};
  if (spec.length > spec.model.l_max) {
    fail("--length expected at most ", spec.model.l_max, " bases (the model's l_max), got ", spec.length);
  }
  if (spec.length == 0) {
    for (const auto& s : train.sequences) spec.length = std::max(spec.length, static_cast<int64_t>(s.size()));
    spec.length = std::min(spec.length, spec.model.l_max);
  }
  if (spec.length == 0) fail<FileError>(o.train, ": expected sequences of at least one base");
  return spec;
}

int run(const Options& o) {
  const example::TrainingOptions& training = o.training;
  const Device device = example::device_of(training.device);
  manual_seed(training.seed);
  const std::vector<std::string> classes = classes_in(o.train);
  const Labelled train = read(o.train, classes), test = read(o.test, classes);
  SafetensorsContent pretrained;
  if (!o.pretrained.empty()) pretrained = load_safetensors(o.pretrained);
  const example::DnaClassifierSpec spec = spec_of(o, classes, train, pretrained.metadata);
  models::HyenaClassifier model = spec.make();
  if (!o.pretrained.empty()) load_pretrained(model.language_model(), pretrained);
  model.to(device);

  data::BatchOrder order(static_cast<int64_t>(train.labels.size()), training.batch, training.seed);
  const int64_t steps = o.epochs * order.batches();
  optim::AdamW optimizer(model.parameters(), {.lr = training.lr, .weight_decay = o.weight_decay});
  optim::Scheduler scheduler(optimizer,
                             optim::cosine_schedule({.steps = steps, .warmup_steps = steps / 20, .end = 0.1}));
  example::Checkpoints checkpoints(training, model, optimizer, scheduler, spec.metadata());
  int64_t step = checkpoints.resume(device);
  example::RunFolder folder(training.out, step);
  std::printf("%zu and %zu sequences of up to %lld bases in %zu classes, %lld parameters, on %s%s\n",
              train.labels.size(), test.labels.size(), static_cast<long long>(spec.length), classes.size(),
              static_cast<long long>(model.num_parameters()), device.str().c_str(), example::going_on(step).c_str());
  example::Progress progress("classify", steps, "sequences", training.batch);
  while (step < steps) {
    const auto rows = order.batch(step / order.batches(), step % order.batches());
    const Tensor tokens = example::classifier_tokens(sequences(train, rows, o.augment), spec.length).to(device);
    const Tensor loss = cross_entropy(model(tokens), labels(train, rows).to(device));
    optimizer.zero_grad();
    loss.backward();
    optim::clip_grad_norm_(model.parameters(), 1.0);
    optimizer.step();
    scheduler.step();
    ++step;
    const double value = loss.item();
    folder.log(step, {{"loss", value}, {"lr", optimizer.lr()}});
    progress.step(step, value);
    checkpoints.save_if_due(step, step == steps);
  }
  progress.finish();
  const double share = accuracy(model, test, spec.length, training.batch, device);
  folder.log(step, {{"accuracy", share}});
  save_safetensors(folder.file("model.safetensors"), model.state_dict(), spec.metadata());
  std::printf(
      "\n  %.2f %% of the test sequences are right\n\nIn %s: model.safetensors, checkpoint.safetensors, "
      "metrics.jsonl\n",
      100 * share, training.out.c_str());
  return share < training.at_least ? 1 : 0;
}

void declare(CLI::App& app, Options& o) {
  app.add_option("--train", o.train, "FASTA whose headers end in the class")->required()->check(CLI::ExistingFile);
  app.add_option("--test", o.test, "the same, for the accuracy")->required()->check(CLI::ExistingFile);
  app.add_option("--pretrained", o.pretrained, "safetensors to start from")->check(CLI::ExistingFile);
  example::add_count(app, "--d-model", o.model.d_model, "width of the model", 1, 1 << 16);
  example::add_count(app, "--layers", o.model.layers, "blocks of the model", 1, 1024);
  example::add_count(app, "--l-max", o.model.l_max, "bases of the pretraining; the filters depend on it", 2);
  example::add_count(app, "--length", o.length, "bases used of a sequence; 0: those of the longest", 0);
  example::add_count(app, "--epochs", o.epochs, "passes over the training sequences");
  example::add_number(app, "--weight-decay", o.weight_decay, "of all weights", 0, 1000);
  app.add_flag("--pool-last", o.last, "take the last state instead of the mean");
  app.add_flag("!--no-reverse-complement", o.augment, "train on one strand only");
  example::add_training(app, o.training);
  example::add_at_least(app, o.training);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Fine-tunes a Hyena model on labelled DNA", "dna_classify"};
  declare(app, options);
  return example::run_program(app, argc, argv, [&] { return run(options); });
}
