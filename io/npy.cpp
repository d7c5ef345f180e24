#include <halo/core/atomic_file.h>
#include <halo/core/copy.h>
#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/io/npy.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string_view>

#include "file.h"

namespace halo {
namespace {

constexpr std::string_view kMagic{"\x93NUMPY", 6};
/// Far above any header of an array of eight axes.
constexpr uint32_t kMaxHeader = 1 << 20;

struct Descr {
  std::string_view text;  // without the byte order
  DType dtype;
};
constexpr std::array<Descr, 7> kDescrs{{{"f4", DType::Float32},
                                        {"f8", DType::Float64},
                                        {"f2", DType::Float16},
                                        {"i8", DType::Int64},
                                        {"i4", DType::Int32},
                                        {"u1", DType::UInt8},
                                        {"b1", DType::Bool}}};

struct NpyHeader {
  DType dtype = DType::Float32;
  bool swapped = false;  // bytes of an element from high to low
  bool fortran_order = false;
  Shape shape;
};

/// Reads the Python dictionary of the header: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }.
class HeaderParser {
 public:
  HeaderParser(const std::string& path, std::string_view text) : path_(path), text_(text) {}

  NpyHeader parse() {
    expect('{');
    while (!take('}')) {
      const std::string_view key = quoted("a key");
      expect(':');
      field(key);
      if (take(',')) continue;
      expect('}');
      break;
    }
    skip_space();
    if (at_ != text_.size()) refuse("header expected to end after }");
    if (!seen_descr_) refuse("field descr is missing");
    if (!seen_order_) refuse("field fortran_order is missing");
    if (!seen_shape_) refuse("field shape is missing");
    return header_;
  }

 private:
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... why) const {
    fail<FileError>(path_, ": ", why...);
  }

  void field(std::string_view key) {
    bool* seen = key == "descr"           ? &seen_descr_
                 : key == "fortran_order" ? &seen_order_
                 : key == "shape"         ? &seen_shape_
                                          : nullptr;
    if (seen == nullptr) refuse("header expected the fields descr, fortran_order and shape, got ", key);
    if (*seen) refuse("field ", key, " is given twice");
    *seen = true;
    if (key == "descr") read_descr();
    if (key == "fortran_order") read_order();
    if (key == "shape") read_shape();
  }

  void read_descr() {
    const std::string_view descr = quoted("descr");
    const char order = descr.empty() ? ' ' : descr[0];
    for (const Descr& known : kDescrs) {
      if (descr.substr(std::min<std::size_t>(1, descr.size())) != known.text) continue;
      const bool one_byte = size_of(known.dtype) == 1;
      if (order != '<' && order != '>' && order != '=' && !(order == '|' && one_byte)) continue;
      header_.dtype = known.dtype;
      header_.swapped = order == '>' && !one_byte;
      return;
    }
    refuse("descr expected float2, 4 or 8, int4 or 8, uint1 or bool (as in '<f4'), got '", descr, "'");
  }

  void read_order() {
    skip_space();
    for (const std::string_view word : {"True", "False"}) {
      if (text_.substr(at_, word.size()) != word) continue;
      at_ += word.size();
      header_.fortran_order = word == "True";
      return;
    }
    refuse("fortran_order expected True or False");
  }

  void read_shape() {
    if (!take('(')) refuse("shape expected a tuple");
    while (!take(')')) {
      skip_space();
      int64_t extent = -1;
      const char* const first = text_.data() + at_;
      const auto [end, error] = std::from_chars(first, text_.data() + text_.size(), extent);
      if (error != std::errc() || extent < 0) refuse("shape expected integers from 0 to 2^63 - 1");
      at_ += static_cast<std::size_t>(end - first);
      if (header_.shape.rank() == kMaxRank) refuse("shape expected at most ", kMaxRank, " axes");
      header_.shape.push_back(extent);
      if (take(',')) continue;
      if (header_.shape.rank() == 1) refuse("shape expected a tuple; (3) is a number, (3,) is one");
      if (!take(')')) refuse("shape expected , or ) after ", extent);
      break;
    }
  }

  std::string_view quoted(const char* what) {
    skip_space();
    const char quote = at_ < text_.size() ? text_[at_] : ' ';
    if (quote != '\'' && quote != '"') refuse(what, " expected a string at byte ", at_, " of the header");
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) refuse(what, " expected a closing quote");
    const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return inside;
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
  }

  bool take(char wanted) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  void expect(char wanted) {
    if (!take(wanted)) refuse("header expected ", wanted, " at byte ", at_);
  }

  const std::string& path_;
  std::string_view text_;
  std::size_t at_ = 0;
  NpyHeader header_;
  bool seen_descr_ = false, seen_order_ = false, seen_shape_ = false;
};

/// The bytes that an array of `header` has, checked for overflow.
uint64_t data_bytes(const std::string& path, const NpyHeader& header) {
  uint64_t bytes = size_of(header.dtype);
  for (int64_t extent : header.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes) || bytes > INT64_MAX) {
      fail<FileError>(path, ": shape ", header.shape, " of ", name(header.dtype), " passes 2^63 bytes");
    }
  }
  return bytes;
}

void swap_bytes(const Tensor& tensor) {
  const std::size_t size = size_of(tensor.dtype());
  auto* bytes = static_cast<char*>(tensor.data());
  for (char* element = bytes; element != bytes + tensor.nbytes(); element += size) {
    std::reverse(element, element + size);
  }
}

}  // namespace

Tensor load_npy(const std::string& path, Device device) {
  const io::InputFile file(path);
  std::array<unsigned char, 12> head{};
  if (file.size() < 10) fail<FileError>(path, ": expected at least 10 bytes, got ", file.size());
  file.read(0, head.data(), 10);
  if (std::memcmp(head.data(), kMagic.data(), kMagic.size()) != 0) {
    fail<FileError>(path, ": expected the magic bytes of a .npy file");
  }
  const unsigned version = head[6];
  if (version < 1 || version > 3) fail<FileError>(path, ": version expected 1, 2 or 3, got ", version);
  uint32_t length = head[8] | (uint32_t{head[9]} << 8);
  uint64_t start = 10;
  if (version > 1) {  // four bytes of length instead of two
    file.read(10, head.data() + 10, 2);
    length |= (uint32_t{head[10]} << 16) | (uint32_t{head[11]} << 24);
    start = 12;
  }
  if (length > file.size() - start || length > kMaxHeader) {
    fail<FileError>(path, ": header length ", length, " expected within the file of ", file.size(),
                    " bytes and at most ", kMaxHeader);
  }
  std::string text(length, ' ');
  file.read(start, text.data(), text.size());
  const NpyHeader header = HeaderParser(path, text).parse();
  const uint64_t bytes = data_bytes(path, header), have = file.size() - start - length;
  if (bytes != have) {
    fail<FileError>(path, ": shape ", header.shape, " of ", name(header.dtype), " expected ", bytes,
                    " bytes of data, got ", have);
  }

  Shape stored = header.shape;
  if (header.fortran_order) std::reverse(stored.begin(), stored.end());
  Tensor host = empty(stored, {.dtype = header.dtype});
  file.read(start + length, host.data(), host.nbytes());
  if (header.swapped) swap_bytes(host);
  if (header.dtype == DType::Bool) {
    const auto* values = static_cast<const uint8_t*>(host.data());
    if (std::any_of(values, values + host.nbytes(), [](uint8_t byte) { return byte > 1; })) {
      fail<FileError>(path, ": descr '|b1' expected bytes 0 and 1, got another");
    }
  }
  if (header.fortran_order) {
    Shape reversed;
    for (int axis = stored.rank() - 1; axis >= 0; --axis) reversed.push_back(axis);
    host = view::dense(view::permute(host, reversed));
  }
  return convert(host, host.dtype(), device);
}

void save_npy(const std::string& path, const Tensor& tensor) {
  const auto known = std::find_if(kDescrs.begin(), kDescrs.end(),
                                  [dtype = tensor.dtype()](const Descr& d) { return d.dtype == dtype; });
  if (known == kDescrs.end()) {
    fail("save_npy: dtype expected one that NumPy has, got ", name(tensor.dtype()), "; convert it to float32 first");
  }
  std::string shape;
  for (int64_t extent : tensor.shape()) shape += concat(extent, ", ");
  if (tensor.rank() > 1) shape.resize(shape.size() - 2);  // "2, 3, " -> "2, 3"; one axis keeps its comma: "3, "
  std::string header = concat("{'descr': '", size_of(known->dtype) == 1 ? '|' : '<', known->text,
                              "', 'fortran_order': False, 'shape': (", shape, "), }");
  // Version 1: ten bytes, then the header, ended by a line feed where the data are aligned to 64 bytes.
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 10, ' ');
  header.back() = '\n';
  std::string head(kMagic);
  head += {'\1', '\0', static_cast<char>(header.size() & 0xFF), static_cast<char>(header.size() >> 8)};
  const Tensor host = view::dense(convert(tensor, tensor.dtype(), Device::cpu()));
  AtomicFile file(path);
  file.write(head.data(), head.size());
  file.write(header.data(), header.size());
  file.write(host.data(), host.nbytes());
  file.commit();
}

}  // namespace halo
