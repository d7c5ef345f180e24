#include "program.h"

#include <cstdio>
#include <exception>

#include <CLI/CLI.hpp>

namespace example {

int run_program(CLI::App& app, int argc, char** argv, const std::function<int()>& run) {
  CLI11_PARSE(app, argc, argv);
  try {
    return run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), e.what());
    return 2;
  }
}

void add_device(CLI::App& app, std::string& name) {
  app.add_option("--device", name, "cpu, cuda or cuda:N; default: a GPU where there is one");
}

halo::Device device_of(const std::string& name) {
  return name.empty() ? halo::Device::best() : halo::Device::parse(name);
}

}  // namespace example
