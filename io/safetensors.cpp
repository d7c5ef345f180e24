#include <halo/core/atomic_file.h>
#include <halo/core/copy.h>
#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/io/safetensors.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "file.h"
#include "safetensors_header.h"

namespace halo {

static_assert(std::endian::native == std::endian::little, "files are little-endian and are read as they are");

SafetensorsReader::SafetensorsReader(const std::string& path) : file_(std::make_unique<io::InputFile>(path)) {
  const uint64_t size = file_->size();
  uint64_t length = 0;
  if (size < sizeof length) fail<FileError>(path, ": expected at least 8 bytes, got ", size);
  file_->read(0, &length, sizeof length);
  if (length > io::kMaxSafetensorsHeader) {
    fail<FileError>(path, ": header length expected at most ", io::kMaxSafetensorsHeader, ", got ", length);
  }
  if (length > size - sizeof length) {
    fail<FileError>(path, ": header length ", length, " expected within the file of ", size, " bytes");
  }
  std::string text(static_cast<std::size_t>(length), ' ');
  file_->read(sizeof length, text.data(), text.size());
  data_start_ = sizeof length + length;
  io::SafetensorsHeader header = io::parse_safetensors_header(path, text, size - data_start_);
  entries_ = std::move(header.entries);
  metadata_ = std::move(header.metadata);
}

SafetensorsReader::~SafetensorsReader() = default;
SafetensorsReader::SafetensorsReader(SafetensorsReader&&) noexcept = default;

Tensor SafetensorsReader::load(const std::string& name, Device device) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) fail("SafetensorsReader::load: ", file_->path(), " has no tensor \"", name, "\"");
  const Entry& entry = found->second;
  const Tensor host = empty(entry.shape, {.dtype = entry.dtype});
  file_->read(data_start_ + entry.begin, host.data(), host.nbytes());
  if (entry.dtype == DType::Bool) {  // a bool with any other byte in it is no bool
    const auto* bytes = static_cast<const uint8_t*>(host.data());
    if (std::any_of(bytes, bytes + host.nbytes(), [](uint8_t byte) { return byte > 1; })) {
      fail<FileError>(file_->path(), ": tensor \"", name, "\": BOOL expected bytes 0 and 1, got another");
    }
  }
  return convert(host, host.dtype(), device);
}

SafetensorsContent load_safetensors(const std::string& path, Device device) {
  const SafetensorsReader reader(path);
  SafetensorsContent content{.metadata = reader.metadata()};
  for (const auto& [name, entry] : reader.entries()) content.tensors.emplace(name, reader.load(name, device));
  return content;
}

void save_safetensors(const std::string& path, const StateDict& tensors, const Metadata& metadata) {
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined()) fail("save_safetensors: tensor \"", name, "\" expected defined, got the undefined one");
  }
  // Large elements first: every tensor is then aligned to its element size.
  std::vector<std::pair<std::string, Tensor>> order(tensors.begin(), tensors.end());
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return size_of(a.second.dtype()) > size_of(b.second.dtype()); });
  std::string header = io::safetensors_header(order, metadata);
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  if (length > io::kMaxSafetensorsHeader) {
    fail("save_safetensors: header expected at most ", io::kMaxSafetensorsHeader, " bytes, got ", length);
  }
  AtomicFile file(path);
  file.write(&length, sizeof length);
  file.write(header.data(), header.size());
  for (const auto& [name, tensor] : order) {
    const Tensor host = view::dense(convert(tensor, tensor.dtype(), Device::cpu()));
    file.write(host.data(), host.nbytes());
  }
  file.commit();
}

}  // namespace halo
