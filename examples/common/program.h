// The frame of a program: its options, its device, and how it ends.
#pragma once

#include <halo/core/device.h>
#include <halo/core/state_dict.h>

#include <cstdint>
#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace example {

/// Reads the arguments into what `app` was told, then calls `run`, whose result is the program's. Wrong arguments end
/// it with one line that says what was expected, an exception with one that names the app, both with 2.
int run_program(CLI::App& app, int argc, char** argv, const std::function<int()>& run);

/// An option that takes a whole number from `least` to `most`; --help shows the default.
void add_count(CLI::App& app, const std::string& name, int64_t& value, const std::string& help, int64_t least = 1,
               int64_t most = 1'000'000'000);
/// An option that takes a number from `least` to `most`; neither infinity nor NaN is one.
void add_number(CLI::App& app, const std::string& name, double& value, const std::string& help, double least,
                double most);

/// Adds --seed.
void add_seed(CLI::App& app, uint64_t& seed);
/// Adds --device.
void add_device(CLI::App& app, std::string& name);
/// What --device named; by default a GPU where there is one.
halo::Device device_of(const std::string& name);

/// What every program that trains can be told.
struct TrainingOptions {
  std::string out;  ///< folder
  int64_t batch = 1;
  double lr = 1e-3;
  int64_t save_every = 100;  ///< steps
  double at_least = 0;       ///< of a share that a program measures in the end
  uint64_t seed = 1;
  std::string device{};
  bool resume = false;
};
/// Adds --out, --batch, --lr, --seed, --device, --save-every and --resume.
void add_training(CLI::App& app, TrainingOptions& options);
/// Adds --at-least.
void add_at_least(CLI::App& app, TrainingOptions& options);

/// A whole number of at least 1 that a file's metadata holds under `key`. @throws FileError where it does not.
int64_t metadata_number(const halo::Metadata& metadata, const std::string& key);

}  // namespace example
