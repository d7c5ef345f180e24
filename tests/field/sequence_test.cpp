// Field cases of long convolution, transforms, and causal convolution in chunks.
#include "field_testing.h"

namespace halo {
namespace {

using namespace testing;

using FieldSequence = Field;
INSTANTIATE_TEST_SUITE_P(Devices, FieldSequence, both_devices(), device_name);

// Case 50. A kick of 1e10 at position 3 changes outputs before it. By transforms the error of a row is relative to its
// largest values, and documented so; by sums the past knows nothing of the future.
TEST_P(FieldSequence, LeakFromTheFutureOrRounding) {
  std::vector<float> taps;
  for (int t = 0; t < 1024; ++t) taps.push_back(static_cast<float>(1.0 / (t + 1)));
  const Tensor k = make(taps, {1, 1024}), x = zeros({1, 1, 1024}, options());
  x.select(2, 3).fill_(1e10);
  const Tensor direct = long_conv_direct(x, k);
  EXPECT_TRUE(holds(direct.slice(2, 0, 3), {0, 0, 0}));
  EXPECT_NEAR(direct.select(2, 3).item(), 1e10, 1e4);
  const Tensor fft = long_conv(x, k, {}, {.method = LongConvMethod::Fft});
  EXPECT_LT(amax(abs(fft.slice(2, 0, 3))).item(), 1000);
  EXPECT_NEAR(fft.select(2, 3).item(), 1e10, 1e4);
  for (const auto& method : {LongConvMethod::Direct, LongConvMethod::Fft}) {
    const Tensor input = leaf(x);
    const Tensor y = long_conv(input, k, {}, {.method = method});
    const Tensor slope = grad({y.select(2, 2)}, {input}, {ones({1, 1}, options())})[0];
    EXPECT_NEAR(slope.select(2, 3).item(), 0, method == LongConvMethod::Direct ? 0 : 1e-6);
  }
}

// Case 52. A transform of twice the length cuts a filter that is longer, and what is left wraps around.
TEST_P(FieldSequence, FilterLongerThanTheSequence) {
  const Tensor k = make({1, 2, 3, 4, 5, 6}, {1, 6});
  for (const auto& method : {LongConvMethod::Auto, LongConvMethod::Direct, LongConvMethod::Fft}) {
    EXPECT_TRUE(close(long_conv(make({1, 2}, {1, 1, 2}), k, {}, {.method = method}), {1, 4}, 1e-5));
    EXPECT_TRUE(close(long_conv(make({3}, {1, 1, 1}), k, {}, {.method = method}), {3}, 1e-5));
    // The full convolution is the two-sided one of a padded sequence.
    const Tensor padded = make({0, 0, 0, 1, 2, 0, 0}, {1, 1, 7});
    EXPECT_TRUE(close(long_conv(padded, k, {}, {.causal = false, .method = method}), {1, 4, 7, 10, 13, 16, 12}, 1e-4));
  }
  // The output for a prefix is the prefix of the output.
  const Tensor x = randn({2, 3, 50}, options()), w = randn({3, 120}, options());
  const Tensor whole = long_conv(x, w, {}, {.method = LongConvMethod::Direct});
  for (int64_t length : {1, 2, 3, 17, 49}) {
    const Tensor prefix = long_conv(x.slice(2, 0, length), w, {}, {.method = LongConvMethod::Direct});
    EXPECT_TRUE(same(prefix, whole.slice(2, 0, length).contiguous())) << length;
    EXPECT_TRUE(near(long_conv(x.slice(2, 0, length), w, {}, {.method = LongConvMethod::Fft}), prefix, 1e-5));
  }
}

// Case 53. Lengths that are not a power of two, odd, or prime: refused, misaligned, or one sample lost.
TEST_P(FieldSequence, AnyLength) {
  for (int64_t length : {1, 2, 3, 7, 8, 9, 8191, 8192, 8193, 8760, 8761, 14113, 131071}) {
    const Tensor k = (arange(length, options()) + 1.0).reshape({1, length});
    const auto answer = [&](int64_t at) {
      const Tensor x = zeros({1, 1, length}, options());
      x.select(2, at).fill_(1);
      return long_conv(x, k, {}, {.method = LongConvMethod::Fft}).reshape({length});
    };
    const double bound = 2e-6 * static_cast<double>(length);
    EXPECT_LE(amax(abs(answer(0) - k.reshape({length}))).item(), bound) << length;
    const Tensor last = zeros({length}, options());
    last.select(0, length - 1).fill_(1);
    EXPECT_LE(amax(abs(answer(length - 1) - last)).item(), bound) << length;
  }
}

// Case 55. Chunks shorter than the window break the carried state or its gradient, while the forward pass is exact.
TEST_P(FieldSequence, StreamingInShortChunks) {
  const Tensor w = make({1, 10, 100, 1000}, {1, 4});
  EXPECT_TRUE(holds(causal_conv1d(make({1, 2, 3, 4}, {1, 1, 4}), w), {1000, 2100, 3210, 4321}));
  Tensor state = zeros({1, 1, 3}, options());
  std::vector<std::vector<float>> chunks{{1}, {2, 3}, {4}};
  const std::vector<std::vector<double>> outputs{{1000}, {2100, 3210}, {4321}};
  const std::vector<std::vector<double>> states{{0, 0, 1}, {1, 2, 3}, {2, 3, 4}};
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const auto length = static_cast<int64_t>(chunks[i].size());
    const auto [y, next] = causal_conv1d_with_state(make(chunks[i], {1, 1, length}), w, {}, state);
    EXPECT_TRUE(holds(y, outputs[i])) << i;
    EXPECT_TRUE(holds(next, states[i])) << i;
    state = next;
  }
  const Tensor x = leaf(make({5}, {1, 1, 1})), h = leaf(make({1, 2, 3}, {1, 1, 3}));
  const auto result = causal_conv1d_with_state(x, w, {}, h);
  const auto grads = grad({result.final_state}, {x, h}, {make({10, 20, 30}, {1, 1, 3})});
  EXPECT_TRUE(holds(grads[0], {30}));
  EXPECT_TRUE(holds(grads[1], {0, 10, 20}));
  // A step in place is the same as a chunk of one.
  Tensor moving = zeros({1, 1, 3}, options());
  const NoGradGuard guard;
  std::vector<double> steps;
  for (float value : {1.0f, 2.0f, 3.0f, 4.0f}) {
    steps.push_back(causal_conv1d_update(make({value}, {1, 1}), moving, w).item());
  }
  EXPECT_EQ(steps, (std::vector<double>{1000, 2100, 3210, 4321}));
  EXPECT_TRUE(holds(moving, {2, 3, 4}));
}

}  // namespace
}  // namespace halo
