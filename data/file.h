// Reading files that may be gzipped. Private to data/.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace halo::data {

/// A file read from front to back, decompressed where it is gzip. @throws FileError naming the path.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  ~InputFile();
  /// Up to `bytes` bytes; less only at the end.
  std::size_t read(void* target, std::size_t bytes);
  /// Exactly `bytes` bytes. @throws FileError saying what was expected where the file ends before.
  void read_exactly(void* target, std::size_t bytes, const char* what);
  bool at_end();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  struct Handle;
  std::unique_ptr<Handle> handle_;
};

}  // namespace halo::data
