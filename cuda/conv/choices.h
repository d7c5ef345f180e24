// Measured kernel choices: which kernel was fastest for which convolution, where that was measured, and the file that
// keeps both. No GPU needed here; cuda/tuning.h is what users call.
#pragma once

#include <halo/core/dtype.h>
#include <halo/core/precision.h>
#include <halo/ops/conv_problem.h>

#include <string>
#include <vector>

namespace halo::cuda::conv {

/// What is chosen for. Alignment, bias and activation are left out: they hardly change which kernel is fastest, and a
/// kernel that does not support a call's is passed over.
struct ChoiceKey {
  ConvProblem problem;
  ConvPass pass = ConvPass::Forward;
  DType dtype = DType::Float32;
  Precision precision = Precision::Float32;
  bool operator==(const ChoiceKey&) const = default;
};

struct ChoiceKeyHash {
  std::size_t operator()(const ChoiceKey& key) const { return hash_value(key.problem); }
};

struct Choice {
  ChoiceKey key;
  std::string kernel;  ///< an Algorithm's name
  double ms = 0;       ///< when it was measured
};

/// Where choices hold.
struct MeasuredOn {
  std::string gpu, driver, build;
  bool operator==(const MeasuredOn&) const = default;
};

struct ChoiceFile {
  MeasuredOn on;
  std::vector<Choice> choices;
};

/// The text of a file: a head, a line a choice, and a checksum of it all.
std::string to_text(const ChoiceFile& file);

/// What to_text wrote. `name` is the file's, for messages.
/// @throws FileError naming file and line where the text is of another version, cut off, or changed.
ChoiceFile parse_choices(const std::string& text, const std::string& name);

/// Empty if choices of `file` hold `here`, else one sentence on why not.
std::string why_ignored(const MeasuredOn& file, const MeasuredOn& here, const std::string& name);

}  // namespace halo::cuda::conv
