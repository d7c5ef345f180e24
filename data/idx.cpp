// IDX: two zero bytes, a type code (8 for unsigned bytes), the number of axes, each extent as four bytes (big-endian),
// then the elements. CIFAR-10: records of one label byte and 3072 pixel bytes.
#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/data/images.h>

#include <array>
#include <cstring>
#include <utility>

#include "file.h"

namespace halo::data {
namespace {

constexpr int64_t kLargestFile = int64_t{1} << 36;  // elements: beyond any such set, below any overflow

/// Reads `total` bytes in pieces, so that a lying header does not cause a large allocation before the file proves it.
std::vector<uint8_t> read_body(InputFile& file, int64_t total, const char* what) {
  constexpr int64_t kPiece = int64_t{1} << 24;
  std::vector<uint8_t> bytes;
  while (static_cast<int64_t>(bytes.size()) < total) {
    const int64_t take = std::min(kPiece, total - static_cast<int64_t>(bytes.size()));
    const std::size_t old = bytes.size();
    bytes.resize(old + static_cast<std::size_t>(take));
    file.read_exactly(bytes.data() + old, static_cast<std::size_t>(take), what);
  }
  return bytes;
}

void check_labels(const std::string& path, const std::vector<int64_t>& labels, std::size_t classes) {
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] >= static_cast<int64_t>(classes)) {
      fail<FileError>(path, ": label of record ", i, " expected below ", classes, ", got ", labels[i]);
    }
  }
}

}  // namespace

Tensor read_idx(const std::string& path) {
  InputFile file(path);
  std::array<uint8_t, 4> magic{};
  file.read_exactly(magic.data(), magic.size(), "IDX magic number");
  if (magic[0] != 0 || magic[1] != 0) fail<FileError>(path, ": expected an IDX file (two zero bytes first)");
  if (magic[2] != 8) fail<FileError>(path, ": IDX type expected 8 (unsigned bytes), got ", int{magic[2]});
  if (magic[3] < 1 || magic[3] > 4) fail<FileError>(path, ": IDX axes expected 1 to 4, got ", int{magic[3]});
  Shape shape;
  int64_t total = 1;
  for (int i = 0; i < magic[3]; ++i) {
    std::array<uint8_t, 4> b{};
    file.read_exactly(b.data(), b.size(), "IDX extents");
    const int64_t extent = (int64_t{b[0]} << 24) | (b[1] << 16) | (b[2] << 8) | b[3];
    shape.push_back(extent);
    if (extent != 0 && total > kLargestFile / extent)
      fail<FileError>(path, ": IDX shape ", shape, " is beyond 2^36 elements");
    total *= extent;
  }
  Tensor result = from_vector(read_body(file, total, "IDX elements"), shape);
  if (!file.at_end())
    fail<FileError>(path, ": IDX shape ", shape, " expected ", total, " elements, but the file has more");
  return result;
}

ImageSet read_idx_images(const std::string& images_path, const std::string& labels_path,
                         std::vector<std::string> class_names) {
  const Tensor images = read_idx(images_path), labels = read_idx(labels_path);
  if (images.rank() != 3) fail<FileError>(images_path, ": images expected [N, H, W], got ", images.shape());
  if (labels.rank() != 1 || labels.size(0) != images.size(0)) {
    fail<FileError>(labels_path, ": labels expected [", images.size(0), "], got ", labels.shape());
  }
  if (class_names.empty()) {
    for (int i = 0; i < 10; ++i) class_names.push_back(std::to_string(i));
  }
  check_labels(labels_path, labels.to_vector<int64_t>(), class_names.size());
  return {view::unsqueeze(images, 1), from_vector(labels.to_vector<int64_t>(), labels.shape()), std::move(class_names)};
}

ImageSet read_cifar10(const std::vector<std::string>& paths) {
  constexpr std::size_t kPixels = 3 * 32 * 32;
  std::vector<uint8_t> pixels;
  std::vector<int64_t> labels;
  const std::vector<std::string> names{"airplane", "automobile", "bird",  "cat",  "deer",
                                       "dog",      "frog",       "horse", "ship", "truck"};
  for (const std::string& path : paths) {
    InputFile file(path);
    std::array<uint8_t, kPixels + 1> record{};
    while (const std::size_t got = file.read(record.data(), record.size())) {
      if (got != record.size()) fail<FileError>(path, ": expected records of 3073 bytes, but the last has ", got);
      labels.push_back(record[0]);
      pixels.insert(pixels.end(), record.begin() + 1, record.end());
    }
    check_labels(path, labels, names.size());
  }
  const auto n = static_cast<int64_t>(labels.size());
  return {from_vector(pixels, {n, 3, 32, 32}), from_vector(labels, {n}), names};
}

std::vector<std::string> fashion_mnist_classes() {
  return {"t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"};
}

}  // namespace halo::data
