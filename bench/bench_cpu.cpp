// halo_bench_cpu FOLDER [THREADS]: Halo's half of bench/cpu_vs_pytorch.py, which runs both halves in turn on the same
// cores. Reads orders from standard input, answers each with one line:
//   conv NAME         takes FOLDER/NAME.safetensors: x, w, g, and the sizes under PyTorch's names
//   alexnet | hyena   takes the model, writes its parameters and its input to FOLDER/NAME.safetensors
//   run PASS N        N milliseconds; PASS is forward, backward_input, backward_weight or step
//   save              writes what the passes gave last to FOLDER/NAME.out.safetensors
#include <halo/halo.h>
#include <halo/nn/models/alexnet.h>
#include <halo/nn/models/hyena.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>

namespace halo::bench {
namespace {

/// What `run` runs, by pass, and what it gave.
struct Case {
  std::map<std::string, std::function<Tensor()>> passes;
  StateDict results;
};

IntList numbers(const Metadata& metadata, const std::string& key) {
  IntList list;
  std::istringstream text(metadata.at(key));
  for (std::string number; std::getline(text, number, ',');) list.push_back(std::stoll(number));
  return list;
}

Case conv_case(const std::string& path) {
  const auto [tensors, metadata] = load_safetensors(path);
  const Tensor x = tensors.at("x"), w = tensors.at("w"), g = tensors.at("g");
  ConvOptions options{.stride = numbers(metadata, "stride"),
                      .padding = numbers(metadata, "padding"),
                      .dilation = numbers(metadata, "dilation"),
                      .groups = numbers(metadata, "groups")[0]};
  if (metadata.at("transposed") == "1") {
    options.output_padding = numbers(metadata, "output_padding");
    const auto problem = ConvProblem::transposed("bench", x.shape(), w.shape(), options);
    return {{{"forward", [=] { return conv_backward_input(problem, x, w); }},
             {"backward_input", [=] { return conv_forward(problem, g, w); }},
             {"backward_weight", [=] { return conv_backward_weight(problem, g, x); }}},
            {}};
  }
  const auto problem = ConvProblem::conv("bench", x.shape(), w.shape(), options);
  return {{{"forward", [=] { return conv_forward(problem, x, w); }},
           {"backward_input", [=] { return conv_backward_input(problem, g, w); }},
           {"backward_weight", [=] { return conv_backward_weight(problem, x, g); }}},
          {}};
}

/// A model, its optimiser and one batch; a step is forward, loss, backward and update.
template <class Model, class Optimizer>
struct Training {
  template <class Options, class Rule>
  Training(const Options& options, const Rule& rule, Tensor input, Tensor wanted)
      : model(options), optimizer(model.parameters(), rule), x(std::move(input)), target(std::move(wanted)) {}

  Tensor step() {
    const Tensor logits = model(x);
    const Tensor loss = cross_entropy(logits.flatten(0, logits.rank() - 2), target.flatten());
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    return loss.detach();
  }

  Model model;
  Optimizer optimizer;
  Tensor x, target;
};

template <class T>
Case training_case(std::shared_ptr<T> training, const std::string& path) {
  StateDict state = training->model.state_dict();
  state["x"] = training->x;
  state["target"] = training->target;
  save_safetensors(path, state);
  return {{{"step", [training] { return training->step(); }}}, {}};
}

/// No dropout: both halves must see the same numbers.
Case alexnet_case(const std::string& path) {
  using T = Training<models::AlexNet, optim::SGD>;
  return training_case(
      std::make_shared<T>(models::AlexNetOptions{.dropout = 0}, optim::SGDOptions{.lr = 0.01, .momentum = 0.9},
                          randn({32, 3, 64, 64}), randint(0, 1000, {32})),
      path);
}

Case hyena_case(const std::string& path) {
  using T = Training<models::HyenaLM, optim::AdamW>;
  const models::HyenaLMOptions options{.mixer = {.d_model = 64, .l_max = 1024, .w = 1, .shift = 0},
                                       .n_layer = 2,
                                       .vocab_size = 16,
                                       .embed_dropout = 0,
                                       .tied_head = false,
                                       .activation = GeluForm::Exact};
  const Tensor ids = randint(0, 16, {8, 1024});
  return training_case(std::make_shared<T>(options, optim::AdamWOptions{.lr = 6e-4}, ids, ids), path);
}

std::string answer(const std::string& folder, const std::string& line, Case& current, std::string& name) {
  std::istringstream words(line);
  std::string order, argument;
  words >> order >> argument;
  if (order == "run") {
    using Clock = std::chrono::steady_clock;
    std::ostringstream times;
    int count = 0;
    words >> count;
    for (int i = 0; i < count; ++i) {
      const auto start = Clock::now();
      const Tensor result = current.passes.at(argument)();
      times << std::chrono::duration<double, std::milli>(Clock::now() - start).count() << ' ';
      current.results[argument] = result;
    }
    return times.str();
  }
  if (order == "save") {
    save_safetensors(concat(folder, '/', name, ".out.safetensors"), current.results);
    return "saved";
  }
  name = order == "conv" ? argument : order;
  const std::string path = concat(folder, '/', name, ".safetensors");
  current = {};  // one at a time in memory
  current = order == "conv" ? conv_case(path) : order == "alexnet" ? alexnet_case(path) : hyena_case(path);
  return "ready";
}

}  // namespace
}  // namespace halo::bench

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: halo_bench_cpu FOLDER [THREADS]\n");
    return 2;
  }
  try {
    if (argc > 2) halo::set_num_threads(std::stoi(argv[2]));
    halo::manual_seed(1);
    halo::bench::Case current;
    std::string name;
    for (std::string line; std::getline(std::cin, line);) {
      std::cout << halo::bench::answer(argv[1], line, current, name) << std::endl;
    }
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "halo_bench_cpu: %s\n", e.what());
    return 2;
  }
}
