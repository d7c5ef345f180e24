#include "tests/testing.h"

namespace halo {
namespace {

using testing::near;
using testing::same;

/// Three loops over the definition, in float64.
Tensor naive(const Tensor& a, const Tensor& b) {
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  const auto va = a.to_vector<double>(), vb = b.to_vector<double>();
  std::vector<double> c(static_cast<std::size_t>(m * n), 0.0);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t l = 0; l < k; ++l)
        c[static_cast<std::size_t>(i * n + j)] +=
            va[static_cast<std::size_t>(i * k + l)] * vb[static_cast<std::size_t>(l * n + j)];
  return from_vector(c, {m, n}).to(a.dtype());
}

TEST(Matmul, IntegersAreExact) {
  for (const auto& [m, k, n] :
       {std::array<int64_t, 3>{1, 1, 1}, {7, 11, 5}, {129, 3, 2}, {2, 5000, 3}, {131, 17, 515}}) {
    const Tensor a = testing::random_integers({m, k}), b = testing::random_integers({k, n});
    EXPECT_TRUE(same(matmul(a, b), naive(a, b))) << m << " " << k << " " << n;
    EXPECT_FALSE(same(matmul(a, b) + 1.0, naive(a, b)));
  }
}

TEST(Matmul, AnyStrides) {
  const Tensor a = testing::random_integers({7, 11}), b = testing::random_integers({11, 5});
  const Tensor expected = naive(a, b);
  const auto transposed = [](const Tensor& t) { return t.transpose(0, 1).clone().transpose(0, 1); };
  const auto offset = [](const Tensor& t) {
    return pad(t, {3, 2, 1, 4}).slice(0, 1, t.size(0) + 1).slice(1, 3, t.size(1) + 3);
  };
  for (const Tensor& left : {a, transposed(a), offset(a), testing::strided_copy(a)}) {
    for (const Tensor& right : {b, transposed(b), offset(b), testing::strided_copy(b)}) {
      EXPECT_TRUE(same(matmul(left, right), expected));
    }
  }
  // One row, one column or one number seen through stride 0.
  const Tensor row = testing::random_integers({1, 11});
  EXPECT_TRUE(same(matmul(row.expand({7, 11}), b), naive(row.expand({7, 11}).clone(), b)));
  EXPECT_TRUE(same(matmul(a, full({}, 2).expand({11, 5})), naive(a, full({11, 5}, 2))));
}

TEST(Matmul, BatchesBroadcast) {
  const Tensor a = testing::random_integers({3, 1, 5, 7}), b = testing::random_integers({4, 7, 2});
  const Tensor c = matmul(a, b), permuted = matmul(a.transpose(-1, -2).clone().transpose(-1, -2), b);
  EXPECT_EQ(c.shape(), Shape({3, 4, 5, 2}));
  EXPECT_TRUE(same(permuted, c));
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t j = 0; j < 4; ++j) EXPECT_TRUE(same(c[i][j], naive(a[i][0], b[j])));
  // Batch axes that one stride cannot step through.
  const Tensor exchanged = testing::random_integers({4, 3, 5, 7}).transpose(0, 1);
  EXPECT_TRUE(same(matmul(exchanged, b), matmul(exchanged.clone(), b)));
}

TEST(Matmul, VectorsAndEmpties) {
  const Tensor v = tensor({1, 2, 3}), m = from_vector<float>({1, 0, 0, 2, 1, 1}, {2, 3});
  EXPECT_EQ(matmul(v, v).item(), 14);
  EXPECT_EQ(matmul(v, v).shape(), Shape{});
  EXPECT_TRUE(same(matmul(m, v), tensor({1, 7})));
  EXPECT_TRUE(same(matmul(tensor({1, 2}), m), tensor({5, 2, 2})));
  EXPECT_TRUE(same(matmul(zeros({3, 0}), zeros({0, 2})), zeros({3, 2})));
  EXPECT_EQ(matmul(zeros({0, 3}), zeros({3, 2})).shape(), Shape({0, 2}));
  EXPECT_EQ(matmul(zeros({0, 2, 3}), zeros({3, 2})).shape(), Shape({0, 2, 2}));
}

TEST(Matmul, NanAndInfinityArrive) {
  Tensor a = zeros({3, 4});
  a[1].slice(0, 2, 3).fill_(NAN);
  const auto c = matmul(a, ones({4, 2})).to_vector<float>();
  EXPECT_TRUE(std::isnan(c[2]) && std::isnan(c[3]));
  EXPECT_EQ(c[0], 0);
  EXPECT_EQ(c[4], 0);
}

TEST(Matmul, LongSumsKeepFloat32Accuracy) {
  const Tensor a = randn({3, 300007}), b = randn({300007, 2});
  const Tensor wide = matmul(a.to(float64), b.to(float64));
  EXPECT_TRUE(near(matmul(a, b).to(float64), wide, 1e-6));
  EXPECT_FALSE(near(matmul(a, b).to(float64) * 1.00001, wide, 1e-6));
}

TEST(Matmul, BitsDoNotDependOnThreads) {
  const Tensor a = randn({3, 257, 3001}), b = randn({3, 3001, 520});
  const int threads = num_threads();
  set_num_threads(1);
  const Tensor one = matmul(a, b);
  set_num_threads(3);
  EXPECT_TRUE(same(matmul(a, b), one));
  set_num_threads(threads);
}

TEST(Matmul, MessagesNameBothShapes) {
  const std::string text = testing::message_of([] { matmul(zeros({2, 3}), zeros({4, 5})); });
  EXPECT_NE(text.find("matmul"), std::string::npos);
  EXPECT_NE(text.find("[2, 3]"), std::string::npos);
  EXPECT_NE(text.find("[4, 5]"), std::string::npos);
  EXPECT_THROW(matmul(zeros({2, 3}), zeros({3, 2}, {.dtype = float64})), ArgumentError);
  EXPECT_THROW(matmul(zeros({2, 2, 3}), zeros({3, 3, 2})), ArgumentError);
  EXPECT_THROW(matmul(zeros({}), zeros({3, 2})), ArgumentError);
  EXPECT_THROW(matmul(arange(6).reshape({2, 3}), arange(6).reshape({3, 2})), ArgumentError);
}

TEST(Linear, BiasAndEmpties) {
  const Tensor x = testing::random_integers({5, 7}), w = testing::random_integers({3, 7}), b = tensor({1, 2, 3});
  EXPECT_TRUE(same(linear(x, w, b), naive(x, w.transpose(0, 1).clone()) + b));
  EXPECT_TRUE(same(linear(x, w), naive(x, w.transpose(0, 1).clone())));
  EXPECT_TRUE(same(linear(zeros({2, 0}), zeros({3, 0}), b), b.expand({2, 3}).clone()));
  const Tensor none = testing::leaf(zeros({0, 7})), weight = testing::leaf(w), bias = testing::leaf(b);
  const auto g = grad({linear(none, weight, bias)}, {none, weight, bias}, {zeros({0, 3})});
  EXPECT_EQ(g[0].shape(), Shape({0, 7}));
  EXPECT_TRUE(same(g[1], zeros({3, 7})));
  EXPECT_TRUE(same(g[2], zeros({3})));
  EXPECT_THROW(linear(x, w, zeros({4})), ArgumentError);
  EXPECT_THROW(linear(x, zeros({3, 6})), ArgumentError);
}

}  // namespace
}  // namespace halo
