// AlexNet: Krizhevsky, Sutskever, Hinton, "ImageNet classification with deep convolutional neural networks", 2012, and
// the form of Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014, that torchvision
// has.
#pragma once

#include <halo/nn/conv.h>
#include <halo/nn/layers.h>

#include <vector>

namespace halo::models {

enum class AlexNetVariant {
  Original,    ///< conv 2, 4 and 5 in two groups, local response normalisation after conv 1 and 2
  Torchvision  ///< neither
};

struct AlexNetOptions {
  AlexNetVariant variant = AlexNetVariant::Torchvision;
  /// Of the five convolutions; default 64, 192, 384, 256, 256 or (Original) 96, 256, 384, 384, 256.
  std::vector<int64_t> channels{};
  int64_t hidden = 4096;  ///< width of the two hidden linear layers
  int64_t num_classes = 1000;
  double width = 1;          ///< factor on channels and hidden (rounded to even numbers)
  int64_t stem_padding = 2;  ///< of conv 1, for inputs of 224; 0 for the paper's 227
  double dropout = 0.5;
};

/// x [N, 3, H, W] (63 x 63 at least) to logits [N, num_classes]. Names of parameters are torchvision's in both
/// variants: features.0, .3, .6, .8, .10 and classifier.1, .4, .6. Starts from layers' defaults, or (Original) from the
/// paper's normal distributions with Caffe's biases. @throws ArgumentError for other than five channels, and in forward
/// for an input that is too small.
class AlexNet : public nn::Module {
 public:
  explicit AlexNet(const AlexNetOptions& options = {});
  Tensor forward(const Tensor& x) override;

 private:
  struct Features : nn::Module {
    explicit Features(const AlexNetOptions& options);
    Tensor forward(const Tensor& x) override;
    bool original;
    nn::Conv2d &conv1, &conv2, &conv3, &conv4, &conv5;
  };
  struct Classifier : nn::Module {
    explicit Classifier(const AlexNetOptions& options);
    Tensor forward(const Tensor& x) override;
    bool original;
    double dropout;
    nn::Linear &linear1, &linear2, &linear3;
  };

  explicit AlexNet(const AlexNetOptions& options, int);  // with sizes worked out
  void initialise_as_original();

  Features& features_;
  Classifier& classifier_;
};

}  // namespace halo::models
