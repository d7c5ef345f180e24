#include "tests/testing.h"

namespace halo {
namespace {

using testing::same;

Tensor ints(const std::vector<int64_t>& values) { return from_vector(values, {static_cast<int64_t>(values.size())}); }

TEST(IndexSelect, AnyAxisAnyStrides) {
  const Tensor x = testing::random_integers({3, 4, 5});
  const Tensor index = ints({3, 0, 3});
  const Tensor y = index_select(testing::strided_copy(x), 1, index);
  for (int64_t j = 0; j < 3; ++j)
    EXPECT_TRUE(same(y.select(1, j), x.select(1, index.to_vector<int64_t>()[static_cast<std::size_t>(j)])));
  EXPECT_TRUE(same(index_select(x.transpose(0, 2), -1, index.slice(0, 1, 2)), x.transpose(0, 2).slice(2, 0, 1)));
  EXPECT_EQ(index_select(x, 0, ints({})).shape(), Shape({0, 4, 5}));
  EXPECT_TRUE(same(index_select(x, 1, index.to(uint8)), y));
}

TEST(IndexAdd, RepeatedIndicesAddUpWhateverTheThreads) {
  const Tensor source = randn({3, 1001, 37}), index = randint(0, 7, {1001});
  const int threads = num_threads();
  set_num_threads(1);
  const Tensor one = index_add(zeros({3, 7, 37}), 1, index, source);
  set_num_threads(3);
  EXPECT_TRUE(same(index_add(zeros({3, 7, 37}), 1, index, source), one));
  set_num_threads(threads);
  const Tensor hot = one_hot(index, 7).to(float64);
  const Tensor expected = matmul(hot.transpose(0, 1), source.to(float64));
  EXPECT_TRUE(testing::near(one.to(float64), expected, 1e-7));
  EXPECT_FALSE(testing::near(one.to(float64) + 0.001, expected, 1e-7));
  EXPECT_EQ(index_add(ints({10, 20}), 0, ints({1, 1}), ints({1, 2})).to_vector<int64_t>(),
            (std::vector<int64_t>{10, 23}));
}

TEST(Gather, IndexMayBeShorterOnOtherAxes) {
  const Tensor x = arange(12).reshape({3, 4});
  EXPECT_EQ(gather(x, 1, ints({3, 3, 0, 1}).reshape({2, 2})).to_vector<int64_t>(), (std::vector<int64_t>{3, 3, 4, 5}));
  EXPECT_EQ(gather(x.transpose(0, 1), 1, ints({2, 0}).reshape({2, 1})).to_vector<int64_t>(),
            (std::vector<int64_t>{8, 1}));
  EXPECT_EQ(gather(x, 0, ints({2, 2, 2, 2, 1}).slice(0, 0, 4).reshape({1, 4})).to_vector<int64_t>(),
            (std::vector<int64_t>{8, 9, 10, 11}));
  EXPECT_EQ(gather(x, 0, zeros({0, 4}, {.dtype = int64})).shape(), Shape({0, 4}));
  EXPECT_THROW(gather(x, 1, zeros({4, 2}, {.dtype = int64})), ArgumentError);
  EXPECT_THROW(gather(x, 1, zeros({4}, {.dtype = int64})), ArgumentError);
}

TEST(ScatterAdd, AddsInOrder) {
  const Tensor x = zeros({2, 3});
  const Tensor y = scatter_add(x, 1, ints({0, 0, 2, 1}).reshape({1, 4}), from_vector<float>({1, 2, 4, 8}, {1, 4}));
  EXPECT_TRUE(same(y, from_vector<float>({3, 8, 4, 0, 0, 0}, {2, 3})));
}

TEST(Index, MessagesNamePositionAndValue) {
  const Tensor x = zeros({3, 4});
  std::string text = testing::message_of([&] { index_select(x, 0, ints({0, 3})); });
  EXPECT_NE(text.find("index_select"), std::string::npos) << text;
  EXPECT_NE(text.find("got 3 at position [1]"), std::string::npos) << text;
  text = testing::message_of([&] { embedding(ints({0, 1, 2, -1}).reshape({2, 2}), x); });
  EXPECT_NE(text.find("embedding"), std::string::npos) << text;
  EXPECT_NE(text.find("got -1 at position [1, 1]"), std::string::npos) << text;
  text = testing::message_of([&] { gather(x, 1, ints({0, 1, 4, 0, 0, 0}).reshape({3, 2})); });
  EXPECT_NE(text.find("got 4 at position [1, 0]"), std::string::npos) << text;
  EXPECT_THROW(scatter_add(x, 1, ints({9}).reshape({1, 1}), ones({1, 1})), ArgumentError);
  EXPECT_THROW(index_select(x, 0, zeros({2})), ArgumentError);
  EXPECT_THROW(index_select(x, 0, zeros({1, 2}, {.dtype = int64})), ArgumentError);
  EXPECT_THROW(index_add(x, 0, ints({0, 1}), zeros({3, 4})), ArgumentError);
  EXPECT_THROW(embedding(ints({0}), x, 3), ArgumentError);
}

TEST(Embedding, ShapesAndTypes) {
  const Tensor weight = testing::random_integers({5, 3});
  const Tensor y = embedding(ints({4, 0, 1, 4, 2, 3}).reshape({2, 1, 3}), weight);
  EXPECT_EQ(y.shape(), Shape({2, 1, 3, 3}));
  EXPECT_TRUE(same(y[1][0][0], weight[4]));
  EXPECT_TRUE(same(embedding(full({}, 2, {.dtype = uint8}), weight), weight[2]));
  EXPECT_EQ(embedding(zeros({0}, {.dtype = int64}), weight).shape(), Shape({0, 3}));
}

TEST(OneHot, AndMaskedFill) {
  EXPECT_EQ(one_hot(ints({1, 0}), 3).to_vector<int64_t>(), (std::vector<int64_t>{0, 1, 0, 1, 0, 0}));
  EXPECT_EQ(one_hot(ints({}), 3).shape(), Shape({0, 3}));
  EXPECT_THROW(one_hot(ints({0, 3}), 3), ArgumentError);
  const Tensor x = tensor({NAN, 2, 3});
  EXPECT_TRUE(same(masked_fill(x, from_vector<bool>({true, false, true}, {3}), 0), tensor({0, 2, 0})));
  EXPECT_THROW(masked_fill(x, zeros({2, 3}, {.dtype = boolean}), 0), ArgumentError);
}

}  // namespace
}  // namespace halo
