#include "run_folder.h"

#include <halo/core/error.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace example {

RunFolder::RunFolder(const std::string& path, int64_t resume_step) : path_(path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) halo::fail<halo::FileError>(path, ": a folder cannot be made there: ", error.message());
  std::vector<std::string> kept;
  if (resume_step > 0) {
    std::ifstream old(file("metrics.jsonl"));
    for (std::string line; std::getline(old, line);) {
      const auto at = line.find("\"step\": ");
      if (at != std::string::npos && std::atoll(line.c_str() + at + 8) <= resume_step) kept.push_back(line);
    }
  }
  metrics_.open(file("metrics.jsonl"), std::ios::trunc);
  if (!metrics_) halo::fail<halo::FileError>(file("metrics.jsonl"), ": cannot be written");
  for (const std::string& line : kept) metrics_ << line << '\n';
}

void RunFolder::log(int64_t step, std::initializer_list<std::pair<const char*, double>> values) {
  metrics_ << "{\"step\": " << step;
  for (const auto& [key, value] : values) {
    char number[32];
    std::snprintf(number, sizeof number, "%.9g", value);
    metrics_ << ", \"" << key << "\": " << (std::isfinite(value) ? number : "null");  // JSON has no NaN
  }
  metrics_ << "}" << std::endl;
}

std::vector<std::pair<double, double>> RunFolder::series(const std::string& key) const {
  std::vector<std::pair<double, double>> points;
  std::ifstream in(file("metrics.jsonl"));
  const std::string wanted = "\"" + key + "\": ";
  for (std::string line; std::getline(in, line);) {
    const auto step = line.find("\"step\": "), at = line.find(wanted);
    if (step == std::string::npos || at == std::string::npos || line.compare(at + wanted.size(), 4, "null") == 0)
      continue;
    points.emplace_back(std::atof(line.c_str() + step + 8), std::atof(line.c_str() + at + wanted.size()));
  }
  return points;
}

}  // namespace example
