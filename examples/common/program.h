// The frame of a program: its options, its device, and how it ends.
#pragma once

#include <halo/core/device.h>

#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace example {

/// Reads the arguments into what `app` was told, then calls `run`, whose result is the program's. Wrong arguments end
/// it with a message, and an exception with one line that names the app, and 2.
int run_program(CLI::App& app, int argc, char** argv, const std::function<int()>& run);

/// Adds --device.
void add_device(CLI::App& app, std::string& name);
/// What --device named; by default a GPU where there is one.
halo::Device device_of(const std::string& name);

}  // namespace example
