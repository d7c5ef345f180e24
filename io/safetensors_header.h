// The JSON header of a safetensors file: text to entries and back, with every check that needs no tensor data.
#pragma once

#include <halo/io/safetensors.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace halo::io {

struct SafetensorsHeader {
  std::map<std::string, SafetensorsReader::Entry> entries;
  Metadata metadata;
};

/// Largest header that is read or written, in bytes.
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

/// Parses `text` and checks that the entries cover `data_bytes` bytes exactly. Errors start with `path`.
SafetensorsHeader parse_safetensors_header(const std::string& path, const std::string& text, uint64_t data_bytes);

/// The header of tensors that follow one another in this order.
std::string safetensors_header(const std::vector<std::pair<std::string, Tensor>>& tensors, const Metadata& metadata);

}  // namespace halo::io
