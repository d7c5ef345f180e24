#include "choices.h"

#include <halo/core/error.h>

#include <array>
#include <cstdint>
#include <iomanip>
#include <locale>
#include <sstream>

namespace halo::cuda::conv {
namespace {

constexpr const char* kTitle = "halo convolution choices 1";
constexpr const char* kColumns =
    "# pass dtype precision ms batch in_channels out_channels groups rank, then depth height width of input, kernel, "
    "output, stride, dilation, padding before, padding after; kernel chosen";

constexpr ConvPass kPasses[] = {ConvPass::Forward, ConvPass::BackwardInput, ConvPass::BackwardWeight};
constexpr DType kDTypes[] = {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16};
constexpr Precision kPrecisions[] = {Precision::Float32, Precision::TF32};

/// Every number of a problem, in the order of the file.
template <class Problem, class F>
void for_each_number(Problem& p, const F& f) {
  for (auto* value : {&p.batch, &p.in_channels, &p.out_channels, &p.groups}) f(*value);
  f(p.rank);
  for (auto* extents : {&p.input, &p.kernel, &p.output, &p.stride, &p.dilation, &p.padding_before, &p.padding_after}) {
    for (auto& value : *extents) f(value);
  }
}

/// FNV-1a, 64 bits (http://www.isthe.com/chongo/tech/comp/fnv/).
uint64_t checksum(const std::string& text) {
  uint64_t sum = 0xcbf29ce484222325u;
  for (const char c : text) sum = (sum ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return sum;
}

/// The one of `all` whose name is the next word; false if there is none.
template <class T, std::size_t N>
bool read_name(std::istream& from, const T (&all)[N], T& value) {
  std::string word;
  from >> word;
  for (const T candidate : all) {
    if (word == name(candidate)) {
      value = candidate;
      return true;
    }
  }
  return false;
}

bool read_choice(const std::string& line, Choice& choice) {
  std::istringstream from(line);
  from.imbue(std::locale::classic());
  ChoiceKey& key = choice.key;
  if (!read_name(from, kPasses, key.pass) || !read_name(from, kDTypes, key.dtype) ||
      !read_name(from, kPrecisions, key.precision)) {
    return false;
  }
  from >> choice.ms;
  for_each_number(key.problem, [&](auto& value) { from >> value; });
  return from >> std::ws && std::getline(from, choice.kernel);
}

/// What follows `word` and a space.
bool read_field(const std::string& line, const std::string& word, std::string& value) {
  if (line.compare(0, word.size() + 1, word + ' ') != 0) return false;
  value = line.substr(word.size() + 1);
  return true;
}

}  // namespace

std::string to_text(const ChoiceFile& file) {
  std::ostringstream to;
  to.imbue(std::locale::classic());
  to << kTitle << "\ngpu " << file.on.gpu << "\ndriver " << file.on.driver << "\nbuild " << file.on.build << '\n'
     << kColumns << '\n';
  for (const Choice& choice : file.choices) {
    const ChoiceKey& key = choice.key;
    to << name(key.pass) << ' ' << name(key.dtype) << ' ' << name(key.precision) << ' ' << std::setprecision(6)
       << choice.ms;
    for_each_number(key.problem, [&](const auto& value) { to << ' ' << value; });
    to << ' ' << choice.kernel << '\n';
  }
  std::string text = to.str();
  std::ostringstream sum;
  sum << "sum " << std::hex << std::setw(16) << std::setfill('0') << checksum(text) << '\n';
  return text + sum.str();
}

ChoiceFile parse_choices(const std::string& text, const std::string& name) {
  const std::size_t last = text.rfind("sum ");
  std::istringstream lines(text.substr(0, last));
  std::string line;
  std::getline(lines, line);
  if (line != kTitle) fail<FileError>(name, ": line 1 expected \"", kTitle, "\", got \"", line.substr(0, 60), '"');
  std::ostringstream sum;
  if (last != std::string::npos) {
    sum << "sum " << std::hex << std::setw(16) << std::setfill('0') << checksum(text.substr(0, last)) << '\n';
  }
  if (last == std::string::npos || text.substr(last) != sum.str()) {
    fail<FileError>(name, ": the file is cut off or was changed (its checksum does not fit); measure again");
  }
  ChoiceFile file;
  const std::array<std::pair<const char*, std::string*>, 3> head{
      {{"gpu", &file.on.gpu}, {"driver", &file.on.driver}, {"build", &file.on.build}}};
  int number = 1;
  for (const auto& [word, value] : head) {
    ++number;
    if (!std::getline(lines, line) || !read_field(line, word, *value)) {
      fail<FileError>(name, ": line ", number, " expected \"", word, " ...\", got \"", line.substr(0, 60), '"');
    }
  }
  while (std::getline(lines, line)) {
    ++number;
    if (line.empty() || line[0] == '#') continue;
    Choice choice;
    if (!read_choice(line, choice)) {
      fail<FileError>(name, ": line ", number, " expected a convolution and its kernel, got \"", line.substr(0, 60),
                      '"');
    }
    file.choices.push_back(choice);
  }
  return file;
}

std::string why_ignored(const MeasuredOn& file, const MeasuredOn& here, const std::string& name) {
  const auto differs = [&](const char* what, const std::string& then, const std::string& now) {
    return concat(name, ": ignored, since it was measured with ", what, ' ', then, " and this is ", now);
  };
  if (file.gpu != here.gpu) return differs("GPU", file.gpu, here.gpu);
  if (file.driver != here.driver) return differs("driver", file.driver, here.driver);
  if (file.build != here.build) return differs("build", file.build, here.build);
  return {};
}

}  // namespace halo::cuda::conv
