// Labelled image sets: IDX (MNIST and its relatives), CIFAR-10 binaries, folders of images by class; and single images.
#pragma once

#include <halo/core/tensor.h>

#include <string>
#include <vector>

namespace halo::data {

/// Images as they are stored: pixels 0..255.
struct ImageSet {
  Tensor images;  ///< uint8 [N, C, H, W]
  Tensor labels;  ///< int64 [N], 0 .. class_names.size() - 1
  std::vector<std::string> class_names;
};

/// An IDX file (gzipped or not) of unsigned bytes, in its own shape. @throws FileError naming what is wrong.
Tensor read_idx(const std::string& path);

/// The images and labels of an IDX pair. Class names are the digits; pass others for other sets. @throws FileError
/// naming what is wrong, as where the two have different counts.
ImageSet read_idx_images(const std::string& images_path, const std::string& labels_path,
                         std::vector<std::string> class_names = {});

/// CIFAR-10 binary batches (each record a label byte and 3 x 32 x 32 pixels), joined. @throws FileError naming what is
/// wrong.
ImageSet read_cifar10(const std::vector<std::string>& paths);

/// One PNG or JPEG as uint8 [3, H, W] (grey images give equal channels; alpha is dropped). At most 2^28 pixels, and no
/// more than so many bytes of file can hold, so that a small file cannot ask for much memory. @throws FileError also
/// where a JPEG ends too early.
Tensor read_image(const std::string& path);

/// A folder with one sub-folder a class; every image is resized to [3, height, width]. Classes in alphabetical order.
/// @throws FileError where there is no class, or an image cannot be read.
ImageSet read_image_folder(const std::string& path, int64_t height, int64_t width);

/// Writes uint8 [3, H, W] or [1, H, W] as a PNG. The file appears under its name only when it is complete and on the
/// disk. @throws ArgumentError for another image, FileError where writing fails.
void write_png(const std::string& path, const Tensor& image);

/// The names of Fashion-MNIST's ten classes, by label.
std::vector<std::string> fashion_mnist_classes();

}  // namespace halo::data
