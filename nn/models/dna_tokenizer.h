// The tokens of HyenaDNA: one a base.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace halo::models {

/// Numbers of the tokens that are no bases.
enum DnaToken : int64_t { kCls = 0, kSep = 1, kBos = 2, kMask = 3, kPad = 4, kReserved = 5, kUnknown = 6 };

struct DnaTokenizerOptions {
  bool cls = false;        ///< CLS in front; the stand-alone HyenaDNA has it, the research code has not
  bool sep = true;         ///< SEP, the end of sequence, behind
  int64_t max_length = 0;  ///< longer sequences lose their end, special tokens included in the count; 0: no limit
  int64_t pad_to = 0;      ///< PAD in front up to this length
};

/// A, C, G, T, N (any case) are 7 to 11, every other letter is UNKNOWN. @throws ArgumentError where max_length has no
/// room for the special tokens.
std::vector<int64_t> encode_dna(std::string_view sequence, const DnaTokenizerOptions& options = {});
/// The letters of `ids`; special tokens are left out, what is unknown is '.'. @throws ArgumentError for a number that
/// is no token.
std::string decode_dna(const std::vector<int64_t>& ids);

}  // namespace halo::models
