#include <halo/core/copy.h>
#include <halo/core/view.h>

#include <sstream>

#include "tests/testing.h"

namespace halo {
namespace {

using testing::same;

TEST(Tensor, ViewsShareStorageAndKeepOrder) {
  const Tensor t = arange(24).reshape({2, 3, 4});
  EXPECT_EQ(t.transpose(0, 2).to_vector<int64_t>()[1], 12);
  EXPECT_EQ(t.permute({2, 0, 1}).shape(), Shape({4, 2, 3}));
  EXPECT_EQ(t.select(1, -1).to_vector<int64_t>(), (std::vector<int64_t>{8, 9, 10, 11, 20, 21, 22, 23}));
  EXPECT_EQ(t.slice(2, 1, 4, 2).to_vector<int64_t>(),
            (std::vector<int64_t>{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23}));
  EXPECT_EQ(t.slice(2, 1, 4, 2).storage(), t.storage());
  EXPECT_EQ(t.select(0, 1).reshape({12}).storage(), t.storage());
  EXPECT_NE(t.transpose(0, 1).reshape({24}).storage(), t.storage());
}

// Axes of extent 1 have strides that mean nothing; a run of dense axes must not be recognised through one of them.
TEST(Tensor, ReshapeIgnoresStridesOfUnitAxes) {
  const Tensor base = arange(14);
  const Tensor t(base.storage(), base.dtype(), {2, 1, 3}, {7, 7, 1}, 0);
  EXPECT_EQ(t.reshape({6}).to_vector<int64_t>(), (std::vector<int64_t>{0, 1, 2, 7, 8, 9}));
  const Tensor u(base.storage(), base.dtype(), {2, 1, 3}, {3, 99, 1}, 0);
  EXPECT_TRUE(u.is_contiguous());
  EXPECT_EQ(u.reshape({6}).storage(), base.storage());
}

TEST(Tensor, RefusesViewsOutsideItsStorage) {
  const Tensor base = arange(6);
  EXPECT_THROW(Tensor(base.storage(), base.dtype(), {2, 3}, {4, 1}, 0), ArgumentError);
  EXPECT_THROW(Tensor(base.storage(), base.dtype(), {6}, {1}, 1), ArgumentError);
  EXPECT_NO_THROW(Tensor(base.storage(), base.dtype(), {0, 3}, {3, 1}, 6));
}

TEST(Tensor, ConvertsBetweenAllDtypes) {
  const Tensor t = from_vector<double>({-2, 0, 1, 3}, {4});
  for (DType to : {float32, float64, bfloat16, float16, int64, int32}) {
    EXPECT_EQ(t.to(to).to_vector<double>(), (std::vector<double>{-2, 0, 1, 3})) << name(to);
  }
  EXPECT_EQ(t.to(boolean).to_vector<bool>(), (std::vector<bool>{true, false, true, true}));
}

TEST(Tensor, HalfTypesRoundToNearestEven) {
  EXPECT_EQ(BFloat16(1.0f + 0x1p-8f).bits, BFloat16(1.0f).bits);          // a tie: to even
  EXPECT_EQ(static_cast<float>(BFloat16(1.0f + 0x1.8p-8f)), 1.0078125f);  // above the tie
  EXPECT_EQ(static_cast<float>(Float16(65519.0f)), 65504.0f);
  EXPECT_TRUE(std::isinf(static_cast<float>(Float16(65520.0f))));
  EXPECT_EQ(static_cast<float>(Float16(0x1p-24f)), 0x1p-24f);
  EXPECT_EQ(Float16(0x1p-25f).bits, 0);  // a tie between 0 and the smallest: to even
  EXPECT_TRUE(std::isnan(static_cast<float>(Float16(NAN))));
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::bit_cast<float>(0x7F800001u)))));
  for (uint32_t b = 0; b < 65536; ++b) {
    Float16 h;
    h.bits = static_cast<uint16_t>(b);
    const float f = static_cast<float>(h);
    if (!std::isnan(f)) {
      EXPECT_EQ(Float16(f).bits, h.bits);
    }
  }
}

TEST(Tensor, CopiesAnyStrides) {
  const Tensor t = arange(210).reshape({5, 6, 7});
  const Tensor target = zeros({7, 5, 6}, {.dtype = int64}).permute({1, 2, 0});
  copy(t, target);
  EXPECT_TRUE(same(target, t));
  EXPECT_TRUE(same(testing::strided_copy(t.to(float32)), t.to(float32)));
}

TEST(Tensor, PrintsEdgesOfLongAxes) {
  std::ostringstream text;
  text << arange(100);
  EXPECT_EQ(text.str(), "[0, 1, 2, ..., 97, 98, 99]\nint64 [100] on cpu");
}

TEST(Tensor, PoisonFillsFreshMemory) {
  const PoisonGuard guard;
  for (float v : empty({1000}).to_vector<float>()) EXPECT_TRUE(std::isnan(v));
}

TEST(Tensor, ErrorsNameWhatCame) {
  EXPECT_NE(testing::message_of([] { (void)arange(3).item(); }).find("int64 [3] on cpu"), std::string::npos);
  EXPECT_NE(testing::message_of([] { (void)Tensor().shape(); }).find("undefined"), std::string::npos);
  EXPECT_THROW((void)arange(3).data<float>(), ArgumentError);
  EXPECT_THROW(empty({4611686018427387904, 4}), ArgumentError);
  EXPECT_THROW(empty({int64_t{1} << 59}), OutOfMemoryError);
  EXPECT_THROW(linspace(0, 1, int64_t{1} << 59), OutOfMemoryError);
  EXPECT_THROW(randperm(int64_t{1} << 59), OutOfMemoryError);
}

TEST(Parallel, CoversEveryIndexOnceAndRethrows) {
  std::vector<int> seen(100003, 0);
  parallel_for(100003, 10, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
  });
  for (int s : seen) ASSERT_EQ(s, 1);
  EXPECT_THROW(parallel_for(1000, 1,
                            [](int64_t begin, int64_t) {
                              if (begin > 100) fail("inside");
                            }),
               ArgumentError);
}

TEST(Tensor, LikeAnother) {
  const Tensor like = zeros({3, 1, 5}, {.dtype = float64}).expand({3, 7, 5});
  for (const Tensor& t : {full_like(like, 2.5), zeros_like(like), ones_like(like), rand_like(like), randn_like(like)}) {
    EXPECT_EQ(t.shape(), like.shape());
    EXPECT_EQ(t.dtype(), float64);
    EXPECT_TRUE(t.is_contiguous());
  }
  EXPECT_EQ(full_like(like, 2.5).to_vector<double>(), std::vector<double>(105, 2.5));
  EXPECT_EQ(full_like(zeros({1}, {.dtype = int64}), INT64_MAX).to_vector<int64_t>()[0], INT64_MAX);
  Generator a(3), b(3);
  EXPECT_TRUE(same(rand_like(like, a), rand(like.shape(), like.options(), b)));
  EXPECT_TRUE(same(randn_like(like, a), randn(like.shape(), like.options(), b)));
  testing::message_of([] { rand_like(zeros({2}, {.dtype = int64})); });
  EXPECT_EQ(full_like(empty({0, 2}), 1).shape(), Shape({0, 2}));
}

TEST(StateDict, CloneHasMemoryOfItsOwn) {
  const Tensor weight = testing::leaf(arange(6, {.dtype = float32}).reshape({2, 3}));
  const StateDict state{{"weight", weight}, {"turned", weight.transpose(0, 1)}, {"absent", {}}, {"step", full({}, 3)}};
  const StateDict kept = clone(state);
  {
    const NoGradGuard guard;
    weight.fill_(-1);
  }
  EXPECT_TRUE(same(kept.at("weight"), arange(6, {.dtype = float32}).reshape({2, 3})));
  EXPECT_TRUE(same(kept.at("turned"), tensor({0, 3, 1, 4, 2, 5}).reshape({3, 2})));
  EXPECT_FALSE(kept.at("absent").defined());
  EXPECT_FALSE(kept.at("weight").requires_grad());
  EXPECT_EQ(kept.at("step").item(), 3);
  EXPECT_EQ(kept.size(), 4u);
}

}  // namespace
}  // namespace halo
