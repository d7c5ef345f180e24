#include "dispatch.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <iomanip>
#include <limits>
#include <mutex>
#include <sstream>
#include <unordered_map>

#include "../launch.h"
#include "algorithms.h"
#include "plan_key.h"

namespace halo::cuda::conv {
namespace {

constexpr std::array<const Algorithm*, 26> kAlgorithms{
    &kDense,
    &kDenseSmall,
    &kSpread,
    &kDenseWeight,
    &kPortable,
    &kDepthwise,
    &kDepthwiseHalf,
    &kDepthwiseRows,
    &kDepthwiseColumns,
    &kDepthwisePolyphase,
    &kDepthwiseWindows,
    &kSmallGroups,
    &kSmallGroupsMarch,
    &kPhases,
    &kPhaseRows,
    &kStraight,
    &kStreams,
    &kStreamsWeight,
    &kPointwise,
    &kFewResults,
    &kFewSources,
    &kFewTaps,
    &kFewTapsRows,
    &kOnePhase,
    &kWidened,
    &kDirect,
};

/// Measured choices by device, and who wants to know what is asked for. Most programs have neither.
struct Measured {
  std::atomic<bool> any = false;
  std::mutex mutex;
  std::unordered_map<int, std::unordered_map<ChoiceKey, const Algorithm*, ChoiceKeyHash>> chosen;
  std::vector<ChoiceKey>* noted = nullptr;
  int noted_device = 0;
};

Measured& measured() {
  static Measured instance;
  return instance;
}

/// The measured choice for the current device, if there is one that supports this; notes what was asked for.
const Algorithm* measured_choice(const ConvProblem& problem, const ConvConfig& config) {
  Measured& m = measured();
  if (!m.any) return nullptr;
  int device = 0;
  check(cudaGetDevice(&device), "convolution");
  const ChoiceKey key{problem, config.pass, config.dtype, config.precision};
  const std::lock_guard lock(m.mutex);
  if (m.noted != nullptr && m.noted_device == device &&
      std::find(m.noted->begin(), m.noted->end(), key) == m.noted->end()) {
    m.noted->push_back(key);
  }
  const auto choices = m.chosen.find(device);
  if (choices == m.chosen.end()) return nullptr;
  const auto found = choices->second.find(key);
  return found != choices->second.end() && found->second->supports(problem, config) ? found->second : nullptr;
}

/// The algorithm with the least predicted time.
const Algorithm* least_predicted(const ConvProblem& problem, const ConvConfig& config) {
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
    fail<InternalError>("convolution: ", name(config.pass), " of ", name(config.dtype), " has no kernel");
  }
  return best;
}

}  // namespace

void use_choices(int device, const std::vector<Choice>& choices) {
  std::unordered_map<ChoiceKey, const Algorithm*, ChoiceKeyHash> chosen;
  for (const Choice& choice : choices) chosen[choice.key] = &find_algorithm(choice.kernel);
  Measured& m = measured();
  const std::lock_guard lock(m.mutex);
  m.chosen[device] = std::move(chosen);
  m.any = true;
}

void forget_choices() {
  Measured& m = measured();
  const std::lock_guard lock(m.mutex);
  m.chosen.clear();
  m.any = m.noted != nullptr;
}

std::vector<ChoiceKey> convolutions_of(int device, const std::function<void()>& body) {
  Measured& m = measured();
  std::vector<ChoiceKey> noted;
  const auto note_into = [&](std::vector<ChoiceKey>* target) {
    const std::lock_guard lock(m.mutex);
    if (target != nullptr && m.noted != nullptr) fail("tune_convolutions: another call is running");
    m.noted = target;
    m.noted_device = device;
    m.any = target != nullptr || !m.chosen.empty();
  };
  note_into(&noted);
  struct Stop {
    const decltype(note_into)& note;
    ~Stop() { note(nullptr); }
  };
  {
    const Stop stop{note_into};
    body();
  }
  return noted;
}

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
  if (const Algorithm* fastest = measured_choice(problem, config)) return *fastest;
  return predicted_algorithm(problem, config);
}

const Algorithm& predicted_algorithm(const ConvProblem& problem, const ConvConfig& config) {
  return **kept_plan<least_predicted>(problem, config);
}

std::string explain(const ConvProblem& problem, const ConvConfig& config) {
  std::ostringstream text;
  text << problem.str() << ' ' << name(config.pass) << ' ' << name(config.dtype) << '\n';
  const bool by_measurement = measured_choice(problem, config) != nullptr;
  const Algorithm* chosen = &select_algorithm(problem, config);
  for (const Algorithm* algorithm : kAlgorithms) {
    text << (algorithm == chosen ? " -> " : "    ") << std::left << std::setw(28) << algorithm->name;
    if (algorithm->supports(problem, config)) {
      text << std::setprecision(4) << algorithm->predict_ms(problem, config) << " ms predicted, workspace "
           << algorithm->workspace_bytes(problem, config) << " bytes";
      if (algorithm == chosen)
        text << (by_measurement ? ", chosen: measured fastest" : ", chosen: least predicted time");
      text << '\n';
    } else {
      text << "not supported\n";
    }
  }
  return text.str();
}

}  // namespace halo::cuda::conv
