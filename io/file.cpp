#include "file.h"

#include <halo/core/error.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>

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

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  static std::atomic<unsigned> counter{0};
  temporary_ = concat(path, ".", ::getpid(), ".", counter.fetch_add(1), ".tmp");
  handle_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (handle_ < 0) fail_on(temporary_, "cannot create");
}

AtomicFile::~AtomicFile() {
  if (handle_ >= 0) ::close(handle_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* source, std::size_t bytes) {
  const auto* from = static_cast<const char*>(source);
  while (bytes > 0) {
    const auto done = ::write(handle_, from, std::min(bytes, kMostBytes));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_on(temporary_, "cannot write");
    from += done;
    bytes -= static_cast<std::size_t>(done);
  }
}

void AtomicFile::commit() {
  if (::fsync(handle_) != 0) fail_on(temporary_, "cannot flush");
  const int handle = handle_;
  handle_ = -1;
  if (::close(handle) != 0) fail_on(temporary_, "cannot close");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_on(path_, "cannot rename the finished file to this name");
  temporary_.clear();
  // The new name is safe once the folder is on the disk too; a file system that cannot flush folders keeps its own
  // promise about renames.
  const std::string parent = std::filesystem::path(path_).parent_path().string();
  const int folder = ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  ::fsync(folder);
  ::close(folder);
}

}  // namespace halo::io
