// Writing files that appear whole or not at all. Not installed.
#pragma once

#include <cstddef>
#include <string>

namespace halo {

/// A file that takes its name only when it is complete and on the disk: written under a temporary name in the same
/// folder, flushed, then renamed. Dropped without commit() it leaves nothing behind, and a file that had the name
/// before stays as it was. What is no file (a folder, a device, a pipe) is refused.
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

}  // namespace halo
