#include "program.h"

#include <halo/core/error.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <exception>
#include <new>
#include <type_traits>

#include <CLI/CLI.hpp>

namespace example {
namespace {

int complain(const CLI::App& app, std::string text, const char* hint = "") {
  std::ranges::replace(text, '\n', ' ');
  std::fprintf(stderr, "%s: %s%s\n", app.get_name().c_str(), text.c_str(), hint);
  return 2;
}

/// Refuses what is not in [least, most], NaN included.
template <class T>
CLI::Option* add_between(CLI::App& app, const std::string& name, T& value, const std::string& help, T least, T most) {
  const auto check = [least, most](const std::string& text) {
    T number{};
    const bool read = (std::is_signed_v<T> || !text.starts_with('-')) && CLI::detail::lexical_cast(text, number);
    if (read && number >= least && number <= most) return std::string();
    return halo::concat("expected a number from ", least, " to ", most, ", got ", text);
  };
  return app.add_option(name, value, help)->check(CLI::Validator(check, "", "between"))->capture_default_str();
}

}  // namespace

int run_program(CLI::App& app, int argc, char** argv, const std::function<int()>& run) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(e);  // --help
    return complain(app, e.what(), " (--help lists the options)");
  }
  try {
    return run();
  } catch (const std::bad_alloc&) {
    return complain(app, "the memory does not suffice");
  } catch (const std::exception& e) {
    return complain(app, e.what());
  }
}

void add_count(CLI::App& app, const std::string& name, int64_t& value, const std::string& help, int64_t least,
               int64_t most) {
  add_between(app, name, value, help, least, most);
}

void add_number(CLI::App& app, const std::string& name, double& value, const std::string& help, double least,
                double most) {
  add_between(app, name, value, help, least, most);
}

void add_seed(CLI::App& app, uint64_t& seed) {
  add_between<uint64_t>(app, "--seed", seed, "of everything that is drawn", 0, INT64_MAX);
}

void add_device(CLI::App& app, std::string& name) {
  app.add_option("--device", name, "cpu, cuda or cuda:N; default: a GPU where there is one");
}

halo::Device device_of(const std::string& name) {
  return name.empty() ? halo::Device::best() : halo::Device::parse(name);
}

void add_training(CLI::App& app, TrainingOptions& o) {
  app.add_option("--out", o.out, "folder for the model, checkpoints, metrics and pictures")->capture_default_str();
  add_count(app, "--batch", o.batch, "examples a step");
  add_number(app, "--lr", o.lr, "largest learning rate", 0, 1000);
  add_seed(app, o.seed);
  add_device(app, o.device);
  add_count(app, "--save-every", o.save_every, "steps between checkpoints");
  app.add_flag("--resume", o.resume, "go on from the last checkpoint in --out: the same bits as without a stop");
}

void add_at_least(CLI::App& app, TrainingOptions& o) {
  add_number(app, "--at-least", o.at_least, "exit with 1 below this accuracy", 0, 1);
}

int64_t metadata_number(const halo::Metadata& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) halo::fail<halo::FileError>("model: expected \"", key, "\" in its metadata");
  const std::string& text = found->second;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1) {
    halo::fail<halo::FileError>("model: expected \"", key, "\" of its metadata to be 1 or more, got \"", text, '"');
  }
  return number;
}

}  // namespace example
