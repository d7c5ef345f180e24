#include "dispatch.h"

#include <array>
#include <iomanip>
#include <limits>
#include <sstream>

#include "algorithms.h"

namespace halo::cuda::conv {
namespace {

constexpr std::array<const Algorithm*, 6> kAlgorithms{
    &kDense, &kDenseWeight, &kDepthwise, &kDepthwiseGeneral, &kSmallGroups, &kDirect,
};

}  // namespace

std::span<const Algorithm* const> algorithms() { return kAlgorithms; }

const Algorithm& find_algorithm(std::string_view name) {
  std::string known;
  for (const Algorithm* algorithm : kAlgorithms) {
    if (name == algorithm->name) return *algorithm;
    known += (known.empty() ? "" : ", ") + std::string(algorithm->name);
  }
  fail("find_algorithm: name expected one of ", known, ", got ", name);
}

const Algorithm& select_algorithm(const ConvProblem& problem, const ConvConfig& config) {
  const Algorithm* best = nullptr;
  double best_ms = std::numeric_limits<double>::infinity();
  for (const Algorithm* algorithm : kAlgorithms) {
    if (!algorithm->supports(problem, config)) continue;
    const double ms = algorithm->predict_ms(problem, config);
    if (best == nullptr || ms < best_ms) {
      best = algorithm;
      best_ms = ms;
    }
  }
  if (best == nullptr) {
    fail("convolution: ", name(config.pass), " expects float32 or float64 on CUDA, got ", name(config.dtype),
         " (not implemented for it)");
  }
  return *best;
}

std::string explain(const ConvProblem& problem, const ConvConfig& config) {
  std::ostringstream text;
  text << problem.str() << ' ' << name(config.pass) << ' ' << name(config.dtype) << '\n';
  const Algorithm* chosen = &select_algorithm(problem, config);
  for (const Algorithm* algorithm : kAlgorithms) {
    text << (algorithm == chosen ? " -> " : "    ") << std::left << std::setw(28) << algorithm->name;
    if (algorithm->supports(problem, config)) {
      text << std::setprecision(4) << algorithm->predict_ms(problem, config) << " ms predicted, workspace "
           << algorithm->workspace_bytes(problem, config) << " bytes\n";
    } else {
      text << "not supported\n";
    }
  }
  return text.str();
}

}  // namespace halo::cuda::conv
