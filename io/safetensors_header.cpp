#include "safetensors_header.h"

#include <halo/core/error.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>

#include <nlohmann/json.hpp>

namespace halo::io {
namespace {

using Entry = SafetensorsReader::Entry;

struct DTypeName {
  std::string_view text;
  DType dtype;
};
constexpr std::array<DTypeName, 8> kDTypeNames{{{"F32", DType::Float32},
                                                {"F64", DType::Float64},
                                                {"BF16", DType::BFloat16},
                                                {"F16", DType::Float16},
                                                {"I64", DType::Int64},
                                                {"I32", DType::Int32},
                                                {"U8", DType::UInt8},
                                                {"BOOL", DType::Bool}}};

/// Takes the events of the JSON parser. The header has one form only, {name: {dtype, shape, data_offsets}} and
/// {"__metadata__": {name: text}}, so that the place in it is the depth and two names; a general tree would lose
/// duplicate keys and follow any nesting.
class HeaderHandler {
 public:
  explicit HeaderHandler(std::string path) : path_(std::move(path)) {}
  SafetensorsHeader take() { return std::move(header_); }

  bool start_object(std::size_t) {
    if (depth_ == 2) refuse("expected no further object");
    ++depth_;
    return true;
  }

  bool end_object() {
    if (depth_-- == 2 && !in_metadata()) finish_entry();
    return true;
  }

  bool key(std::string& text) {
    auto& seen = depth_ == 1 ? names_ : fields_;
    if (!seen.insert(text).second) {
      if (depth_ == 1) fail<FileError>(path_, ": duplicate key \"", text, "\" in the header");
      refuse(concat("duplicate key \"", text, "\""));
    }
    if (depth_ == 1) {
      name_ = text;
      fields_.clear();
      entry_ = {};
      offsets_.clear();
    } else if (!in_metadata() && text != "dtype" && text != "shape" && text != "data_offsets") {
      refuse(concat("expected the fields dtype, shape and data_offsets, got \"", text, "\""));
    }
    field_ = text;
    return true;
  }

  bool start_array(std::size_t) {
    if (depth_ == 0) fail<FileError>(path_, ": header expected an object, got an array");
    if (depth_ != 2 || in_metadata() || in_array_ || field_ == "dtype") wrong_type("an array");
    in_array_ = true;
    return true;
  }

  bool end_array() {
    in_array_ = false;
    if (field_ == "data_offsets" && offsets_.size() != 2) {
      refuse(concat("data_offsets expected two numbers, got ", offsets_.size()));
    }
    return true;
  }

  bool string(std::string& text) {
    if (depth_ == 2 && in_metadata()) {
      header_.metadata[field_] = text;
    } else if (depth_ == 2 && field_ == "dtype") {
      read_dtype(text);
    } else {
      wrong_type("a string");
    }
    return true;
  }

  bool number_unsigned(uint64_t value) {
    if (!in_array_) wrong_type("a number");
    if (field_ == "shape") {
      if (value > static_cast<uint64_t>(INT64_MAX)) refuse(concat("shape expected extents below 2^63, got ", value));
      if (entry_.shape.rank() == kMaxRank) refuse(concat("shape expected at most ", kMaxRank, " axes"));
      entry_.shape.push_back(static_cast<int64_t>(value));
    } else {
      if (offsets_.size() == 2) refuse("data_offsets expected two numbers, got more");
      offsets_.push_back(value);
    }
    return true;
  }

  bool number_integer(int64_t value) {
    if (!in_array_) wrong_type("a number");
    refuse(concat(field_, " expected numbers of 0 or more, got ", value));
  }

  bool number_float(double, const std::string& text) {
    if (!in_array_) wrong_type("a number");
    refuse(concat(field_, " expected integers below 2^64, got ", text));
  }

  bool null() { wrong_type("null"); }
  bool boolean(bool) { wrong_type("a boolean"); }
  bool binary(nlohmann::json::binary_t&) { wrong_type("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) {
    fail<FileError>(path_, ": header is not JSON in UTF-8 at byte ", position, ": ", error.what());
  }

 private:
  bool in_metadata() const { return name_ == "__metadata__"; }

  [[noreturn]] void refuse(const std::string& why) const {
    if (in_metadata()) fail<FileError>(path_, ": __metadata__: ", why);
    fail<FileError>(path_, ": tensor \"", name_, "\": ", why);
  }

  [[noreturn]] void wrong_type(const char* got) const {
    if (depth_ == 0) fail<FileError>(path_, ": header expected an object, got ", got);
    if (depth_ == 1) refuse(concat("expected an object, got ", got));
    if (in_metadata()) refuse(concat("\"", field_, "\" expected a string, got ", got));
    refuse(concat(field_, " expected ", field_ == "dtype" ? "a string" : "an array of integers", ", got ", got));
  }

  void read_dtype(const std::string& text) {
    for (const DTypeName& known : kDTypeNames) {
      if (known.text != text) continue;
      entry_.dtype = known.dtype;
      return;
    }
    refuse(concat("dtype expected one of F32, F64, BF16, F16, I64, I32, U8, BOOL, got \"", text, "\""));
  }

  void finish_entry() {
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (!fields_.contains(field)) refuse(concat("field ", field, " is missing"));
    }
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    if (entry_.begin > entry_.end) {
      refuse(concat("data_offsets expected begin <= end, got [", entry_.begin, ", ", entry_.end, "]"));
    }
    uint64_t bytes = size_of(entry_.dtype);
    for (int64_t extent : entry_.shape) {
      if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes) || bytes > INT64_MAX) {
        refuse(concat("shape ", entry_.shape, " of ", name(entry_.dtype), " passes 2^63 bytes"));
      }
    }
    if (bytes != entry_.end - entry_.begin) {
      refuse(concat("shape ", entry_.shape, " of ", name(entry_.dtype), " expected ", bytes, " bytes, data_offsets [",
                    entry_.begin, ", ", entry_.end, "] hold ", entry_.end - entry_.begin));
    }
    header_.entries.emplace(name_, entry_);
  }

  std::string path_;
  SafetensorsHeader header_;
  int depth_ = 0;                         // objects open
  bool in_array_ = false;                 // inside shape or data_offsets
  std::set<std::string> names_, fields_;  // keys seen: of the header, of the current entry
  std::string name_, field_;
  Entry entry_;
  std::vector<uint64_t> offsets_;
};

/// The entries, in the order of their bytes, must follow one another from 0 to the end.
void check_cover(const std::string& path, const SafetensorsHeader& header, uint64_t data_bytes) {
  std::vector<std::pair<const std::string*, const Entry*>> order;
  for (const auto& [name, entry] : header.entries) order.emplace_back(&name, &entry);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  uint64_t end = 0;
  const std::string* before = nullptr;
  for (const auto& [name, entry] : order) {
    if (entry->end > data_bytes) {
      fail<FileError>(path, ": tensor \"", *name, "\": data_offsets [", entry->begin, ", ", entry->end,
                      "] expected within the ", data_bytes, " bytes of data in the file");
    }
    if (entry->begin < end) {
      fail<FileError>(path, ": tensors \"", *before, "\" and \"", *name, "\" overlap: one ends at byte ", end,
                      ", the other begins at ", entry->begin);
    }
    if (entry->begin > end) {
      fail<FileError>(path, ": hole before tensor \"", *name, "\": bytes ", end, " to ", entry->begin,
                      " belong to no tensor");
    }
    end = entry->end;
    before = name;
  }
  if (end != data_bytes) {
    fail<FileError>(path, ": expected ", end, " bytes of data (the end of the last tensor), got ", data_bytes);
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(const std::string& path, const std::string& text, uint64_t data_bytes) {
  if (text.empty() || text[0] != '{') fail<FileError>(path, ": header expected to begin with {");
  HeaderHandler handler(path);
  nlohmann::json::sax_parse(text, &handler);
  SafetensorsHeader header = handler.take();
  check_cover(path, header, data_bytes);
  return header;
}

std::string safetensors_header(const std::vector<std::pair<std::string, Tensor>>& tensors, const Metadata& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t begin = 0;
  for (const auto& [name, tensor] : tensors) {
    if (name == "__metadata__") fail("save_safetensors: name expected other than __metadata__, which the format keeps");
    const auto known = std::find_if(kDTypeNames.begin(), kDTypeNames.end(),
                                    [dtype = tensor.dtype()](const DTypeName& n) { return n.dtype == dtype; });
    const uint64_t end = begin + tensor.nbytes();
    header[name] = {{"dtype", known->text}, {"shape", tensor.shape().vec()}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  try {
    return header.dump();
  } catch (const nlohmann::json::type_error& error) {
    fail("save_safetensors: names and metadata expected in UTF-8: ", error.what());
  }
}

}  // namespace halo::io
