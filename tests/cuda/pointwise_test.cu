// Kernels of one tap on planes that begin anywhere, of any length.
#include <halo/core/cuda_backend.h>
#include <halo/cuda/runtime/traits.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "conv_operands.cuh"
#include "narrow_problems.h"
#include <gtest/gtest.h>

namespace halo::cuda::conv {
namespace {

/// Planes of one position, less than a granule, parts of a tile, and runs of many tiles; whole granules, even and odd;
/// channels that end inside a chunk or a column group, that are odd, and more than one block has.
std::vector<ConvProblem> one_tap_problems() {
  return {
      problem({9, 20, 1}, 3, 1, {1}, {}),           problem({3, 5, 7}, 66, 1, {1}, {}),
      problem({5, 3, 13, 13}, 7, 1, {1, 1}, {}),    problem({3, 37, 41, 23}, 101, 1, {1, 1}, {}),
      problem({2, 64, 40, 66}, 130, 1, {1, 1}, {}), problem({2, 48, 30, 31}, 66, 1, {1, 1}, {}),
      problem({2, 130, 601}, 71, 1, {1}, {}),       problem({4, 33, 128 * 5}, 64, 1, {1}, {}),
      problem({2, 8, 60001}, 5, 1, {1}, {}),        problem({2, 7, 60008}, 4, 1, {1}, {}),
      problem({3, 33, 20013}, 70, 1, {1}, {}),      problem({2, 16, 20014}, 66, 1, {1}, {}),
      problem({2, 16, 70014}, 5, 1, {1}, {}),       problem({3, 9, 20044}, 65, 1, {1}, {}),
  };
}

struct Offsets {
  int64_t x, y;
};

template <class T>
class OneTap : public testing::Test {
 protected:
  static constexpr bool kHalf = sizeof(T) == 2;
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << cuda::describe(0);
    if (!device_traits().is_hopper()) GTEST_SKIP() << "on Hopper alone";
  }

  /// Where operands begin, in elements behind a granule.
  static std::vector<Offsets> offsets() {
    std::vector<Offsets> all{{0, 0}, {1, 1}, {1, 0}, {0, 3}, {2, 1}};
    if (kHalf) all.insert(all.end(), {{5, 2}, {4, 7}, {6, 6}});
    return all;
  }

  /// Fresh results, by `name`, with a bias and an activation where there are such. `special`: with numbers that are not
  /// finite.
  template <class U>
  static std::vector<double> results(const char* name, const ConvProblem& p, ConvPass pass, Offsets at, bool special) {
    Tensors<U> tensors(p, at.x, at.y);
    const bool forward = pass == ConvPass::Forward;
    Operand<U>& source = forward ? tensors.x : tensors.y;
    source.fill(1);
    tensors.w.fill(2);
    const int64_t count = p.batch * (forward ? p.in_channels : p.out_channels) * p.input_positions();
    if (special) {
      source.set(count / 3, INFINITY);
      source.set(count - 1, kGpuNan);
    }
    Operand<U> bias(p.out_channels, 1);
    bias.fill(4);
    ConvConfig config = config_of<U>(pass, 1);
    if (at.x == 0 && at.y == 0) config.alignment = 16;
    if (forward) {
      config.bias = true;
      config.activation = {ActivationKind::LeakyRelu, 0.2f};
    }
    const Algorithm& algorithm = find_algorithm(name);
    EXPECT_TRUE(algorithm.supports(p, config)) << p.str();
    run_on(algorithm, p, config, tensors, forward ? bias.get() : nullptr);
    EXPECT_TRUE(tensors.result(pass).margins_intact()) << halo::name(pass) << ' ' << p.str();
    return tensors.result(pass).values();
  }
};
using StorageTypes = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(OneTap, StorageTypes);

TYPED_TEST(OneTap, MatchesFloat64WhereverPlanesBegin) {
  using T = TypeParam;
  const double bound = sizeof(T) == 4 ? 4e-7 : std::is_same_v<T, BFloat16> ? 5e-3 : 7e-4;
  for (const ConvProblem& p : one_tap_problems()) {
    for (const ConvPass pass : {ConvPass::Forward, ConvPass::BackwardInput}) {
      const auto exact = this->template results<double>("direct", p, pass, {0, 0}, false);
      std::vector<double> first;
      for (const Offsets at : this->offsets()) {
        const auto got = this->template results<T>("pointwise", p, pass, at, false);
        double error = 0, norm = 0;
        int64_t other = 0;
        if (first.empty()) first = got;
        for (std::size_t i = 0; i < got.size(); ++i) {
          error += (got[i] - exact[i]) * (got[i] - exact[i]);
          norm += exact[i] * exact[i];
          other += got[i] == first[i] ? 0 : 1;
        }
        EXPECT_LE(std::sqrt(error / norm), bound) << name(pass) << ' ' << at.x << ' ' << at.y << ' ' << p.str();
        EXPECT_EQ(other, 0) << "bits " << name(pass) << ' ' << at.x << ' ' << at.y << ' ' << p.str();
      }
    }
  }
}

/// Wherever planes begin, and the other results have the same bits.
TYPED_TEST(OneTap, SpreadsWhatIsNotFiniteAsPlainSumsDo) {
  using T = TypeParam;
  for (const ConvProblem& p : one_tap_problems()) {
    for (const ConvPass pass : {ConvPass::Forward, ConvPass::BackwardInput}) {
      const auto expected = this->template results<T>("direct", p, pass, {0, 0}, true);
      std::vector<double> first;
      for (const Offsets at : {Offsets{0, 0}, Offsets{1, 2}, Offsets{3, 3}}) {
        const auto got = this->template results<T>("pointwise", p, pass, at, true);
        if (first.empty()) first = got;
        int64_t special = 0, differing = 0, other = 0;
        for (std::size_t i = 0; i < got.size(); ++i) {
          special += std::isfinite(expected[i]) ? 0 : 1;
          differing += same_kind(got[i], expected[i]) ? 0 : 1;
          other += std::isfinite(got[i]) && got[i] != first[i] ? 1 : 0;
        }
        EXPECT_GT(special, 0);
        EXPECT_EQ(differing, 0) << name(pass) << ' ' << at.x << ' ' << p.str();
        EXPECT_EQ(other, 0) << "bits " << name(pass) << ' ' << at.x << ' ' << p.str();
      }
    }
  }
}

/// Sums within a rounding of where Float16 becomes infinite: what they come to depends on the order of adding, which
/// must not depend on whether another result near by, and which are near depends on the address, is NaN.
TEST(OneTapOfFloat16, OverflowsAtTheSamePlacesWhereverPlanesBegin) {
  if (cuda::device_count() == 0) GTEST_SKIP() << cuda::describe(0);
  if (!device_traits().is_hopper()) GTEST_SKIP() << "on Hopper alone";
  const ConvProblem p = problem({2, 33, 1200}, 64, 1, {1}, {});
  std::mt19937 generator(5);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> x(static_cast<std::size_t>(p.x_numel())), w(static_cast<std::size_t>(p.w_numel()));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = i / 1200 % 33 == 0 ? 1.0f : uniform(generator);
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = i % 33 == 0 ? 16.0f : uniform(generator) / 64;
  for (std::size_t i = 100; i < 1200; i += 200) x[i] = kGpuNan;
  std::vector<double> first;
  for (const int64_t at : {0, 1, 3, 6}) {
    Tensors<Float16> tensors(p, at);
    tensors.x.assign(x);
    tensors.w.assign(w);
    Operand<Float16> bias(p.out_channels, 1);
    bias.assign(std::vector<float>(static_cast<std::size_t>(p.out_channels), 65504.0f));
    ConvConfig config = config_of<Float16>(ConvPass::Forward, at);
    config.bias = true;
    const Algorithm& pointwise = find_algorithm("pointwise");
    ASSERT_TRUE(pointwise.supports(p, config));
    run_on(pointwise, p, config, tensors, bias.get());
    const auto got = tensors.y.values();
    if (first.empty()) first = got;
    int64_t nan = 0, infinite = 0, other = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      nan += std::isnan(got[i]) ? 1 : 0;
      infinite += std::isinf(got[i]) ? 1 : 0;
      other += got[i] == first[i] || (std::isnan(got[i]) && std::isnan(first[i])) ? 0 : 1;
    }
    EXPECT_EQ(nan, int64_t{6} * p.out_channels) << at;
    EXPECT_GT(infinite, static_cast<int64_t>(got.size()) / 10) << at;
    EXPECT_LT(infinite, static_cast<int64_t>(got.size()) / 10 * 9) << at;
    EXPECT_EQ(other, 0) << at;
  }
}

}  // namespace
}  // namespace halo::cuda::conv
