// halo_conformance PATH... [--device cpu|cuda] [--dtype f32|f64] [--precision fp32|tf32]
//
// Runs reference cases (safetensors files; a folder means all of its own) and compares outputs and gradients. Prints a
// line a case and a summary; exits 0 only if nothing failed.
#include <halo/core/error.h>
#include <halo/core/precision.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "tests/conformance/case.h"
#include <CLI/CLI.hpp>

namespace {

using namespace halo;

/// Bounds: whole models accumulate more rounding than single operations.
double bound(const std::string& op, DType dtype, Precision precision) {
  if (dtype == DType::Float64) return 1e-10;
  const bool model = op == "hyenadna" || op == "alexnet";
  if (precision == Precision::TF32) return model ? 2e-2 : 2e-3;
  return model ? 2e-5 : 4e-6;
}

std::vector<std::string> files(const std::vector<std::string>& paths) {
  namespace fs = std::filesystem;
  std::vector<std::string> result;
  for (const std::string& path : paths) {
    if (!fs::is_directory(path)) {
      result.push_back(path);
      continue;
    }
    std::vector<std::string> inside;
    for (const auto& entry : fs::directory_iterator(path)) {
      if (entry.path().extension() == ".safetensors") inside.push_back(entry.path().string());
    }
    std::sort(inside.begin(), inside.end());
    result.insert(result.end(), inside.begin(), inside.end());
  }
  return result;
}

struct Counts {
  int passed = 0, failed = 0, skipped = 0;
};

void run(const std::string& path, const conformance::Setting& setting, Precision precision, Counts& counts) {
  const std::string name = std::filesystem::path(path).stem().string();
  try {
    conformance::Case c(path, setting);
    conformance::Result result;
    if (!conformance::run_operation(c, result)) {
      ++counts.skipped;
      std::printf("SKIP %s no operation \"%s\"\n", name.c_str(), c.op().c_str());
      return;
    }
    std::string worst;
    const double error = conformance::largest_error(c, result, worst);
    const bool ok = error <= bound(c.op(), setting.dtype, precision);
    ++(ok ? counts.passed : counts.failed);
    std::printf("%s %s %.3g", ok ? "PASS" : "FAIL", name.c_str(), error);
    if (!ok) std::printf(" (%s)", worst.c_str());
    std::printf("\n");
  } catch (const std::exception& e) {
    ++counts.failed;
    std::printf("FAIL %s %s\n", name.c_str(), e.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Runs reference cases against Halo"};
  std::vector<std::string> paths;
  std::string device = "cpu", dtype = "f32", precision = "fp32";
  app.add_option("paths", paths, "case files, or folders of them")->required()->check(CLI::ExistingPath);
  app.add_option("--device", device, "cpu, cuda or cuda:N");
  app.add_option("--dtype", dtype)->check(CLI::IsMember({"f32", "f64"}));
  app.add_option("--precision", precision)->check(CLI::IsMember({"fp32", "tf32"}));
  CLI11_PARSE(app, argc, argv);
  try {
    const conformance::Setting setting{Device::parse(device), dtype == "f64" ? DType::Float64 : DType::Float32};
    set_precision(precision == "tf32" ? Precision::TF32 : Precision::Float32);
    Counts counts;
    for (const std::string& path : files(paths)) run(path, setting, halo::precision(), counts);
    std::printf("%d passed, %d failed, %d skipped\n", counts.passed, counts.failed, counts.skipped);
    return counts.failed == 0 ? 0 : 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "halo_conformance: %s\n", e.what());
    return 2;
  }
}
