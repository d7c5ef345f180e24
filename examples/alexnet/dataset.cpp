#include "dataset.h"

#include <halo/core/error.h>
#include <halo/core/generator.h>
#include <halo/data/loader.h>
#include <halo/data/transform.h>

#include <algorithm>
#include <filesystem>
#include <optional>

namespace example {
namespace {

namespace fs = std::filesystem;
using halo::data::ImageSet;

/// `folder/name` or `folder/name.gz`, where there is one.
std::optional<std::string> find(const fs::path& folder, const std::string& name) {
  for (const std::string& candidate : {name, name + ".gz"}) {
    if (fs::is_regular_file(folder / candidate)) return (folder / candidate).string();
  }
  return std::nullopt;
}

std::string find_or_fail(const fs::path& folder, const std::string& name) {
  if (const auto path = find(folder, name)) return *path;
  halo::fail<halo::FileError>(folder.string(), ": expected ", name, " (or .gz) in it");
}

ImageSplit read_idx_folder(const fs::path& folder) {
  const bool fashion = folder.string().find("fashion") != std::string::npos;
  const auto names = fashion ? halo::data::fashion_mnist_classes() : std::vector<std::string>{};
  const auto part = [&](const std::string& prefix) {
    return halo::data::read_idx_images(find_or_fail(folder, prefix + "-images-idx3-ubyte"),
                                       find_or_fail(folder, prefix + "-labels-idx1-ubyte"), names);
  };
  return {part("train"), part("t10k"), fashion ? "Fashion-MNIST" : "IDX images"};
}

ImageSplit read_cifar_folder(const fs::path& folder) {
  std::vector<std::string> training;
  for (int i = 1; i <= 5; ++i) training.push_back(find_or_fail(folder, "data_batch_" + std::to_string(i) + ".bin"));
  return {halo::data::read_cifar10(training), halo::data::read_cifar10({find_or_fail(folder, "test_batch.bin")}),
          "CIFAR-10"};
}

ImageSplit hold_out(const ImageSet& all) {
  constexpr int64_t kShare = 7;
  halo::Generator generator(7);
  const auto order = halo::randperm(all.images.size(0), generator).to_vector<int64_t>();
  const auto cut = static_cast<std::ptrdiff_t>(order.size() / kShare);
  const auto rows = [&](auto begin, auto end) {
    const std::vector<int64_t> chosen(begin, end);
    return ImageSet{halo::data::take(all.images, chosen), halo::data::take(all.labels, chosen), all.class_names};
  };
  return {rows(order.begin() + cut, order.end()), rows(order.begin(), order.begin() + cut), "images by class"};
}

ImageSplit embedded() {
  const std::string folder = HALO_EXAMPLE_DATA;
  const auto part = [&](const std::string& name) {
    return halo::data::read_idx_images(folder + "/fashion-" + name + "-images.gz",
                                       folder + "/fashion-" + name + "-labels.gz", halo::data::fashion_mnist_classes());
  };
  return {part("train"), part("test"), "Fashion-MNIST, the excerpt that comes with Halo"};
}

ImageSplit read(const std::string& path, int64_t size) {
  if (path.empty()) return embedded();
  const fs::path folder = path;
  if (!fs::is_directory(folder)) halo::fail<halo::FileError>(path, ": expected a folder");
  if (find(folder, "train-images-idx3-ubyte")) return read_idx_folder(folder);
  if (find(folder, "data_batch_1.bin")) return read_cifar_folder(folder);
  if (fs::is_directory(folder / "cifar-10-batches-bin")) return read_cifar_folder(folder / "cifar-10-batches-bin");
  if (fs::is_directory(folder / "train") && fs::is_directory(folder / "test")) {
    ImageSplit split{halo::data::read_image_folder((folder / "train").string(), size, size),
                     halo::data::read_image_folder((folder / "test").string(), size, size), "images by class"};
    if (split.train.class_names != split.test.class_names) {
      halo::fail<halo::FileError>(path, ": expected the same classes in train and test");
    }
    return split;
  }
  return hold_out(halo::data::read_image_folder(path, size, size));
}

}  // namespace

ImageSplit load_images(const std::string& path, int64_t size) {
  ImageSplit split = read(path, size);
  for (ImageSet* set : {&split.train, &split.test}) {
    if (set->images.size(0) == 0) halo::fail<halo::FileError>(path, ": expected images to train and to test on");
    if (set->images.size(2) != size || set->images.size(3) != size) {
      set->images = halo::data::resize(set->images, size, size);
    }
  }
  return split;
}

}  // namespace example
