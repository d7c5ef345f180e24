// The images that the AlexNet example trains on, from whatever --data points at.
#pragma once

#include <halo/data/images.h>

#include <string>

namespace example {

struct ImageSplit {
  halo::data::ImageSet train, test;
  std::string description;
};

/// Reads a folder holding one of: IDX files under MNIST's names (gzipped or not; MNIST, Fashion-MNIST and relatives),
/// the CIFAR-10 binary batches, `train` and `test` folders of images by class, or images by class alone (a seventh is
/// held out). An empty path means the Fashion-MNIST excerpt that comes with Halo. Images are resized to `size` x
/// `size`.
/// @throws FileError naming what was looked for.
ImageSplit load_images(const std::string& path, int64_t size);

}  // namespace example
