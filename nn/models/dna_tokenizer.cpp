#include <halo/core/error.h>
#include <halo/nn/models/dna_tokenizer.h>

#include <algorithm>
#include <cctype>

namespace halo::models {
namespace {

constexpr std::string_view kBases = "ACGTN";
constexpr int64_t kFirstBase = 7;

int64_t token_of(char letter) {
  const auto base = kBases.find(static_cast<char>(std::toupper(static_cast<unsigned char>(letter))));
  return base == std::string_view::npos ? int64_t{kUnknown} : kFirstBase + static_cast<int64_t>(base);
}

}  // namespace

std::vector<int64_t> encode_dna(std::string_view sequence, const DnaTokenizerOptions& o) {
  const int64_t special = int64_t{o.cls} + int64_t{o.sep};
  if (o.max_length < 0 || (o.max_length > 0 && o.max_length < special)) {
    fail("encode_dna: max_length expected 0 or room for ", special, " special tokens, got ", o.max_length);
  }
  if (o.max_length > 0) sequence = sequence.substr(0, static_cast<std::size_t>(o.max_length - special));
  const int64_t length = static_cast<int64_t>(sequence.size()) + special;
  std::vector<int64_t> ids(static_cast<std::size_t>(std::max<int64_t>(0, o.pad_to - length)), kPad);
  if (o.cls) ids.push_back(kCls);
  for (char letter : sequence) ids.push_back(token_of(letter));
  if (o.sep) ids.push_back(kSep);
  return ids;
}

std::string decode_dna(const std::vector<int64_t>& ids) {
  std::string text;
  for (int64_t id : ids) {
    if (id < 0 || id >= kFirstBase + static_cast<int64_t>(kBases.size())) {
      fail("decode_dna: ids expected 0 to 11, got ", id);
    }
    if (id >= kFirstBase) text += kBases[static_cast<std::size_t>(id - kFirstBase)];
    if (id == kUnknown) text += '.';
  }
  return text;
}

}  // namespace halo::models
