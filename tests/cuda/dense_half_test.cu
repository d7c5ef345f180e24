// The dense engine on half types, which become float32 on their way into shared memory. conv_kernels_test.cu has what
// float32 shares.
#include <halo/core/cuda_backend.h>
#include <halo/cuda/conv/dense/launch.h>
#include <halo/cuda/conv/dense_weight/plan.h>
#include <halo/cuda/runtime/traits.h>

#include <cstring>
#include <map>
#include <vector>

#include "conv_operands.cuh"
#include "narrow_problems.h"
#include <gtest/gtest.h>

namespace halo::cuda::conv {
namespace {

template <class T>
class DenseHalf : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << cuda::describe(0);
    if (!device_traits().is_hopper()) GTEST_SKIP() << "needs Hopper";
  }
};
using HalfTypes = testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(DenseHalf, HalfTypes);

constexpr ConvPass kPasses[] = {ConvPass::Forward, ConvPass::BackwardInput};

/// Rows of whole pieces of eight, of four, of two and of single elements, padded by more than a piece and not at all;
/// chunks of one to eight channels, the last in part; strides, dilations, groups; several items a block.
std::vector<ConvProblem> problems() {
  return {problem({2, 20, 37, 131}, 9, 1, {3, 3}, {.padding = {1, 1}}),
          problem({2, 17, 30, 130}, 24, 1, {3, 5}, {.padding = {2, 6}}),
          problem({2, 12, 30, 128}, 40, 1, {3, 3}, {.padding = {1, 3}}),
          problem({60, 8, 33, 66}, 8, 1, {3, 3}, {.padding = {1, 1}}),
          problem({2, 3, 61, 90}, 70, 1, {7, 7}, {.stride = {2, 2}, .padding = {3, 3}}),
          problem({1, 9, 7, 18, 43}, 33, 1, {3, 3, 3}, {.padding = {1, 1, 1}, .dilation = {1, 2, 1}}),
          problem({2, 24, 6, 20, 62}, 48, 2, {3, 3, 3}, {.stride = {2, 2, 2}, .padding = {1, 1, 1}}),
          problem({3, 130, 301}, 100, 1, {2}, {.padding = {8}, .padding_after = {0}, .dilation = {8}}),
          problem({2, 33, 50, 70}, 20, 1, {1, 1}, {.stride = {2, 2}})};
}

template <class T>
void run_plan(const DensePlan& plan, const ConvConfig& config, Tensors<T>& tensors, const T* bias = nullptr) {
  const DeviceArray<char> workspace(static_cast<int64_t>(plan.workspace_bytes));
  run_dense(plan, config, tensors.operands(workspace.get(), bias), nullptr);
  check(cudaDeviceSynchronize(), "dense");
}

template <class T>
void fill(Tensors<T>& tensors) {
  tensors.x.fill(1);
  tensors.w.fill(2);
  tensors.y.fill(3);
}

TYPED_TEST(DenseHalf, MatchesFloat64InEveryCompiledShape) {
  using T = TypeParam;
  std::map<std::size_t, int> runs;
  std::map<int, int> pieces;
  for (const ConvProblem& p : problems()) {
    for (const ConvPass pass : kPasses) {
      Tensors<double> exact(p, 0);
      run(find_algorithm("direct"), p, pass, exact);
      const auto expected = exact.result(pass).values();
      for (const int64_t offset : {0, 1, 2}) {
        const ConvConfig config = config_of<T>(pass, offset);
        for (std::size_t i = 0; i < std::size(kDenseVariants); ++i) {
          const auto plan = plan_dense(p, config, device_traits().multiprocessors, static_cast<int>(i));
          if (!plan.has_value()) continue;
          Tensors<T> got(p, offset);
          if (pass == ConvPass::Forward) got.x.fill(1);
          if (pass == ConvPass::BackwardInput) got.y.fill(3);
          got.w.fill(2);
          run_plan(*plan, config, got);
          EXPECT_LE(relative_error(got.result(pass).values(), expected), 2 * kBound<T>)
              << "variant " << i << ' ' << name(pass) << " offset " << offset << ' ' << p.str();
          EXPECT_TRUE(got.result(pass).margins_intact()) << "variant " << i << ' ' << p.str();
          ++runs[i];
          ++pieces[plan->params.fill_words];
        }
      }
    }
  }
  for (std::size_t i = 0; i < std::size(kDenseVariants); ++i) {
    const bool compiled = kDenseVariants[i].tflops_tf32 > 0 && !kDenseVariants[i].storers;
    if (compiled) EXPECT_GE(runs[i], 10) << "variant " << i;
    if (!compiled) EXPECT_EQ(runs[i], 0) << "variant " << i;
  }
  for (const int words : {1, 2, 4, 8}) EXPECT_GE(pieces[words], 10) << words;
}

/// The bits repeat, and what is not finite reaches the results that it reaches in plain sums.
TYPED_TEST(DenseHalf, SpreadsWhatIsNotFiniteAsPlainSumsDo) {
  using T = TypeParam;
  const Algorithm& dense = find_algorithm("dense");
  for (const ConvProblem& p : problems()) {
    for (const ConvPass pass : kPasses) {
      for (const bool in_weights : {false, true}) {
        const ConvConfig config = config_of<T>(pass, 1);
        ASSERT_TRUE(dense.supports(p, config)) << p.str();
        Tensors<T> got(p, 1), again(p, 1), expected(p, 1);
        for (Tensors<T>* t : {&got, &again, &expected}) {
          fill(*t);
          Operand<T>& source = in_weights ? t->w : pass == ConvPass::BackwardInput ? t->y : t->x;
          source.set(in_weights ? 0 : 4, INFINITY);
          // Of even columns, which every stride here reads.
          source.set(in_weights ? p.w_numel() - 1 : p.output[2] / 4 * 2, kGpuNan);
        }
        run_on(dense, p, config, got);
        run_on(dense, p, config, again);
        run_on(find_algorithm("direct"), p, config, expected);
        const auto a = got.result(pass).values(), b = expected.result(pass).values(), c = again.result(pass).values();
        EXPECT_EQ(std::memcmp(a.data(), c.data(), a.size() * sizeof(double)), 0) << name(pass) << ' ' << p.str();
        int special = 0, differing = 0;
        for (std::size_t i = 0; i < a.size(); ++i) {
          special += std::isfinite(b[i]) ? 0 : 1;
          differing += same_kind(a[i], b[i]) ? 0 : 1;
        }
        EXPECT_GT(special, 0) << name(pass) << ' ' << p.str();
        EXPECT_EQ(differing, 0) << name(pass) << (in_weights ? " weights " : " ") << p.str();
      }
    }
  }
}

TYPED_TEST(DenseHalf, AddsBiasAndActivates) {
  using T = TypeParam;
  for (const ConvProblem& p : problems()) {
    ConvConfig config = config_of<T>(ConvPass::Forward, 0);
    config.bias = true;
    config.activation = {ActivationKind::LeakyRelu, 0.5f};
    const auto plan = plan_dense(p, config, device_traits().multiprocessors);
    ASSERT_TRUE(plan.has_value()) << p.str();
    Tensors<T> got(p, 0);
    fill(got);
    Operand<T> bias(p.out_channels, 0);
    bias.fill(4);
    run_plan<T>(*plan, config, got, bias.get());
    Tensors<double> exact(p, 0);
    run(find_algorithm("direct"), p, ConvPass::Forward, exact);
    auto expected = exact.y.values();
    add_bias_and_bend(expected, bias.values(), p);
    EXPECT_LE(relative_error(got.y.values(), expected), 2 * kBound<T>) << p.str();
    config.activation = {ActivationKind::Gelu, 0};  // a second look would see rounded results
    EXPECT_FALSE(find_algorithm("dense").supports(p, config)) << p.str();
  }
}

/// Weight gradients: planes of which one to eight share a row of the copy engine, at any address; several stages,
/// blocks and tiles; and what is not finite, in what windows read beside a row as well.
TYPED_TEST(DenseHalf, WeightsMatchFloat64) {
  using T = TypeParam;
  const Algorithm& dense = find_algorithm("dense_weight");
  constexpr ConvPass kPass = ConvPass::BackwardWeight;
  std::vector<ConvProblem> all = problems();
  for (const ConvProblem& p :
       {problem({3, 63, 21, 122}, 127, 1, {1, 2}, {}), problem({2, 9, 50, 33}, 12, 1, {3, 3}, {}),
        problem({5, 70, 17, 36}, 17, 1, {3, 1}, {.padding = {1, 0}}),
        problem({2, 40, 700}, 24, 1, {5}, {.stride = {3}, .padding = {4}}),
        problem({2, 16, 9, 20, 24}, 16, 2, {3, 2, 3}, {.padding = {1, 1, 1}})})
    all.push_back(p);
  std::map<int, int> periods;
  for (const ConvProblem& p : all) {
    Tensors<double> exact(p, 0);
    run(find_algorithm("direct"), p, kPass, exact);
    const auto expected = exact.w.values();
    for (const int64_t offset : {0, 1, 2, 4, 7}) {
      const ConvConfig config = config_of<T>(kPass, offset);
      ASSERT_TRUE(dense.supports(p, config)) << p.str();
      Tensors<T> got(p, offset);
      run(dense, p, kPass, got);
      EXPECT_LE(relative_error(got.w.values(), expected), 2 * kBound<T>) << "offset " << offset << ' ' << p.str();
      EXPECT_TRUE(got.w.margins_intact()) << p.str();
    }
    ++periods[plan_dense_weight(p, false, true, 132, 2).geometry.gathered.period];
    Tensors<T> got(p, 1), again(p, 1), plain(p, 1);
    const int64_t plane = p.input[0] * p.input[1] * p.input[2];
    for (Tensors<T>* t : {&got, &again, &plain}) {
      fill(*t);
      for (const int64_t row : {plane, 2 * plane}) t->x.set(row - 1, INFINITY), t->x.set(row, INFINITY);
    }
    const ConvConfig config = config_of<T>(kPass, 1);
    run_on(dense, p, config, got);
    run_on(dense, p, config, again);
    run_on(find_algorithm("direct"), p, config, plain);
    const auto a = got.w.values(), b = plain.w.values(), c = again.w.values();
    EXPECT_EQ(std::memcmp(a.data(), c.data(), a.size() * sizeof(double)), 0) << p.str();
    int differing = 0;
    for (std::size_t i = 0; i < a.size(); ++i) differing += std::isfinite(a[i]) == std::isfinite(b[i]) ? 0 : 1;
    EXPECT_EQ(differing, 0) << p.str();
  }
  for (const int period : {1, 2, 4, 8}) EXPECT_GE(periods[period], 1) << period;
}

}  // namespace
}  // namespace halo::cuda::conv
