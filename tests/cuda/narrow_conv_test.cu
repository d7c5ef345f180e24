// The kernels for depthwise convolution and few channels a group: storage types, rows at every alignment, and operands
// that end where their allocation's poison begins. conv_kernels_test.cu has the tests every kernel shares,
// few_channels_test.cu more of few sources and few results.
#include <halo/core/cuda_backend.h>
#include <halo/cuda/runtime/traits.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "expect_right.cuh"
#include "narrow_problems.h"
#include <gtest/gtest.h>

namespace halo::cuda::conv {
namespace {

constexpr const char* kKernels[] = {"depthwise",
                                    "depthwise half",
                                    "depthwise rows",
                                    "depthwise columns",
                                    "depthwise polyphase",
                                    "small groups",
                                    "small groups march",
                                    "phases",
                                    "streams",
                                    "streams weight",
                                    "straight",
                                    "pointwise",
                                    "few results",
                                    "few sources",
                                    "few taps",
                                    "few taps rows",
                                    "one phase",
                                    "phase rows",
                                    "widened"};

template <class T, class F>
void for_each_supported(int64_t offset, const F& f) {
  for (const char* name : kKernels) {
    const Algorithm& algorithm = find_algorithm(name);
    for (const ConvProblem& problem : narrow_problems()) {
      for (const ConvPass pass : {ConvPass::Forward, ConvPass::BackwardInput, ConvPass::BackwardWeight}) {
        if (algorithm.supports(problem, config_of<T>(pass, offset))) f(algorithm, problem, pass);
      }
    }
  }
}

template <class T>
class NarrowConv : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << cuda::describe(0);
  }
};
using StorageTypes = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(NarrowConv, StorageTypes);

/// Neighbouring taps 2160 x 4096 positions apart, in rows whose bytes leave an int: shared memory of a wrapped size.
TEST(StraightWeights, RefuseTapsTooFarApart) {
  for (const ConvProblem& p : {problem({1, 16, 8, 2160, 4096}, 16, 1, {3, 1, 1}, {.padding = {1, 0, 0}}),
                               problem({1, 32, 4, 4096, 4096}, 32, 1, {3, 1, 1}, {.padding = {1, 0, 0}})}) {
    EXPECT_FALSE(find_algorithm("straight").supports(p, config_of<BFloat16>(ConvPass::BackwardWeight, 0))) << p.str();
  }
}

TYPED_TEST(NarrowConv, MatchesFloat64AtEveryOffset) {
  using T = TypeParam;
  for (const int64_t offset : {0, 1, 2, 3}) {
    for_each_supported<T>(offset, [&](const Algorithm& algorithm, const ConvProblem& problem, ConvPass pass) {
      expect_right<T>(algorithm, problem, pass, offset);
    });
  }
}

/// Results of all phases as runs that items pass on: several marches and pieces of a slice a block; no, one and two
/// channel blocks, phases of the depth and neighbours; positions before, beside and behind the source.
TYPED_TEST(NarrowConv, PhaseRowsInSeveralMarches) {
  using T = TypeParam;
  if (!device_traits().is_hopper()) GTEST_SKIP() << "on Hopper";
  const Algorithm& rows = find_algorithm("phase rows");
  expect_all_right<T>(rows, ConvPass::BackwardInput, {0, 1, 2, 3, 5},
                      {problem({2, 32, 15, 17, 33}, 32, 4, {3, 3, 3}, {.stride = {2, 2, 2}, .padding = {1, 1, 1}}),
                       problem({9, 24, 9, 41, 37}, 28, 4, {3, 3, 3}, {.stride = {2, 2, 2}, .padding = {1, 1, 1}}),
                       problem({1, 8, 5, 83, 255}, 8, 1, {3, 3, 3}, {.stride = {2, 2, 2}, .padding = {1, 1, 1}}),
                       problem({2, 14, 6, 12, 254}, 6, 2, {2, 3, 3}, {.stride = {2, 2, 2}, .padding = {0, 2, 2}}),
                       problem({7, 26, 30, 131}, 16, 2, {3, 3}, {.stride = {2, 2}, .padding = {0, 0}}),
                       problem({3, 16, 7, 19, 55}, 10, 2, {2, 3, 2}, {.stride = {1, 2, 2}, .padding = {0, 1, 0}}),
                       problem({40, 64, 123}, 16, 2, {3}, {.stride = {2}, .padding = {0}}),
                       problem({150, 20, 13, 20}, 12, 2, {2, 3}, {.stride = {1, 2}, .padding = {1, 4}}),
                       problem({2, 6, 45, 51}, 12, 6, {3, 3}, {.stride = {2, 2}, .padding = {1, 1}})});
}

/// Weight gradients without packs: neighbouring taps that share what they read and such that do not, more taps and
/// channels than a block has, rows at any address, of several steps and a part, blocks with more steps than stages.
TYPED_TEST(NarrowConv, StraightWeightsOfSeveralTaps) {
  using T = TypeParam;
  if (sizeof(T) != 2) GTEST_SKIP() << "half types alone";
  const Algorithm& straight = find_algorithm("straight");
  for (const ConvProblem& p :
       {problem({3, 70, 1441}, 40, 1, {3}, {.stride = {2}, .padding = {1}, .dilation = {2}}),
        problem({2, 20, 1297}, 24, 1, {5}, {.stride = {2}, .padding = {3}, .dilation = {2}}),
        problem({110, 34, 1441}, 33, 1, {3}, {.stride = {2}, .padding = {1}, .dilation = {2}}),
        problem({70, 9, 11, 399}, 18, 1, {3, 3}, {.stride = {1, 2}, .padding = {2, 2}}),
        problem({2, 33, 9, 336}, 17, 1, {2, 4}, {.stride = {2, 3}, .padding = {1, 2}, .dilation = {1, 2}}),
        problem({2, 18, 704}, 20, 1, {3}, {.padding = {1}}), problem({3, 66, 517}, 35, 1, {3}, {}),
        problem({2, 17, 683}, 40, 1, {2}, {.stride = {2}, .padding = {1}, .dilation = {2}}),
        problem({2, 19, 6, 638}, 32, 1, {3, 3}, {.stride = {5, 5}, .padding = {1, 1}, .dilation = {2, 2}}),
        problem({5, 65, 78}, 33, 1, {2}, {.stride = {6}, .padding = {3}, .padding_after = {12}})}) {
    for (const int64_t offset : {0, 3}) {
      const bool supported = straight.supports(p, config_of<T>(ConvPass::BackwardWeight, offset));
      if (!supported && !device_traits().is_hopper()) continue;  // less shared memory
      ASSERT_TRUE(supported) << p.str();
      expect_right<T>(straight, p, ConvPass::BackwardWeight, offset);
    }
  }
}

/// Few channels a group by threads that march over rows: channels and taps that are no whole tiles, parts of strips,
/// rows that are padding, more results than strips; of weights several tiles of taps, strides and depths.
TYPED_TEST(NarrowConv, SmallGroupsMarch) {
  using T = TypeParam;
  const Algorithm& march = find_algorithm("small groups march");
  for (const ConvPass pass : {ConvPass::Forward, ConvPass::BackwardInput, ConvPass::BackwardWeight}) {
    expect_all_right<T>(march, pass, {0, 1, 3},
                        {problem({3, 6, 131, 37}, 6, 3, {3, 3}, {.padding = {1, 1}}),
                         problem({2, 8, 70, 45}, 8, 2, {3, 1}, {.padding = {1, 0}}),
                         problem({2, 9, 67, 33}, 6, 3, {3, 3}, {.padding = {2, 0}, .padding_after = {0, 3}}),
                         problem({2, 6, 5, 19, 21}, 8, 2, {1, 2, 3}, {.padding = {1, 1, 2}}),
                         problem({2, 8, 1, 1301}, 6, 2, {1, 3}, {.padding = {0, 4}}),
                         problem({2, 4, 40, 17}, 2, 2, {2, 2}, {.padding = {9, 20}}),
                         problem({300, 4, 3, 2}, 4, 2, {3, 3}, {.padding = {1, 1}})});
  }
  expect_all_right<T>(march, ConvPass::BackwardWeight, {0, 1, 3},
                      {problem({1, 4, 29, 31}, 8, 2, {5, 4}, {.padding = {4, 5}}),
                       problem({8, 4, 260, 701}, 4, 2, {3, 3}, {.padding = {1, 1}}),  // several strips a thread
                       problem({5, 8, 1, 1301}, 8, 2, {1, 7}, {.padding = {0, 4}}),
                       problem({2, 3, 23, 50}, 4, 1, {1, 2}, {.stride = {3, 1}, .padding = {2, 1}}),
                       problem({2, 4, 9, 13, 22}, 4, 2, {3, 3, 3},
                               {.stride = {2, 1, 1}, .padding = {3, 1, 1}, .dilation = {2, 1, 1}})});
}

/// The bias reaches plain results, and those of strips that an infinite weight beside the image makes anew.
TYPED_TEST(NarrowConv, SmallGroupsMarchAddsTheBias) {
  using T = TypeParam;
  for (const ConvProblem& p : {problem({2, 9, 67, 33}, 6, 3, {3, 3}, {.padding = {2, 0}, .padding_after = {0, 3}}),
                               problem({3, 8, 70, 46}, 8, 2, {3, 1}, {.padding = {1, 0}})}) {
    for (const bool infinite : {false, true}) {
      Tensors<T> got(p, 1);
      Tensors<double> exact(p, 0);
      got.x.fill(1);
      exact.x.fill(1);
      got.w.fill(2);
      exact.w.fill(2);
      if (infinite) got.w.set(0, INFINITY), exact.w.set(0, INFINITY);
      Operand<T> bias(p.out_channels, 0);
      bias.fill(4);
      ConvConfig config = config_of<T>(ConvPass::Forward, 1);
      config.bias = true;
      run_on(find_algorithm("small groups march"), p, config, got, bias.get());
      run_on(find_algorithm("direct"), p, config_of<double>(ConvPass::Forward, 0), exact);
      auto results = got.y.values(), expected = exact.y.values();
      const auto biases = bias.values();
      const auto plane = static_cast<std::size_t>(p.output_positions());
      int special = 0;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        expected[i] += biases[i / plane % biases.size()];
        if (std::isfinite(expected[i]) || !same_kind(results[i], expected[i])) continue;
        results[i] = expected[i] = 0;
        ++special;
      }
      EXPECT_EQ(special > 0, infinite);
      EXPECT_LE(relative_error(results, expected), sizeof(T) == 4 ? kBound<T> : 2 * kBound<T>) << p.str();
    }
  }
}

/// The same of one tap: rows of odd planes, of even ones and of whole 16 bytes, at any address, of several steps and a
/// part; rows of taps that do not exist; more channels than a block has.
TYPED_TEST(NarrowConv, StraightWeightsOfOneTap) {
  using T = TypeParam;
  if (sizeof(T) != 2) GTEST_SKIP() << "half types alone";
  const Algorithm& straight = find_algorithm("straight");
  for (const ConvProblem& p :
       {problem({2, 40, 1043}, 72, 1, {1}, {}), problem({3, 67, 13, 45}, 130, 1, {1, 1}, {}),
        problem({2, 33, 17, 150}, 70, 1, {1, 1}, {}), problem({2, 65, 36, 60}, 33, 1, {1, 1}, {}),
        problem({2, 20, 7, 9, 131}, 40, 1, {2, 3, 1}, {.padding = {1, 1, 0}}),
        problem({1, 18, 7, 9, 131}, 24, 1, {3, 3, 1}, {.padding = {1, 1, 0}}),
        problem({2, 17, 9, 11, 400}, 20, 1, {1, 2, 1}, {.stride = {2, 2, 1}}),
        problem({300, 17, 5, 7}, 18, 1, {1, 1}, {})}) {
    for (const int64_t offset : {0, 1, 2, 4, 7}) {
      ASSERT_TRUE(straight.supports(p, config_of<T>(ConvPass::BackwardWeight, offset))) << p.str();
      expect_right<T>(straight, p, ConvPass::BackwardWeight, offset);
      expect_infinities_of_plain_sums<T>(straight, p, offset);
    }
  }
}

/// Blocks that have several items, so that all rings come round: few and many taps, several sets of results, rows whose
/// results are no whole vectors.
TYPED_TEST(NarrowConv, StreamsWeightsOfManyItems) {
  using T = TypeParam;
  if (!device_traits().is_hopper()) GTEST_SKIP() << "needs Hopper";
  const Algorithm& streams = find_algorithm("streams weight");
  expect_all_right<T>(
      streams, ConvPass::BackwardWeight, {0, 1},
      {problem({150, 8, 6, 13, 46}, 8, 1, {3, 5, 7}, {.stride = {2, 2, 2}, .padding = {1, 2, 3}}),
       problem({70, 12, 7, 15, 104}, 15, 1, {3, 5, 7}, {.stride = {2, 2, 2}, .padding = {1, 2, 2}}),
       problem({150, 8, 4, 9, 48}, 7, 1, {1, 5, 7}, {.stride = {1, 2, 2}, .padding = {0, 2, 3}}),
       problem({150, 16, 31, 191}, 9, 1, {3, 5}, {.stride = {2, 3}, .padding = {1, 2}, .dilation = {2, 1}}),
       problem({150, 9, 7, 9, 51}, 8, 1, {3, 3, 3}, {.stride = {2, 2, 2}, .padding = {1, 1, 1}})});
}

TYPED_TEST(NarrowConv, OneTf32ProductKeepsItsBound) {
  using T = TypeParam;
  if (sizeof(T) != sizeof(float)) GTEST_SKIP() << "float32 alone";
  std::map<std::string, int> runs;
  for_each_supported<T>(0, [&](const Algorithm& algorithm, const ConvProblem& problem, ConvPass pass) {
    ConvConfig config = config_of<T>(pass, 0);
    config.precision = Precision::TF32;
    if (!algorithm.supports(problem, config)) return;
    Tensors<T> tensors(problem, 0);
    run(algorithm, problem, pass, tensors);  // fills the operands
    run_on(algorithm, problem, config, tensors);
    Tensors<double> exact(problem, 0);
    run(find_algorithm("direct"), problem, pass, exact);
    EXPECT_LE(relative_error(tensors.result(pass).values(), exact.result(pass).values()), 1.2e-3)
        << algorithm.name << ' ' << name(pass) << ' ' << problem.str();
    ++runs[algorithm.name];
  });
  for (const char* kernel :
       {"straight", "pointwise", "few results", "few sources", "few taps", "one phase", "phase rows"})
    EXPECT_GT(runs[kernel], 0) << kernel;
}

/// Infinities and NaN reach the results that they reach in plain sums, and no others.
TYPED_TEST(NarrowConv, SpreadsWhatIsNotFiniteAsPlainSumsDo) {
  using T = TypeParam;
  int reached = 0;
  for_each_supported<T>(0, [&](const Algorithm& algorithm, const ConvProblem& problem, ConvPass pass) {
    const std::string kernel = algorithm.name;
    for (const bool in_weights : {false, true}) {
      if (in_weights && pass == ConvPass::BackwardWeight) continue;
      Tensors<T> got(problem, 0), expected(problem, 0);
      for (Tensors<T>* t : {&got, &expected}) {
        t->x.fill(1);
        t->w.fill(2);
        t->y.fill(3);
        Operand<T>& source = in_weights ? t->w : pass == ConvPass::BackwardInput ? t->y : t->x;
        source.set(in_weights ? 0 : 5, INFINITY);
        source.set(in_weights ? problem.w_numel() - 1 : problem.output[2] / 2, kGpuNan);
      }
      const ConvConfig config = config_of<T>(pass, 0);
      run_on(algorithm, problem, config, got);
      run_on(find_algorithm("direct"), problem, config, expected);
      const auto a = got.result(pass).values(), b = expected.result(pass).values();
      // Depthwise kernels multiply padding, as zeros: of such a weight that makes more NaN, which one of them repairs.
      const bool depthwise = kernel.starts_with("depthwise") && kernel != "depthwise polyphase";
      const bool pads = in_weights && (depthwise || kernel == "widened");
      int special = 0, differing = 0;
      for (std::size_t i = 0; i < a.size(); ++i) {
        special += std::isfinite(b[i]) ? 0 : 1;
        differing += same_kind(a[i], b[i]) || (pads && std::isnan(a[i])) ? 0 : 1;
      }
      reached += special;
      EXPECT_EQ(differing, 0) << algorithm.name << ' ' << name(pass) << (in_weights ? " weights " : " ")
                              << problem.str();
    }
  });
  EXPECT_GT(reached, 0);
}

TYPED_TEST(NarrowConv, BoundCatchesOneWrongColumn) {  // the negative control
  using T = TypeParam;
  const ConvProblem p = narrow_problems()[3];
  Tensors<double> exact(p, 0);
  run(find_algorithm("direct"), p, ConvPass::Forward, exact);
  auto wrong = exact.y.values();
  for (std::size_t i = 0; i < wrong.size(); i += static_cast<std::size_t>(p.output[2])) wrong[i] = 0;
  EXPECT_GT(relative_error(wrong, exact.y.values()), 2 * kBound<T>);
}

TYPED_TEST(NarrowConv, RepeatsItsBits) {
  using T = TypeParam;
  for_each_supported<T>(1, [](const Algorithm& algorithm, const ConvProblem& problem, ConvPass pass) {
    Tensors<T> first(problem, 1), second(problem, 1);
    run(algorithm, problem, pass, first);
    run(algorithm, problem, pass, second);
    const auto a = first.result(pass).values(), b = second.result(pass).values();
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(double)), 0)
        << algorithm.name << ' ' << name(pass) << ' ' << problem.str();
  });
}

/// Nothing but what a tool such as compute-sanitizer sees: the operands end where their allocations do.
TYPED_TEST(NarrowConv, TouchesNothingBehindItsOperands) {
  using T = TypeParam;
  for_each_supported<T>(0, [](const Algorithm& algorithm, const ConvProblem& problem, ConvPass pass) {
    const ConvConfig config = config_of<T>(pass, 0);
    const DeviceArray<char> workspace(static_cast<int64_t>(algorithm.workspace_bytes(problem, config)));
    Operands operands{.workspace = workspace.get()};
    void** const pointers[] = {&operands.x, &operands.w, &operands.y};
    const int64_t counts[] = {problem.x_numel(), problem.w_numel(), problem.y_numel()};
    for (int i = 0; i < 3; ++i) {
      const auto bytes = static_cast<std::size_t>(counts[i]) * sizeof(T);
      check(cudaMalloc(pointers[i], bytes), "test");
      check(cudaMemset(*pointers[i], 0, bytes), "test");
    }
    algorithm.run(problem, config, operands, nullptr);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << algorithm.name << ' ' << name(pass) << ' ' << problem.str();
    for (void** pointer : pointers) cudaFree(*pointer);
  });
}

/// More samples than are copied to float32 at once.
TYPED_TEST(NarrowConv, WidensSliceBySlice) {
  using T = TypeParam;
  if constexpr (sizeof(T) == 2) {
    const ConvProblem p = problem({5, 64, 360, 362}, 8, 1, {3, 3}, {.padding = {1, 1}});
    const Algorithm& widened = find_algorithm("widened");
    for (const ConvPass pass : {ConvPass::Forward, ConvPass::BackwardInput, ConvPass::BackwardWeight}) {
      EXPECT_LT(widened.workspace_bytes(p, config_of<T>(pass, 0)), kWorkspaceCap);
      EXPECT_LT(static_cast<double>(widened.workspace_bytes(p, config_of<T>(pass, 0))), 0.8 * p.bytes(sizeof(float)));
      Tensors<T> got(p, 0), expected(p, 0);
      run(widened, p, pass, got);
      run(find_algorithm("direct"), p, pass, expected);
      EXPECT_LE(relative_error(got.result(pass).values(), expected.result(pass).values()), 2 * kBound<T>) << name(pass);
    }
  }
}

TYPED_TEST(NarrowConv, EveryKernelIsReached) {
  constexpr bool kHalf = sizeof(TypeParam) == 2;
  std::map<std::string, int> reached;
  for_each_supported<TypeParam>(
      0, [&](const Algorithm& algorithm, const ConvProblem&, ConvPass) { ++reached[algorithm.name]; });
  for (const char* kernel : kKernels) {
    const bool of_halves = std::string(kernel) == "depthwise half" || std::string(kernel) == "widened";
    if (of_halves && !kHalf) {
      EXPECT_EQ(reached[kernel], 0) << kernel;
    } else {
      EXPECT_GE(reached[kernel], 2) << kernel;
    }
  }
}

}  // namespace
}  // namespace halo::cuda::conv
