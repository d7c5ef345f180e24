#include <halo/ops/local_response_norm.h>

#include "tests/any_strides.h"

namespace halo {
namespace {

using testing::near;

Tensor naive(const Tensor& x, int64_t size, double alpha, double beta, double k) {
  const auto in = x.to_vector<double>();
  const int64_t channels = x.size(1), positions = x.numel() / (x.size(0) * channels);
  std::vector<double> out;
  for (int64_t n = 0; n < x.size(0); ++n) {
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t i = 0; i < positions; ++i) {
        double sum = 0;
        for (int64_t j = c - size / 2; j <= c + (size - 1) / 2; ++j) {
          if (j < 0 || j >= channels) continue;
          const double v = in[static_cast<std::size_t>((n * channels + j) * positions + i)];
          sum += v * v;
        }
        out.push_back(in[static_cast<std::size_t>((n * channels + c) * positions + i)] /
                      std::pow(k + alpha * sum, beta));
      }
    }
  }
  return from_vector(out, x.shape());
}

// A first value of 1/16 would mean that alpha was not divided by the size.
TEST(LocalResponseNorm, ConventionsAndWindowEdges) {
  const Tensor x = from_vector<double>({1, 2, 3}, {1, 3});
  const auto run = [&](int64_t size, double alpha, LrnConvention convention) {
    return local_response_norm(x, size, {.alpha = alpha, .beta = 1, .k = 1, .convention = convention}).reshape({3});
  };
  const auto divided = LrnConvention::DividedBySize;
  EXPECT_TRUE(near(run(3, 3, divided), from_vector<double>({1. / 6, 2. / 15, 3. / 14}, {3}), 1e-15));
  EXPECT_TRUE(near(run(2, 2, divided), from_vector<double>({1. / 2, 1. / 3, 3. / 14}, {3}), 1e-15));
  EXPECT_TRUE(near(run(7, 7, divided), from_vector<double>({1. / 15, 2. / 15, 3. / 15}, {3}), 1e-15));
  EXPECT_TRUE(near(run(3, 3, LrnConvention::Paper), from_vector<double>({1. / 16, 2. / 43, 3. / 40}, {3}), 1e-15));
}

TEST(LocalResponseNorm, MatchesTheDefinition) {
  for (int64_t size : {1, 2, 5, 6, 40}) {
    const Tensor x = randn({2, 11, 3, 101}, {.dtype = float64});
    const Tensor expected = naive(x, size, 0.3 / static_cast<double>(size), 0.75, 2);
    const LocalResponseNormOptions options{.alpha = 0.3, .beta = 0.75, .k = 2};
    EXPECT_TRUE(near(local_response_norm(x, size, options), expected, 1e-14));
    EXPECT_TRUE(near(local_response_norm(x.to(float32), size, options), expected.to(float32), 5e-7));
    EXPECT_FALSE(near(local_response_norm(x, size + 1, options), expected, 1e-5));
  }
}

TEST(LocalResponseNorm, Gradients) {
  for (int64_t size : {2, 3, 9}) {
    for (const Shape& shape : {Shape{2, 5, 3}, Shape{1, 4}, Shape{1, 3, 2, 2}}) {
      const auto f = [=](const std::vector<Tensor>& in) {
        return local_response_norm(in[0], size, {.alpha = 0.9, .k = 1.5});
      };
      testing::expect_gradients(f, {randn(shape, {.dtype = float64})});
      testing::expect_any_strides(f, {randn(shape)});
    }
  }
}

TEST(LocalResponseNorm, ThreadsEmptiesAndErrors) {
  const Tensor x = randn({3, 7, 700}), g = randn({3, 7, 700});
  testing::expect_thread_independent([&] {
    return std::vector<Tensor>{ops::local_response_norm_forward({}, x), ops::local_response_norm_backward({}, x, g)};
  });
  for (const Shape& shape : {Shape{0, 3, 2}, Shape{2, 0, 2}, Shape{2, 3, 0}}) {
    const Tensor empty = testing::leaf(zeros(shape));
    const Tensor y = local_response_norm(empty, 5);
    const Tensor dx = grad({y}, {empty}, {ones(shape)}, {.create_graph = true})[0];
    EXPECT_EQ(dx.shape(), shape);
  }
  EXPECT_NE(testing::message_of([] {
              local_response_norm(zeros({2, 3, 4}), 0);
            }).find("size expects at least 1"),
            std::string::npos);
  EXPECT_NE(testing::message_of([] { local_response_norm(zeros({3}), 5); }).find("at least 2 axes"), std::string::npos);
}

}  // namespace
}  // namespace halo
