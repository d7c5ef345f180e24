// What the fuzzers share: the input as a file in memory, and a reader called on it. A reader may refuse an input with a
// FileError; anything else that is thrown, and whatever the sanitizers see, is a fault.
#pragma once

#include <halo/core/error.h>
#include <halo/core/tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

namespace halo::fuzz {

/// A file without a name on any disk, and a path that opens it.
class MemoryFile {
 public:
  MemoryFile(const uint8_t* bytes, std::size_t size) : handle_(::memfd_create("input", 0)) {
    if (handle_ < 0 || ::write(handle_, bytes, size) != static_cast<ssize_t>(size)) __builtin_trap();
  }
  ~MemoryFile() { ::close(handle_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(handle_); }

 private:
  int handle_;
};

/// Reads every byte of a dense tensor, so that the sanitizers see it.
inline void touch(const Tensor& tensor) {
  const auto* bytes = static_cast<const volatile uint8_t*>(tensor.data());
  if (!tensor.is_contiguous()) return;
  for (std::size_t i = 0; i < tensor.nbytes(); ++i) static_cast<void>(bytes[i]);
}

/// Calls read(path).
template <class F>
int run(const uint8_t* bytes, std::size_t size, F&& read) {
  const MemoryFile file(bytes, size);
  try {
    read(file.path());
  } catch (const FileError& error) {
    if (error.what()[0] == '\0') __builtin_trap();
  }
  return 0;
}

}  // namespace halo::fuzz
