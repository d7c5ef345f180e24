// Zip archives whose members are stored as they are, as PyTorch writes them.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "file.h"

namespace halo::io {

class ZipReader {
 public:
  struct Member {
    uint64_t header = 0;  ///< where its local header is
    uint64_t bytes = 0;
    uint32_t checksum = 0;  ///< CRC-32
  };

  /// Reads the directory. @throws FileError where it is none, or a member is compressed.
  explicit ZipReader(const std::string& path);

  const std::map<std::string, Member>& members() const { return members_; }
  bool contains(const std::string& name) const { return members_.contains(name); }
  uint64_t size(const std::string& name) const { return find(name).bytes; }
  /// Reads a member of size(name) bytes and checks its sum.
  void read(const std::string& name, void* target) const;

 private:
  const Member& find(const std::string& name) const;

  InputFile file_;
  std::map<std::string, Member> members_;
};

}  // namespace halo::io
