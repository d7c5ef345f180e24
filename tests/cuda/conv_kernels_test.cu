// Every convolution kernel that dispatch may choose, against plain loops in float64 on the same GPU.
#include <halo/cuda/conv/dense/launch.h>
#include <halo/cuda/conv/dense_weight/plan.h>
#include <halo/cuda/conv/dispatch.h>
#include <halo/cuda/launch.h>
#include <halo/cuda/runtime/traits.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "kernel_case.h"
#include "random_problems.h"
#include "special_numbers.h"
#include <gtest/gtest.h>

namespace halo::cuda::conv {
namespace {

template <class F>
void for_each_supported(const ConvProblem& problem, const F& f) {
  for (const ConvPass pass : kPasses) {
    for (const Precision precision : {Precision::Float32, Precision::TF32}) {
      for (const Algorithm* algorithm : algorithms()) {
        ConvConfig config;
        config.pass = pass;
        config.precision = precision;
        config.alignment = 16;
        if (algorithm->supports(problem, config)) f(*algorithm, pass, precision);
      }
    }
  }
}

class ConvKernels : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU";
  }
};

TEST_F(ConvKernels, MatchFloat64OnRandomProblems) {
  std::map<std::tuple<std::string, ConvPass, Precision>, int> runs;
  unsigned seed = 1;
  for (const ConvProblem& problem : problems(150, 7)) {
    ++seed;
    for_each_supported(problem, [&](const Algorithm& algorithm, ConvPass pass, Precision precision) {
      Case c = make_case(problem, pass, precision, seed);
      c.config.alignment = 4 << seed % 3;
      if (!algorithm.supports(problem, c.config)) return;
      const auto expected = run<double>(find_algorithm("direct"), c);
      EXPECT_LE(relative_error(run<float>(algorithm, c), expected), bound_of(c, expected))
          << algorithm.name << ' ' << name(pass) << ' ' << name(precision) << ' ' << problem.str();
      ++runs[{algorithm.name, pass, precision}];
    });
  }
  for (const Algorithm* algorithm : algorithms()) {  // one that no problem reaches must not pass for right
    const std::string kernel = algorithm->name;
    if (!device_traits().is_hopper() && kernel.starts_with("dense")) continue;
    const bool narrow = kernel == "depthwise half" || kernel == "depthwise rows" || kernel == "widened" ||
                        kernel == "pointwise" || kernel == "one phase" || kernel == "phase rows" ||
                        kernel == "small groups march" || kernel.starts_with("few");
    if (narrow) continue;  // narrow_conv_test.cu
    for (const ConvPass pass : kPasses) {
      const bool of_weights = pass == ConvPass::BackwardWeight;
      if (kernel == "dense_weight" ? !of_weights : kernel.starts_with("dense") && of_weights) continue;
      if (kernel == "phases" && pass != ConvPass::BackwardInput) continue;
      if (kernel == "streams" && (pass != ConvPass::Forward || !device_traits().is_hopper())) continue;
      if (kernel == "streams weight" && (!of_weights || !device_traits().is_hopper())) continue;
      if (kernel == "straight" && of_weights) continue;  // of half types alone
      for (const Precision precision : {Precision::Float32, Precision::TF32}) {
        EXPECT_GE((runs[{kernel, pass, precision}]), 1) << kernel << ' ' << name(pass) << ' ' << name(precision);
      }
    }
  }
}

TEST_F(ConvKernels, GiveTheSameBitsWithPreparedWeights) {
  std::map<std::pair<std::string, ConvPass>, int> runs;
  for (const ConvProblem& problem : problems(40, 15)) {
    for_each_supported(problem, [&](const Algorithm& algorithm, ConvPass pass, Precision precision) {
      if (algorithm.prepare == nullptr) return;
      const Case c = make_case(problem, pass, precision, 7);
      const Values now = run<float>(algorithm, c), before = run_prepared(algorithm, c);
      EXPECT_EQ(std::memcmp(now.data(), before.data(), now.size() * sizeof(float)), 0)
          << algorithm.name << ' ' << name(pass) << ' ' << problem.str();
      ++runs[{algorithm.name, pass}];
    });
  }
  for (const auto& [what, count] : runs) EXPECT_GE(count, 5) << what.first << ' ' << name(what.second);
}

TEST_F(ConvKernels, MatchFloat64InEveryCompiledShapeOfTheDenseEngine) {
  if (!device_traits().is_hopper()) GTEST_SKIP() << "needs Hopper";
  std::map<std::pair<std::size_t, Precision>, int> runs;
  unsigned seed = 60;
  for (const ConvProblem& problem : problems(40, 16)) {
    for (const ConvPass pass : {ConvPass::Forward, ConvPass::BackwardInput}) {
      for (const Precision precision : {Precision::Float32, Precision::TF32}) {
        const Case c = make_case(problem, pass, precision, ++seed);
        const auto expected = run<double>(find_algorithm("direct"), c);
        for (std::size_t i = 0; i < std::size(kDenseVariants); ++i) {
          const auto plan = plan_dense(problem, c.config, device_traits().multiprocessors, static_cast<int>(i));
          if (!plan.has_value()) continue;
          const Values got = run_with<float>(c, plan->workspace_bytes, [&](const Operands& operands) {
            run_dense(*plan, c.config, operands, nullptr);
          });
          EXPECT_LE(relative_error(got, expected), bound_of(c, expected))
              << "variant " << i << ' ' << name(pass) << ' ' << name(precision) << ' ' << problem.str();
          ++runs[{i, precision}];
        }
      }
    }
  }
  for (std::size_t i = 0; i < std::size(kDenseVariants); ++i) {
    if (kDenseVariants[i].tflops_fp32 > 0) EXPECT_GE((runs[{i, Precision::Float32}]), 5) << "variant " << i;
    if (kDenseVariants[i].tflops_tf32 > 0) EXPECT_GE((runs[{i, Precision::TF32}]), 5) << "variant " << i;
  }
}

TEST_F(ConvKernels, SlideAlongTheTapsOfARow) {
  if (!device_traits().is_hopper()) GTEST_SKIP() << "needs Hopper";
  std::set<int> places;  // in a piece
  unsigned seed = 0;
  for (const ConvProblem& problem : window_problems()) {
    for (const ConvPass pass : {ConvPass::Forward, ConvPass::BackwardInput}) {
      const Case c = make_case(problem, pass, Precision::TF32, ++seed);
      const auto expected = run<double>(find_algorithm("direct"), c);
      for (std::size_t i = 0; i < std::size(kDenseVariants); ++i) {
        if (!kDenseVariants[i].storers) continue;
        const auto plan = plan_dense(problem, c.config, device_traits().multiprocessors, static_cast<int>(i));
        if (!plan.has_value() || !plan->windows) continue;
        const Values got = run_with<float>(
            c, plan->workspace_bytes, [&](const Operands& operands) { run_dense(*plan, c.config, operands, nullptr); });
        EXPECT_LE(relative_error(got, expected), bound_of(c, expected)) << "variant " << i << ' ' << problem.str();
        places.insert(-plan->params.phase[0].j0[2]);
      }
    }
  }
  EXPECT_EQ(places.size(), 4u);
}

TEST_F(ConvKernels, SpreadFewChannelsOutOfMany) {
  if (!device_traits().is_hopper()) GTEST_SKIP() << "needs Hopper";
  const Algorithm& spread = find_algorithm("dense spread");
  std::map<std::pair<ConvPass, Precision>, int> runs;
  unsigned seed = 0;
  for (const ConvProblem& problem : spread_problems()) {
    for (const ConvPass pass : {ConvPass::Forward, ConvPass::BackwardInput}) {
      for (const Precision precision : {Precision::Float32, Precision::TF32}) {
        Case c = make_case(problem, pass, precision, ++seed);
        c.config.alignment = 4;
        if (!spread.supports(problem, c.config) || c.result_count() < 100) continue;
        const auto expected = run<double>(find_algorithm("direct"), c);
        const Values got = run<float>(spread, c);
        EXPECT_LE(relative_error(got, expected), bound_of(c, expected))
            << name(pass) << ' ' << name(precision) << ' ' << problem.str();
        const Values again = run<float>(spread, c);
        EXPECT_EQ(std::memcmp(got.data(), again.data(), got.size() * sizeof(float)), 0) << problem.str();
        ++runs[{pass, precision}];
      }
    }
  }
  for (const auto& [what, count] : runs) EXPECT_GE(count, 20) << name(what.first) << ' ' << name(what.second);
}

TEST_F(ConvKernels, AreExactOnSmallIntegers) {
  unsigned seed = 1;
  for (const ConvProblem& problem : problems(60, 8)) {
    ++seed;
    for_each_supported(problem, [&](const Algorithm& algorithm, ConvPass pass, Precision precision) {
      const Case c = make_case(problem, pass, precision, seed, Fill::Integers);
      EXPECT_EQ(relative_error(run<float>(algorithm, c), run<double>(find_algorithm("direct"), c)), 0)
          << algorithm.name << ' ' << name(pass) << ' ' << name(precision) << ' ' << problem.str();
    });
  }
}

TEST_F(ConvKernels, BoundsCatchOneWrongWeight) {  // the negative control of the two tests above
  for (const ConvProblem& problem : problems(20, 9)) {
    const Case c = make_case(problem, ConvPass::Forward, Precision::TF32, 3);
    if (problem.y_numel() < 1000 || problem.padding_before[1] > 1 ||
        problem.in_channels_per_group() * problem.taps() > 200)
      continue;
    Case wrong = c;
    for (std::size_t i = 0; i < wrong.w.size(); i += static_cast<std::size_t>(problem.taps())) wrong.w[i] = 0;
    const auto good = run<double>(find_algorithm("direct"), c), bad = run<double>(find_algorithm("direct"), wrong);
    EXPECT_GT(relative_error(Values(bad.begin(), bad.end()), good), kTf32Bound) << problem.str();
  }
}

TEST_F(ConvKernels, RepeatTheirBits) {
  for (const ConvProblem& problem : problems(40, 10)) {
    for_each_supported(problem, [&](const Algorithm& algorithm, ConvPass pass, Precision precision) {
      const Case c = make_case(problem, pass, precision, 5);
      const Values first = run<float>(algorithm, c), second = run<float>(algorithm, c);
      EXPECT_EQ(std::memcmp(first.data(), second.data(), first.size() * sizeof(float)), 0)
          << algorithm.name << ' ' << name(pass) << ' ' << problem.str();
    });
  }
}

TEST_F(ConvKernels, ApplyBiasAndActivation) {
  for (const ConvProblem& problem : problems(25, 11)) {
    for (const ActivationKind kind : {ActivationKind::None, ActivationKind::Relu, ActivationKind::LeakyRelu,
                                      ActivationKind::Gelu, ActivationKind::GeluTanh, ActivationKind::Silu}) {
      for_each_supported(problem, [&](const Algorithm& algorithm, ConvPass pass, Precision precision) {
        if (pass != ConvPass::Forward || precision != Precision::Float32) return;
        Case c = make_case(problem, pass, precision, 6);
        c.config.bias = true;
        c.config.activation = {kind, 0.2f};
        if (!algorithm.supports(problem, c.config)) return;
        const Values got = run<float>(algorithm, c);
        EXPECT_LE(relative_error(got, run<double>(find_algorithm("direct"), c)), 2e-6)
            << algorithm.name << ' ' << static_cast<int>(kind) << ' ' << problem.str();
        if (kind != ActivationKind::Relu) return;
        const auto is_negative = [](double value) { return std::signbit(value); };  // also -0
        EXPECT_EQ(std::ranges::count_if(got, is_negative), 0) << algorithm.name << ' ' << problem.str();
      });
    }
  }
}

TEST_F(ConvKernels, GiveInfinityAndNanWherePlainFloat32Does) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float specials[] = {infinity, -infinity, kGpuNan, std::numeric_limits<float>::max(), 3.4020e38f};
  unsigned seed = 20;
  for (const ConvProblem& problem : problems(60, 12)) {
    const float special = specials[++seed % 5];
    for_each_supported(problem, [&](const Algorithm& algorithm, ConvPass pass, Precision precision) {
      if (pass == ConvPass::BackwardWeight) return;  // sums float64 in the fallback, so it overflows later
      Case c = make_case(problem, pass, precision, seed);
      Values& source = seed % 3 == 0 ? c.w : pass == ConvPass::Forward ? c.x : c.y;
      if (source.empty()) return;
      source[source.size() / 2] = special;
      const Values got = run<float>(algorithm, c), plain = run<float>(find_algorithm("direct"), c);
      std::size_t different = 0;
      for (std::size_t i = 0; i < got.size(); ++i) different += same_kind(got[i], plain[i]) ? 0 : 1;
      EXPECT_EQ(different, 0u) << algorithm.name << ' ' << name(pass) << ' ' << name(precision) << ' ' << special << ' '
                               << problem.str();
    });
  }
}

TEST_F(ConvKernels, WeightGradientsMeetNoPadding) {
  const float specials[] = {std::numeric_limits<float>::infinity(), kGpuNan};
  unsigned seed = 40;
  for (const ConvProblem& problem : problems(60, 13)) {
    for_each_supported(problem, [&](const Algorithm& algorithm, ConvPass pass, Precision precision) {
      if (pass != ConvPass::BackwardWeight) return;
      Case c = make_case(problem, pass, precision, ++seed);
      if (c.x.empty() || c.y.empty()) return;
      (seed % 3 == 0 ? c.x : c.y)[0] = specials[seed % 2];  // a corner, whose window reaches into the padding
      const Values got = run<float>(algorithm, c), plain = run<float>(find_algorithm("direct"), c);
      std::size_t different = 0;
      for (std::size_t i = 0; i < got.size(); ++i) different += same_kind(got[i], plain[i]) ? 0 : 1;
      EXPECT_EQ(different, 0u) << algorithm.name << ' ' << name(precision) << ' ' << problem.str();
    });
  }
}

/// Rows that the copy engine cannot fetch, in problems large enough for copies to pay.
TEST_F(ConvKernels, SumWeightGradientsOverCopiesOfUnevenRows) {
  if (!device_traits().is_hopper()) GTEST_SKIP() << "needs Hopper";
  const Algorithm& algorithm = find_algorithm("dense_weight");
  const ConvProblem cases[] = {
      ConvProblem::conv("test", {256, 128, 7, 7}, {128, 128, 3, 3}, {.padding = {1}}),
      ConvProblem::conv("test", {128, 96, 13, 13}, {160, 96, 5, 5}, {.padding = {2}}),
      ConvProblem::conv("test", {256, 64, 9, 9}, {160, 64, 3, 3}, {.padding = {2}, .dilation = {2}}),
      ConvProblem::conv("test", {131, 256, 14, 14}, {256, 256, 3, 3}, {.padding = {0}, .padding_after = {2}}),
      ConvProblem::conv("test", {67, 64, 3, 5, 6}, {96, 64, 3, 3, 3}, {.padding = {1, 2, 1}}),
      ConvProblem::transposed("test", {261, 128, 7, 7}, {128, 72, 2, 4}, {.padding = {0}})};
  unsigned seed = 70;
  for (const ConvProblem& problem : cases) {
    Case c = make_case(problem, ConvPass::BackwardWeight, Precision::Float32, ++seed);
    c.config.alignment = seed % 2 == 0 ? 16 : 4;
    const double as_it_is = plan_dense_weight(problem, true, c.config.alignment == 16, 132).milliseconds;
    EXPECT_LT(algorithm.predict_ms(problem, c.config), as_it_is) << problem.str();  // so copies are made
    const auto expected = run<double>(find_algorithm("direct"), c);
    const Values got = run<float>(algorithm, c), again = run<float>(algorithm, c);
    EXPECT_LE(relative_error(got, expected), bound_of(c, expected)) << problem.str();
    EXPECT_EQ(std::memcmp(got.data(), again.data(), got.size() * sizeof(float)), 0) << problem.str();
    c.x[c.x.size() / 2] = kGpuNan;
    const Values special = run<float>(algorithm, c), plain = run<float>(find_algorithm("direct"), c);
    std::size_t different = 0;
    for (std::size_t i = 0; i < plain.size(); ++i) different += same_kind(special[i], plain[i]) ? 0 : 1;
    EXPECT_EQ(different, 0u) << problem.str();
  }
}

}  // namespace
}  // namespace halo::cuda::conv
