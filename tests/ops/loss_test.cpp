#include <limits>

#include "tests/testing.h"

namespace halo {
namespace {

using testing::near;
using testing::same;

Tensor labels(const std::vector<int64_t>& values) { return from_vector(values, {static_cast<int64_t>(values.size())}); }

TEST(Softmax, LargeLogitsAndInfinities) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(same(softmax(tensor({1000, -inf, 0}), 0), tensor({1, 0, 0})));
  EXPECT_TRUE(same(log_softmax(tensor({1000, 0}), 0), tensor({0, -1000})));
  EXPECT_TRUE(std::isnan(softmax(tensor({-inf, -inf}), 0).to_vector<float>()[0]));
  const Tensor mixed = softmax(from_vector<float>({1, NAN, 1, 1}, {2, 2}), 1);
  EXPECT_TRUE(std::isnan(mixed[0].to_vector<float>()[0]));
  EXPECT_TRUE(same(mixed[1], tensor({0.5, 0.5})));
  EXPECT_EQ(softmax(zeros({0, 3}), 1).shape(), Shape({0, 3}));
  EXPECT_EQ(softmax(zeros({3, 0}), 1).shape(), Shape({3, 0}));
  EXPECT_EQ(softmax(full({}, 3), 0).item(), 1);
  EXPECT_THROW(softmax(zeros({2}), 1), ArgumentError);
}

TEST(Softmax, AnyAxisAndThreads) {
  const Tensor x = randn({3, 131, 67}, {.dtype = float64});
  const Tensor y = softmax(x, 1), direct = exp(x) / sum(exp(x), {1}, true);
  EXPECT_TRUE(near(y, direct, 1e-14));
  EXPECT_FALSE(near(y * 1.001, direct, 1e-14));
  EXPECT_TRUE(near(log_softmax(x.transpose(1, 2), 2).transpose(1, 2), log(direct), 1e-14));
  const int threads = num_threads();
  set_num_threads(1);
  EXPECT_TRUE(same(softmax(x, 1), y));
  set_num_threads(threads);
}

TEST(CrossEntropy, IgnoredTargets) {
  const Tensor x = testing::leaf(from_vector<float>({1, 2, 3, NAN, 2, 3}, {2, 3}));
  const Tensor one = labels({2, -100}), none = labels({-100, -100});
  const Tensor loss = cross_entropy(x, one);
  EXPECT_TRUE(near(loss.detach(), full({}, 0.40760596), 1e-6));
  EXPECT_TRUE(
      near(grad({loss}, {x})[0], from_vector<float>({0.09003057f, 0.24472847f, -0.33475904f, 0, 0, 0}, {2, 3}), 1e-6));
  for (Reduction reduction : {Reduction::Mean, Reduction::Sum, Reduction::None}) {
    const Tensor all = cross_entropy(x, none, {.reduction = reduction});
    EXPECT_TRUE(same(all.detach(), zeros(all.shape())));
    for (bool graph : {false, true}) {
      const Tensor g = grad({cross_entropy(x, none, {.reduction = reduction})}, {x}, {full(all.shape(), 3)},
                            {.create_graph = graph})[0];
      EXPECT_TRUE(same(g.detach(), zeros({2, 3})));
    }
  }
}

TEST(CrossEntropy, LargeLogitsStayFinite) {
  const Tensor x = from_vector<float>({1000, 0, 1000, 0, 1e4f, -1e4f}, {3, 2});
  EXPECT_TRUE(same(cross_entropy(x, labels({0, 1, 1}), {.reduction = Reduction::None}), tensor({0, 1000, 20000})));
}

TEST(CrossEntropy, BadLabelsAreNamed) {
  const Tensor x = zeros({2, 3});
  std::string text = testing::message_of([&] { cross_entropy(x, labels({0, 3})); });
  EXPECT_NE(text.find("cross_entropy"), std::string::npos) << text;
  EXPECT_NE(text.find("got 3 at position [1]"), std::string::npos) << text;
  text = testing::message_of([&] { cross_entropy(x, labels({0, -1})); });
  EXPECT_NE(text.find("got -1 at position [1]"), std::string::npos) << text;
  text = testing::message_of([&] { cross_entropy(zeros({1, 3}), labels({254}), {.ignore_index = 255}); });
  EXPECT_NE(text.find("got 254 at position [0]"), std::string::npos) << text;
  EXPECT_NO_THROW(cross_entropy(zeros({1, 3}), labels({255}), {.ignore_index = 255}));
  text = testing::message_of([&] { nll_loss(zeros({2, 3, 2}), labels({5}).reshape({1, 1}).expand({2, 2})); });
  EXPECT_NE(text.find("got 5 at position [0, 0]"), std::string::npos) << text;
  EXPECT_THROW(cross_entropy(x, zeros({2})), ArgumentError);
  EXPECT_THROW(cross_entropy(x, labels({0})), ArgumentError);
  EXPECT_THROW(cross_entropy(x, labels({0, 1}), {.weight = ones({2})}), ArgumentError);
  EXPECT_THROW(cross_entropy(x, labels({0, 1}), {.label_smoothing = 1.5}), ArgumentError);
}

// Against the definition written with other functions: smoothing, weights and extra axes.
TEST(CrossEntropy, Definition) {
  const TensorOptions options{.dtype = float64};
  const Tensor x = randn({3, 5, 2, 7}, options), weight = rand({5}, options), target = randint(0, 5, {3, 2, 7});
  const Tensor logs = log_softmax(x, 1), hot = one_hot(target, 5).to(float64).permute({0, 3, 1, 2});
  const Tensor w = weight.reshape({5, 1, 1}), smooth = hot * 0.9 + 0.1 / 5;
  const Tensor each = sum(smooth * w * logs, {1}) * -1.0, counted = sum(hot * w, {1});
  const CrossEntropyOptions full_options{.weight = weight, .reduction = Reduction::None, .label_smoothing = 0.1};
  EXPECT_TRUE(near(cross_entropy(x, target, full_options), each, 1e-13));
  EXPECT_FALSE(near(cross_entropy(x, target, {.reduction = Reduction::None}), each, 1e-3));
  EXPECT_TRUE(
      near(cross_entropy(x, target, {.weight = weight, .label_smoothing = 0.1}), sum(each) / sum(counted), 1e-13));
  EXPECT_TRUE(near(nll_loss(logs, target), cross_entropy(x, target), 1e-13));
}

TEST(CrossEntropy, Empties) {
  const Tensor x = testing::leaf(zeros({0, 3}));
  const Tensor loss = cross_entropy(x, labels({}));
  EXPECT_EQ(loss.item(), 0);
  EXPECT_EQ(grad({loss}, {x})[0].shape(), Shape({0, 3}));
  EXPECT_EQ(cross_entropy(zeros({2, 3, 0}), zeros({2, 0}, {.dtype = int64}), {.reduction = Reduction::None}).shape(),
            Shape({2, 0}));
}

TEST(PairLoss, ByHand) {
  const Tensor x = tensor({1, -2, 4}), t = tensor({0, 0, 4});
  EXPECT_TRUE(near(mse_loss(x, t), full({}, 5.0 / 3), 1e-7));
  EXPECT_EQ(l1_loss(x, t, Reduction::Sum).item(), 3);
  EXPECT_TRUE(same(huber_loss(x, t, Reduction::None), tensor({0.5, 1.5, 0})));
  EXPECT_EQ(binary_cross_entropy_with_logits(tensor({1e4f}), tensor({0})).item(), 1e4);
  EXPECT_EQ(binary_cross_entropy_with_logits(tensor({1e4f}), tensor({1})).item(), 0);
  EXPECT_TRUE(std::isnan(mse_loss(zeros({0}), zeros({0})).item()));
  EXPECT_EQ(mse_loss(zeros({0}), zeros({0}), Reduction::Sum).item(), 0);
  EXPECT_THROW(mse_loss(x, zeros({1})), ArgumentError);
  EXPECT_THROW(huber_loss(x, t, Reduction::Mean, 0), ArgumentError);
}

TEST(PairLoss, SumsDoNotDependOnThreads) {
  const Tensor x = randn({100003}), t = randn({100003});
  const int threads = num_threads();
  set_num_threads(1);
  const Tensor one = mse_loss(x, t);
  set_num_threads(3);
  EXPECT_TRUE(same(mse_loss(x, t), one));
  set_num_threads(threads);
}

}  // namespace
}  // namespace halo
