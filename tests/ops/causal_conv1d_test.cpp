#include <halo/ops/causal_conv1d.h>

#include "tests/any_strides.h"

namespace halo {
namespace {

using testing::message_of;
using testing::near;
using testing::same;
const TensorOptions kDouble{.dtype = float64};

Tensor row(const std::vector<float>& values) {
  return from_vector<float>(values, {1, 1, static_cast<int64_t>(values.size())});
}

/// By definition: conv1d of the zero-padded input.
Tensor padded_conv(const Tensor& x, const Tensor& w, const Tensor& b, int64_t dilation) {
  const int64_t channels = x.size(1), kernel = w.size(-1);
  return conv1d(x, w.reshape({channels, 1, kernel}), b,
                {.padding = (kernel - 1) * dilation, .padding_after = 0, .dilation = dilation, .groups = channels});
}

struct Sizes {
  int64_t length, kernel, dilation;
};
const Sizes kSizes[] = {{1, 1, 1}, {1, 4, 1}, {2, 4, 1}, {7, 3, 1}, {11, 4, 3}, {5, 19, 1}, {13, 2, 5}, {6, 1, 7}};

class CausalConv1dTest : public ::testing::TestWithParam<Sizes> {};

TEST_P(CausalConv1dTest, MatchesConv1d) {
  const PoisonGuard poison;
  const auto [length, kernel, dilation] = GetParam();
  const Tensor x = randn({2, 3, length}, kDouble), w = randn({3, 1, kernel}, kDouble), b = randn({3}, kDouble);
  const Tensor expected = padded_conv(x, w, b, dilation);
  EXPECT_TRUE(near(causal_conv1d(x, w, b, {.dilation = dilation}), expected, 1e-14));
  EXPECT_TRUE(
      near(causal_conv1d(x, w.reshape({3, kernel}), b, {dilation, ActivationKind::Silu}), silu(expected), 1e-14));
  EXPECT_TRUE(near(causal_conv1d(x, w, {}, {.dilation = dilation}), padded_conv(x, w, {}, dilation), 1e-14));
  const auto f = [](const Tensor& t) { return t.to(float32); };
  EXPECT_TRUE(near(causal_conv1d(f(x), f(w), f(b), {.dilation = dilation}), f(expected), 1e-6));
  EXPECT_FALSE(near(causal_conv1d(x, w * 1.001, b, {.dilation = dilation}), expected, 1e-5));
}

TEST_P(CausalConv1dTest, ChunksGiveWhatTheWholeGives) {
  const auto [length, kernel, dilation] = GetParam();
  const CausalConv1dOptions options{dilation, ActivationKind::Silu};
  const Tensor x = randn({2, 3, length}), w = randn({3, kernel}), b = randn({3});
  const Tensor state = randn({2, 3, (kernel - 1) * dilation});
  const auto whole = causal_conv1d_with_state(x, w, b, state, options);
  for (int64_t chunk : {1, 2, 3}) {
    Tensor carried = state;
    const Tensor stepped = state.clone();
    for (int64_t at = 0; at < length; at += chunk) {
      const Tensor part = x.slice(2, at, at + chunk);
      const auto result = causal_conv1d_with_state(part, w, b, carried, options);
      carried = result.final_state;
      EXPECT_TRUE(same(result.output, whole.output.slice(2, at, at + chunk)));
      EXPECT_TRUE(same(causal_conv1d_update(part, stepped, w, b, options), result.output));
      EXPECT_TRUE(same(stepped, carried));
    }
    EXPECT_TRUE(same(carried, whole.final_state));
  }
}

TEST_P(CausalConv1dTest, Gradients) {
  const auto [length, kernel, dilation] = GetParam();
  const int64_t before = (kernel - 1) * dilation;
  for (ActivationKind activation : {ActivationKind::None, ActivationKind::Silu}) {
    const CausalConv1dOptions options{dilation, activation};
    const auto plain = [=](const std::vector<Tensor>& in) { return causal_conv1d(in[0], in[1], in[2], options); };
    // Both outputs, joined by a product that needs the gradient of each.
    const auto carried = [=](const std::vector<Tensor>& in) {
      const auto result = causal_conv1d_with_state(in[0], in[1], in[2], in[3], options);
      return before == 0 ? result.output : result.output * sum(result.final_state * result.final_state, {2}, true);
    };
    const auto inputs = [&, length = length, kernel = kernel](const TensorOptions& o) {
      return std::vector<Tensor>{randn({2, 2, length}, o), randn({2, 1, kernel}, o) * 0.5, randn({2}, o),
                                 randn({2, 2, before}, o)};
    };
    const auto wide = inputs(kDouble), narrow = inputs({});
    testing::expect_gradients(plain, {wide[0], wide[1], wide[2]}, {.step = 1e-4, .tolerance = 1e-6});
    testing::expect_gradients(carried, wide, {.step = 1e-4, .tolerance = 1e-6});
    testing::expect_any_strides(plain, {narrow[0], narrow[1], narrow[2]});
    testing::expect_any_strides(carried, narrow);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, CausalConv1dTest, ::testing::ValuesIn(kSizes));

// Chunks shorter than the filter once lost the carried state, or its gradient.
TEST(CausalConv1d, ShortChunksCarryTheState) {
  const Tensor w = from_vector<float>({1, 10, 100, 1000}, {1, 4});
  const Tensor zero = zeros({1, 1, 3});
  EXPECT_TRUE(same(causal_conv1d(row({1, 2, 3, 4}), w), row({1000, 2100, 3210, 4321})));
  const auto first = causal_conv1d_with_state(row({1}), w, {}, zero);
  const auto second = causal_conv1d_with_state(row({2, 3}), w, {}, first.final_state);
  const auto third = causal_conv1d_with_state(row({4}), w, {}, second.final_state);
  EXPECT_TRUE(same(first.final_state, row({0, 0, 1})));
  EXPECT_TRUE(same(second.final_state, row({1, 2, 3})));
  EXPECT_TRUE(same(third.final_state, row({2, 3, 4})));
  EXPECT_TRUE(same(second.output, row({2100, 3210})));
  EXPECT_TRUE(same(third.output, row({4321})));

  const Tensor x = testing::leaf(row({7})), state = testing::leaf(row({1, 2, 3}));
  const auto result = causal_conv1d_with_state(x, w, {}, state);
  const auto grads = grad({result.final_state}, {x, state}, {row({10, 20, 30})});
  EXPECT_TRUE(same(grads[0], row({30})));
  EXPECT_TRUE(same(grads[1], row({0, 10, 20})));
}

TEST(CausalConv1d, ManyChannels) {
  for (const Shape& shape : {Shape{1, 65536, 4}, Shape{65536, 1, 4}}) {
    const Tensor y = causal_conv1d(ones(shape), ones({shape[1], 1, 2}));
    EXPECT_TRUE(same(y, tensor({1, 2, 2, 2}).expand(shape).contiguous()));
  }
}

TEST(CausalConv1d, DecodingKeepsShapesAndRefusesToLoseGradients) {
  const Tensor x = randn({2, 3}), w = randn({3, 4}), state = zeros({2, 3, 3});
  EXPECT_EQ(causal_conv1d_update(x, state, w).shape(), (Shape{2, 3}));
  EXPECT_TRUE(same(state.select(2, 2).contiguous(), x));
  const Tensor weight = testing::leaf(w);
  EXPECT_NE(message_of([&] { causal_conv1d_update(x, state, weight); }).find("NoGradGuard"), std::string::npos);
  const NoGradGuard guard;
  EXPECT_EQ(causal_conv1d_update(x, state, weight).shape(), (Shape{2, 3}));
  // A state is named as the caller knows it.
  for (const Tensor& wrong : {zeros({2, 3, 2}), zeros({2, 3, 3}, {.dtype = float64})}) {
    EXPECT_NE(message_of([&] { causal_conv1d_update(x, wrong, w); }).find(" state "), std::string::npos);
  }
  // A state that is a view moves on in place too.
  const Tensor strided = testing::strided_copy(zeros({2, 3, 3}));
  causal_conv1d_update(x, strided, w);
  EXPECT_TRUE(same(strided.select(2, 2).contiguous(), x));
}

TEST(CausalConv1d, PackedSequencesDoNotSeeEachOther) {
  const CausalConv1dOptions options{2, ActivationKind::Silu};
  const Tensor x = testing::leaf(randn({2, 3, 17}, kDouble)), w = testing::leaf(randn({3, 4}, kDouble)),
               b = testing::leaf(randn({3}, kDouble));
  const Tensor y = causal_conv1d_packed(x, {0, 1, 1, 9, 17}, w, b, options);
  const auto one = [&](int64_t from, int64_t to) { return causal_conv1d(x.slice(2, from, to), w, b, options); };
  EXPECT_TRUE(same(y.detach(), cat({one(0, 1), one(1, 9), one(9, 17)}, 2).detach()));
  EXPECT_FALSE(near(y.detach(), causal_conv1d(x, w, b, options).detach(), 1e-3));
  // The gradient of one sequence's results is that of its own inputs alone.
  const Tensor gx = grad({sum(y.slice(2, 1, 9))}, {x})[0].detach();
  EXPECT_TRUE(same(gx.slice(2, 9, 17).contiguous(), zeros({2, 3, 8}, kDouble)));
  EXPECT_TRUE(same(gx.slice(2, 0, 1).contiguous(), zeros({2, 3, 1}, kDouble)));
  const auto packed = [](const std::vector<Tensor>& t) { return causal_conv1d_packed(t[0], {0, 5, 17}, t[1], t[2]); };
  EXPECT_TRUE(gradcheck(packed, {x, w, b}).ok);
  EXPECT_EQ(causal_conv1d_packed(zeros({2, 3, 0}), {0, 0}, zeros({3, 4})).shape(), (Shape{2, 3, 0}));
  for (const IntList& wrong : {IntList{0}, IntList{1, 17}, IntList{0, 16}, IntList{0, 9, 5, 17}}) {
    EXPECT_NE(message_of([&] { causal_conv1d_packed(x, wrong, w); }).find("offsets expects 0, ..., 17"),
              std::string::npos);
  }
}

TEST(CausalConv1d, EmptiesAndErrors) {
  const PoisonGuard poison;
  for (const Shape& shape : {Shape{0, 3, 5}, Shape{2, 3, 0}, Shape{2, 0, 5}}) {
    for (bool graph : {false, true}) {
      const Tensor x = testing::leaf(zeros(shape)), w = testing::leaf(ones({shape[1], 4})),
                   state = testing::leaf(ones({shape[0], shape[1], 3})), b = testing::leaf(ones({shape[1]}));
      const auto result = causal_conv1d_with_state(x, w, b, state);
      const Tensor up = randn(state.shape());
      const auto grads =
          grad({result.output, result.final_state}, {x, w, b, state}, {zeros(shape), up}, {.create_graph = graph});
      EXPECT_EQ(grads[0].shape(), shape);
      EXPECT_TRUE(same(grads[1].detach(), zeros(w.shape())));
      EXPECT_TRUE(same(grads[2].detach(), zeros(b.shape())));
      if (shape[2] == 0) {
        EXPECT_TRUE(same(grads[3].detach(), up));
      }
    }
  }
  const Tensor x = zeros({1, 2, 5});
  EXPECT_NE(message_of([&] { causal_conv1d(x, zeros({3, 4})); }).find("weight expects [2, K]"), std::string::npos);
  EXPECT_NE(message_of([&] {
              causal_conv1d(x, zeros({2, 4}), {}, {.dilation = 0});
            }).find("dilation expects"),
            std::string::npos);
  EXPECT_NE(message_of([&] { causal_conv1d(x, zeros({2, 0})); }).find("at least one tap"), std::string::npos);
  EXPECT_NE(message_of([&] {
              causal_conv1d_with_state(x, zeros({2, 4}), {}, zeros({1, 2, 4}));
            }).find("initial_state expects shape [1, 2, 3]"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              causal_conv1d(x, zeros({2, 4}), {}, {.activation = ActivationKind::Gelu});
            }).find("none or silu"),
            std::string::npos);
}

}  // namespace
}  // namespace halo
