#include "file.h"

#include <halo/core/error.h>

#include <algorithm>

#include <zlib.h>

namespace halo::data {

struct InputFile::Handle {
  gzFile file;
};

InputFile::InputFile(const std::string& path) : path_(path), handle_(std::make_unique<Handle>()) {
  handle_->file = gzopen(path.c_str(), "rb");
  if (handle_->file == nullptr) fail<FileError>(path, ": cannot be opened for reading");
}

InputFile::~InputFile() { gzclose(handle_->file); }

std::size_t InputFile::read(void* target, std::size_t bytes) {
  constexpr std::size_t kMost = std::size_t{1} << 30;  // gzread counts in int
  std::size_t done = 0;
  while (done < bytes) {
    const int got =
        gzread(handle_->file, static_cast<char*>(target) + done, static_cast<unsigned>(std::min(kMost, bytes - done)));
    if (got < 0) {
      int code = 0;
      fail<FileError>(path_, ": cannot be read: ", gzerror(handle_->file, &code));
    }
    if (got == 0) {  // the end, or for zlib also where a compressed file was cut off
      int code = Z_OK;
      gzerror(handle_->file, &code);
      if (code == Z_BUF_ERROR) fail<FileError>(path_, ": compressed data are cut off");
      break;
    }
    done += static_cast<std::size_t>(got);
  }
  return done;
}

void InputFile::read_exactly(void* target, std::size_t bytes, const char* what) {
  const std::size_t got = read(target, bytes);
  if (got != bytes) fail<FileError>(path_, ": expected ", bytes, " bytes of ", what, ", got ", got);
}

bool InputFile::at_end() {
  const int next = gzgetc(handle_->file);
  if (next < 0) return true;
  gzungetc(next, handle_->file);
  return false;
}

}  // namespace halo::data
