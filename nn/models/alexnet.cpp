#include <halo/autograd/dropout.h>
#include <halo/autograd/local_response_norm.h>
#include <halo/autograd/pool.h>
#include <halo/core/error.h>
#include <halo/nn/init.h>
#include <halo/nn/models/alexnet.h>

#include <cmath>

namespace halo::models {
namespace {

/// `size` times the width factor, even (two groups must divide it) and at least 2.
int64_t scaled(int64_t size, double width) {
  if (width == 1) return size;
  return std::max<int64_t>(2, 2 * std::llround(static_cast<double>(size) * width / 2));
}

/// The options with channels filled in and the width applied.
AlexNetOptions with_sizes(const AlexNetOptions& options) {
  AlexNetOptions result = options;
  if (result.channels.empty()) {
    result.channels = options.variant == AlexNetVariant::Original ? std::vector<int64_t>{96, 256, 384, 384, 256}
                                                                  : std::vector<int64_t>{64, 192, 384, 256, 256};
  }
  if (result.channels.size() != 5) fail("AlexNet: channels expected five numbers, got ", result.channels.size());
  for (int64_t& channels : result.channels) channels = scaled(channels, options.width);
  result.hidden = scaled(options.hidden, options.width);
  return result;
}

/// A convolution followed by relu.
nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding, int64_t groups) {
  return nn::Conv2d(in, out, kernel,
                    {.stride = stride, .padding = padding, .groups = groups, .activation = {ActivationKind::Relu}});
}

Tensor pool(const Tensor& x) { return max_pool2d(x, 3, {.stride = 2}); }

/// The paper's normalisation: k = 2, n = 5, alpha = 1e-4 not divided by n, beta = 0.75.
Tensor normalise(const Tensor& x) { return local_response_norm(x, 5, {.k = 2, .convention = LrnConvention::Paper}); }

}  // namespace

AlexNet::Features::Features(const AlexNetOptions& o)
    : original(o.variant == AlexNetVariant::Original),
      conv1(register_module("0", conv(3, o.channels[0], 11, 4, o.stem_padding, 1))),
      conv2(register_module("3", conv(o.channels[0], o.channels[1], 5, 1, 2, original ? 2 : 1))),
      conv3(register_module("6", conv(o.channels[1], o.channels[2], 3, 1, 1, 1))),
      conv4(register_module("8", conv(o.channels[2], o.channels[3], 3, 1, 1, original ? 2 : 1))),
      conv5(register_module("10", conv(o.channels[3], o.channels[4], 3, 1, 1, original ? 2 : 1))) {}

Tensor AlexNet::Features::forward(const Tensor& input) {
  Tensor x = conv1(input);
  x = pool(original ? normalise(x) : x);
  x = conv2(x);
  x = pool(original ? normalise(x) : x);
  return pool(conv5(conv4(conv3(x))));
}

AlexNet::Classifier::Classifier(const AlexNetOptions& o)
    : original(o.variant == AlexNetVariant::Original),
      dropout(o.dropout),
      linear1(register_module("1", nn::Linear(o.channels[4] * 36, o.hidden))),
      linear2(register_module("4", nn::Linear(o.hidden, o.hidden))),
      linear3(register_module("6", nn::Linear(o.hidden, o.num_classes))) {}

Tensor AlexNet::Classifier::forward(const Tensor& input) {
  const auto drop = [this](const Tensor& x) { return halo::dropout(x, dropout, is_training()); };
  if (original) return linear3(drop(relu(linear2(drop(relu(linear1(input)))))));
  return linear3(relu(linear2(drop(relu(linear1(drop(input)))))));
}

AlexNet::AlexNet(const AlexNetOptions& options) : AlexNet(with_sizes(options), 0) {}

AlexNet::AlexNet(const AlexNetOptions& options, int)
    : features_(register_module("features", Features(options))),
      classifier_(register_module("classifier", Classifier(options))) {
  if (options.variant == AlexNetVariant::Original) initialise_as_original();
}

void AlexNet::initialise_as_original() {
  const auto set = [](auto& layer, double std, double bias) {
    nn::init::normal_(layer.weight, 0, std);
    nn::init::constant_(layer.bias, bias);
  };
  set(features_.conv1, 0.01, 0);
  set(features_.conv2, 0.01, 0.1);
  set(features_.conv3, 0.01, 0);
  set(features_.conv4, 0.01, 0.1);
  set(features_.conv5, 0.01, 0.1);
  set(classifier_.linear1, 0.005, 0.1);
  set(classifier_.linear2, 0.005, 0.1);
  set(classifier_.linear3, 0.01, 0);
}

Tensor AlexNet::forward(const Tensor& x) {
  // Identity for inputs of the usual size, whose features are 6 x 6 already.
  return classifier_(adaptive_avg_pool2d(features_(x), 6).flatten(1));
}

}  // namespace halo::models
