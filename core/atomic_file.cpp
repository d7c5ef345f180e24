#include <halo/core/atomic_file.h>
#include <halo/core/error.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace halo {
namespace {

[[noreturn]] void fail_on(const std::string& path, const char* what) {
  const int error = errno;
  fail<FileError>(path, ": ", what, ": ", std::strerror(error));
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  // The name would be taken from a device or a pipe too, from /dev/null for one.
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    fail<FileError>(path, ": expected a regular file or none");
  }
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
    const auto done = ::write(handle_, from, std::min(bytes, std::size_t{1} << 30));
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

}  // namespace halo
