#include "file.h"

#include <halo/core/error.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace halo::io {
namespace {

[[noreturn]] void fail_on(const std::string& path, const char* what) {
  const int error = errno;
  fail<FileError>(path, ": ", what, ": ", std::strerror(error));
}

// One call of the system moves at most 2^31 bytes.
constexpr std::size_t kMostBytes = std::size_t{1} << 30;

}  // namespace

InputFile::InputFile(const std::string& path) : path_(path), handle_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (handle_ < 0) fail_on(path, "cannot open");
  struct stat status {};
  const bool regular = ::fstat(handle_, &status) == 0 && S_ISREG(status.st_mode);
  if (!regular) {
    ::close(handle_);
    fail<FileError>(path, ": expected a regular file");
  }
  size_ = static_cast<uint64_t>(status.st_size);
}

InputFile::~InputFile() { ::close(handle_); }

void InputFile::read(uint64_t offset, void* target, std::size_t bytes) const {
  auto* out = static_cast<char*>(target);
  while (bytes > 0) {
    const auto got = ::pread(handle_, out, std::min(bytes, kMostBytes), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_on(path_, "cannot read");
    if (got == 0) fail<FileError>(path_, ": expected ", bytes, " more bytes at ", offset, ", the file ends there");
    out += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
}

}  // namespace halo::io
