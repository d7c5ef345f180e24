// Files as the readers and writers of this room use them: reads at given places, and writes that appear whole or not at
// all.
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

/// A file that takes its name only when it is complete and on the disk: written under a temporary name in the same
/// folder, flushed, then renamed. Dropped without commit() it leaves nothing behind, and a file that had the name
/// before stays as it was.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* source, std::size_t bytes);
  void commit();

 private:
  std::string path_, temporary_;
  int handle_ = -1;
};

}  // namespace halo::io
