#include "zip.h"

#include <halo/core/error.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

namespace halo::io {
namespace {

// Format: APPNOTE.TXT 6.3, sections 4.3.7 (local header), 4.3.12 (central directory), 4.3.14 to 4.3.16 (its end).
constexpr uint32_t kLocalHeader = 0x04034b50, kCentralHeader = 0x02014b50, kEnd = 0x06054b50, kEnd64 = 0x06064b50,
                   kLocator64 = 0x07064b50;
constexpr std::size_t kEndBytes = 22, kLocatorBytes = 20, kEnd64Bytes = 56, kCentralBytes = 46, kLocalBytes = 30;
constexpr uint64_t kMaxDirectory = 1 << 28;

/// A little-endian number in `bytes` at `at`; the caller has checked the length.
template <class T>
T number(const std::string& bytes, std::size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::string read_bytes(const InputFile& file, uint64_t offset, std::size_t bytes) {
  std::string text(bytes, '\0');
  file.read(offset, text.data(), bytes);
  return text;
}

/// Where the central directory lies.
struct Directory {
  uint64_t offset, bytes;
};

Directory find_directory(const InputFile& file) {
  const auto tail_bytes = static_cast<std::size_t>(std::min<uint64_t>(file.size(), kEndBytes + 0xFFFF + kLocatorBytes));
  const uint64_t tail_start = file.size() - tail_bytes;
  const std::string tail = read_bytes(file, tail_start, tail_bytes);
  std::optional<std::size_t> end;
  for (std::size_t at = tail_bytes < kEndBytes ? 0 : tail_bytes - kEndBytes + 1; at-- > 0 && !end;) {
    if (number<uint32_t>(tail, at) == kEnd) end = at;
  }
  if (!end) fail<FileError>(file.path(), ": expected a zip archive");
  Directory directory{number<uint32_t>(tail, *end + 16), number<uint32_t>(tail, *end + 12)};
  // Large archives keep the numbers in a record of their own, which a locator just in front points to.
  if (*end >= kLocatorBytes && number<uint32_t>(tail, *end - kLocatorBytes) == kLocator64) {
    const auto at = number<uint64_t>(tail, *end - kLocatorBytes + 8);
    if (at > file.size() || file.size() - at < kEnd64Bytes) fail<FileError>(file.path(), ": zip end record is cut off");
    const std::string record = read_bytes(file, at, kEnd64Bytes);
    if (number<uint32_t>(record, 0) != kEnd64) fail<FileError>(file.path(), ": expected the zip64 end record at ", at);
    directory = {number<uint64_t>(record, 48), number<uint64_t>(record, 40)};
  }
  if (directory.bytes > kMaxDirectory || directory.offset > file.size() ||
      directory.bytes > file.size() - directory.offset) {
    fail<FileError>(file.path(), ": zip directory of ", directory.bytes, " bytes at ", directory.offset,
                    " expected within the file of ", file.size(), " bytes");
  }
  return directory;
}

/// Takes the 64-bit sizes and offset of `extra` in for the 32-bit ones that are all ones.
void apply_zip64(const std::string& extra, uint64_t& size, uint64_t& stored, uint64_t& header) {
  for (std::size_t at = 0; at + 4 <= extra.size();) {
    const auto id = number<uint16_t>(extra, at);
    const std::size_t begin = at + 4, end = begin + number<uint16_t>(extra, at + 2);
    if (end > extra.size()) return;
    if (id == 1) {
      std::size_t next = begin;
      for (uint64_t* value : {&size, &stored, &header}) {
        if (*value != UINT32_MAX || next + 8 > end) continue;
        *value = number<uint64_t>(extra, next);
        next += 8;
      }
    }
    at = end;
  }
}

uint32_t crc32(const void* data, std::size_t bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> entries{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value & 1) != 0 ? 0xEDB88320u ^ (value >> 1) : value >> 1;
      entries[i] = value;
    }
    return entries;
  }();
  uint32_t sum = ~0u;
  for (const auto* at = static_cast<const uint8_t*>(data); bytes > 0; --bytes, ++at) {
    sum = table[(sum ^ *at) & 0xFF] ^ (sum >> 8);
  }
  return ~sum;
}

}  // namespace

ZipReader::ZipReader(const std::string& path) : file_(path) {
  const Directory place = find_directory(file_);
  const std::string directory = read_bytes(file_, place.offset, static_cast<std::size_t>(place.bytes));
  uint64_t left = file_.size();  // members that share bytes would let a small file fill the memory
  for (std::size_t at = 0; at < directory.size();) {
    if (directory.size() - at < kCentralBytes || number<uint32_t>(directory, at) != kCentralHeader) {
      fail<FileError>(path, ": zip directory is broken at byte ", at);
    }
    const std::size_t name_bytes = number<uint16_t>(directory, at + 28);
    const std::size_t extra_bytes = number<uint16_t>(directory, at + 30);
    const std::size_t entry_bytes = kCentralBytes + name_bytes + extra_bytes + number<uint16_t>(directory, at + 32);
    if (directory.size() - at < entry_bytes) fail<FileError>(path, ": zip directory is cut off");
    const std::string name = directory.substr(at + kCentralBytes, name_bytes);
    uint64_t stored = number<uint32_t>(directory, at + 20), size = number<uint32_t>(directory, at + 24);
    uint64_t header = number<uint32_t>(directory, at + 42);
    apply_zip64(directory.substr(at + kCentralBytes + name_bytes, extra_bytes), size, stored, header);
    if (number<uint16_t>(directory, at + 10) != 0 || stored != size) {
      fail<FileError>(path, ": member \"", name, "\" expected stored, got compressed");
    }
    if (size > file_.size() || header > file_.size()) {
      fail<FileError>(path, ": member \"", name, "\" of ", size, " bytes at ", header, " expected within the file");
    }
    if (size > left) fail<FileError>(path, ": members expected to have bytes of their own, \"", name, "\" shares some");
    left -= size;
    if (!members_.emplace(name, Member{header, size, number<uint32_t>(directory, at + 16)}).second) {
      fail<FileError>(path, ": member \"", name, "\" is there twice");
    }
    at += entry_bytes;
  }
}

const ZipReader::Member& ZipReader::find(const std::string& name) const {
  const auto found = members_.find(name);
  if (found == members_.end()) fail<FileError>(file_.path(), ": member \"", name, "\" is missing");
  return found->second;
}

void ZipReader::read(const std::string& name, void* target) const {
  const Member& member = find(name);
  const std::string header = read_bytes(file_, member.header, kLocalBytes);
  if (number<uint32_t>(header, 0) != kLocalHeader) {
    fail<FileError>(file_.path(), ": member \"", name, "\" expected a local header at ", member.header);
  }
  const uint64_t data =
      member.header + kLocalBytes + number<uint16_t>(header, 26) + uint64_t{number<uint16_t>(header, 28)};
  file_.read(data, target, static_cast<std::size_t>(member.bytes));
  if (crc32(target, static_cast<std::size_t>(member.bytes)) != member.checksum) {
    fail<FileError>(file_.path(), ": member \"", name, "\" is damaged: its checksum differs");
  }
}

}  // namespace halo::io
