// safetensors: named tensors in one file. Reading checks everything the format promises before anything is allocated;
// a file that breaks a promise is refused with the reason.
// Format: eight bytes of header length (little-endian), a JSON header, the bytes of the tensors without gaps.
#pragma once

#include <halo/core/state_dict.h>

#include <cstdint>
#include <memory>
#include <string>

namespace halo {
namespace io {
class InputFile;
}

/// Tensors and metadata of one file.
struct SafetensorsContent {
  StateDict tensors{};
  Metadata metadata{};
};

/// An opened file whose tensors are read one by one, as they are asked for.
class SafetensorsReader {
 public:
  struct Entry {
    DType dtype = DType::Float32;
    Shape shape;
    uint64_t begin = 0, end = 0;  ///< bytes, from the end of the header
  };

  /// Reads and checks the header. @throws FileError naming the path, the tensor and the field that is wrong.
  explicit SafetensorsReader(const std::string& path);
  ~SafetensorsReader();
  SafetensorsReader(SafetensorsReader&&) noexcept;

  const std::map<std::string, Entry>& entries() const { return entries_; }
  const Metadata& metadata() const { return metadata_; }
  /// Reads one tensor. @throws ArgumentError where the file has none of that name, FileError where it was cut short.
  Tensor load(const std::string& name, Device device = Device::cpu()) const;

 private:
  std::unique_ptr<io::InputFile> file_;
  uint64_t data_start_ = 0;  ///< bytes before the first tensor's
  std::map<std::string, Entry> entries_;
  Metadata metadata_;
};

/// Reads a whole file to `device`. @throws FileError naming the path, the tensor and the field that is wrong.
SafetensorsContent load_safetensors(const std::string& path, Device device = Device::cpu());

/// Writes the *values* of `tensors`: views, expanded tensors and tensors on a GPU are stored dense; a tensor under two
/// names is stored under both (loading gives two equal tensors; a module ties its own again). The file appears under
/// its name only when it is complete and on the disk.
/// @throws ArgumentError for an undefined tensor or a name that is no UTF-8, FileError where writing fails.
void save_safetensors(const std::string& path, const StateDict& tensors, const Metadata& metadata = {});

}  // namespace halo
