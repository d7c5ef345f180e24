// Files made by hand: numbers as bytes, and zip archives.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace halo::testing {

/// `value` as `bytes` little-endian bytes.
inline std::string little_endian(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xFF);
  return text;
}

inline uint32_t crc32(const std::string& bytes) {
  uint32_t sum = ~0u;
  for (unsigned char byte : bytes) {
    sum ^= byte;
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ ((sum & 1) != 0 ? 0xEDB88320u : 0u);
  }
  return ~sum;
}

using Members = std::map<std::string, std::string>;

/// A zip archive of stored members; `large` writes every size and place as zip64 does.
inline std::string zip(const Members& members, bool large = false, int method = 0) {
  const auto size = [&](uint64_t value) { return little_endian(large ? UINT32_MAX : value, 4); };
  std::string file, directory;
  for (const auto& [name, data] : members) {
    const uint64_t at = file.size();
    const std::string sums = little_endian(crc32(data), 4) + size(data.size()) + size(data.size());
    const std::string extra = large ? little_endian(1, 2) + little_endian(24, 2) + little_endian(data.size(), 8) +
                                          little_endian(data.size(), 8) + little_endian(at, 8)
                                    : std::string();
    const std::string common = little_endian(0, 2) + little_endian(method, 2) + little_endian(0, 4) + sums +
                               little_endian(name.size(), 2) + little_endian(extra.size(), 2);
    file += little_endian(0x04034b50, 4) + little_endian(20, 2) + common + name + extra + data;
    directory += little_endian(0x02014b50, 4) + little_endian(20, 2) + little_endian(20, 2) + common +
                 std::string(10, '\0') + size(at) + name + extra;
  }
  const uint64_t start = file.size();
  file += directory;
  if (large) {
    const uint64_t end64 = file.size();
    file += little_endian(0x06064b50, 4) + little_endian(44, 8) + std::string(12, '\0') +
            little_endian(members.size(), 8) + little_endian(members.size(), 8) + little_endian(directory.size(), 8) +
            little_endian(start, 8);
    file += little_endian(0x07064b50, 4) + little_endian(0, 4) + little_endian(end64, 8) + little_endian(1, 4);
  }
  return file + little_endian(0x06054b50, 4) + little_endian(0, 4) + little_endian(members.size(), 2) +
         little_endian(members.size(), 2) + size(directory.size()) + size(start) + little_endian(0, 2);
}

}  // namespace halo::testing
