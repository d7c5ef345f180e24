// The classifier of this example: AlexNet's original form on small images.
#pragma once

#include <halo/halo.h>

#include <map>
#include <string>

namespace example {

/// What decides the net's shape; written into every checkpoint, so that a reader can build the same net.
struct ClassifierSpec {
  int64_t channels = 1;  ///< of the images
  int64_t size = 64;     ///< pixels a side
  int64_t classes = 10;
  double width = 0.25;  ///< factor on every layer but the first, which keeps its 96 kernels

  halo::Metadata metadata() const;
  static ClassifierSpec from(const halo::Metadata& metadata);
};

/// conv 11x11 stride 4 (96) - relu - LRN - pool - conv 5x5 groups 2 - relu - LRN - pool - three conv 3x3 - pool - three
/// linear layers with dropout: the layers of the 2012 paper at another width, for images of 64 pixels.
struct Classifier : halo::nn::Module {
  explicit Classifier(const ClassifierSpec& spec);
  halo::Tensor forward(const halo::Tensor& images) override;

 private:
  halo::nn::Sequential& features_;
  halo::nn::Sequential& classifier_;
};

/// Pixels to what the net sees: zero mean and unit range.
halo::Tensor prepare(const halo::Tensor& images, int64_t channels);

}  // namespace example
