#include <halo/core/atomic_file.h>
#include <halo/core/error.h>
#include <halo/data/fasta.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <string_view>

#include "file.h"

namespace halo::data {
namespace {

constexpr std::string_view kBases = "ACGT";
constexpr std::string_view kMagic = "HALO2BIT";
constexpr int64_t kMostBases = int64_t{1} << 36;

/// Splits a file into lines without their ends.
template <class F>
void for_each_line(InputFile& file, F&& f) {
  std::vector<char> buffer(std::size_t{1} << 16);
  std::string line;
  while (const std::size_t got = file.read(buffer.data(), buffer.size())) {
    const char* at = buffer.data();
    const char* const end = at + got;
    while (at < end) {
      const char* stop = std::find(at, end, '\n');
      line.append(at, stop);
      if (stop == end) break;
      f(line);
      line.clear();
      at = stop + 1;
    }
  }
  if (!line.empty()) f(line);
}

}  // namespace

std::vector<FastaRecord> read_fasta(const std::string& path) {
  InputFile file(path);
  std::vector<FastaRecord> records;
  int64_t number = 0;
  for_each_line(file, [&](std::string& line) {
    ++number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || line[0] == ';') return;
    if (line[0] == '>') {
      records.push_back({line.substr(1), {}});
      return;
    }
    if (records.empty()) fail<FileError>(path, ": line ", number, " expected a header starting with '>'");
    std::string& sequence = records.back().sequence;
    for (char c : line) {
      const auto u = static_cast<unsigned char>(c);
      if (std::isspace(u) != 0) continue;
      if (std::isalpha(u) == 0 && c != '-' && c != '*' && c != '.') {
        fail<FileError>(path, ": line ", number, " expected letters, got character code ", int{u});
      }
      sequence.push_back(static_cast<char>(std::toupper(u)));
    }
  });
  if (records.empty()) fail<FileError>(path, ": expected at least one FASTA record");
  return records;
}

std::string reverse_complement(const std::string& sequence) {
  std::string result(sequence.rbegin(), sequence.rend());
  for (char& c : result) {
    switch (c) {
      case 'A': c = 'T'; break;
      case 'C': c = 'G'; break;
      case 'G': c = 'C'; break;
      case 'T': c = 'A'; break;
      default: break;
    }
  }
  return result;
}

void write_two_bit(const std::string& path, const std::string& sequence) {
  std::string bytes(kMagic);
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(sequence.size() >> (8 * i)));
  bytes.resize(16 + (sequence.size() + 3) / 4, '\0');
  for (std::size_t i = 0; i < sequence.size(); ++i) {
    const auto code = kBases.find(sequence[i]);
    if (code == std::string_view::npos) {
      fail("write_two_bit: sequence expected A, C, G and T, got '", sequence[i], "' at position ", i);
    }
    bytes[16 + i / 4] = static_cast<char>(static_cast<unsigned char>(bytes[16 + i / 4]) | (code << (2 * (i % 4))));
  }
  AtomicFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

std::string read_two_bit(const std::string& path) {
  InputFile file(path);
  std::array<unsigned char, 16> header{};
  file.read_exactly(header.data(), header.size(), "two-bit header");
  if (std::memcmp(header.data(), kMagic.data(), kMagic.size()) != 0)
    fail<FileError>(path, ": expected a HALO2BIT file");
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = (length << 8) | header[8 + static_cast<std::size_t>(i)];
  if (length > static_cast<uint64_t>(kMostBases)) fail<FileError>(path, ": length ", length, " is beyond 2^36 bases");
  std::string sequence;
  std::array<unsigned char, 4096> buffer{};
  for (uint64_t left = (length + 3) / 4; left > 0;) {
    const std::size_t take = std::min<uint64_t>(left, buffer.size());
    file.read_exactly(buffer.data(), take, "bases");
    for (std::size_t i = 0; i < take; ++i) {
      for (int k = 0; k < 4 && sequence.size() < length; ++k) {
        sequence.push_back(kBases[(unsigned{buffer[i]} >> (2 * k)) & 3u]);
      }
    }
    left -= take;
  }
  if (!file.at_end()) fail<FileError>(path, ": has bytes after its ", length, " bases");
  return sequence;
}

}  // namespace halo::data
