// Files as the readers of this room use them: reads at given places. Writers use core/atomic_file.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace halo::io {

/// A regular file opened for reading. Every failure is a FileError that names the path.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }
  /// Reads exactly `bytes` from `offset`. @throws FileError where the file is shorter.
  void read(uint64_t offset, void* target, std::size_t bytes) const;

 private:
  std::string path_;
  int handle_ = -1;
  uint64_t size_ = 0;
};

}  // namespace halo::io
