#include "model.h"

#include <halo/data/transform.h>

#include <cmath>

#include "examples/common/program.h"

namespace example {
namespace {

using namespace halo;

int64_t scaled(double channels, double width) { return 2 * std::max<int64_t>(1, std::lround(channels * width / 2)); }

const LocalResponseNormOptions kNorm{.alpha = 1e-4, .beta = 0.75, .k = 2};

nn::Sequential features(const ClassifierSpec& s) {
  const int64_t c2 = scaled(256, s.width), c3 = scaled(384, s.width), c5 = scaled(256, s.width);
  const MaxPoolOptions overlapping{.stride = 2};
  return nn::Sequential(
      nn::Conv2d(s.channels, 96, 11, {.stride = 4, .padding = 2, .activation = {ActivationKind::Relu}}),
      nn::LocalResponseNorm(5, kNorm), nn::MaxPool2d(3, overlapping),
      nn::Conv2d(96, c2, 5, {.padding = 2, .groups = 2, .activation = {ActivationKind::Relu}}),
      nn::LocalResponseNorm(5, kNorm), nn::MaxPool2d(3, overlapping),
      nn::Conv2d(c2, c3, 3, {.padding = 1, .activation = {ActivationKind::Relu}}),
      nn::Conv2d(c3, c3, 3, {.padding = 1, .groups = 2, .activation = {ActivationKind::Relu}}),
      nn::Conv2d(c3, c5, 3, {.padding = 1, .groups = 2, .activation = {ActivationKind::Relu}}), nn::Flatten());
}

nn::Sequential classifier(const ClassifierSpec& s) {
  const auto after = [](int64_t extent, int64_t kernel, int64_t stride, int64_t padding) {
    return (extent + 2 * padding - kernel) / stride + 1;
  };
  const int64_t side = after(after(after(s.size, 11, 4, 2), 3, 2, 0), 3, 2, 0);
  const int64_t inputs = scaled(256, s.width) * side * side, hidden = scaled(4096, s.width / 4);
  return nn::Sequential(nn::Dropout(0.3), nn::Linear(inputs, hidden), nn::ReLU(), nn::Dropout(0.3),
                        nn::Linear(hidden, hidden), nn::ReLU(), nn::Linear(hidden, s.classes));
}

}  // namespace

Metadata ClassifierSpec::metadata() const {
  return {{"channels", std::to_string(channels)},
          {"size", std::to_string(size)},
          {"classes", std::to_string(classes)},
          {"width_permille", std::to_string(std::lround(1000 * width))}};
}

ClassifierSpec ClassifierSpec::from(const Metadata& metadata) {
  const auto number = [&](const char* key) { return metadata_number(metadata, key); };
  return {number("channels"), number("size"), number("classes"), static_cast<double>(number("width_permille")) / 1000};
}

Classifier::Classifier(const ClassifierSpec& spec)
    : features_(register_module("features", features(spec))),
      classifier_(register_module("classifier", classifier(spec))) {
  // The paper's small start for the stem: what its filters look like in the end is what they learned.
  nn::init::normal_(state_dict().at("features.0.weight"), 0, 0.01);
}

Tensor Classifier::forward(const Tensor& images) { return classifier_(features_(images)); }

Tensor prepare(const Tensor& images, int64_t channels) {
  const std::vector<float> half(static_cast<std::size_t>(channels), 0.5f);
  return data::normalize(images, half, half);
}

}  // namespace example
