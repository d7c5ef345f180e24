// Choices of kernels that are kept.
#include <halo/cuda/conv/dispatch.h>

#include <gtest/gtest.h>

namespace halo {
namespace {

// Kernels that apply no activation must not be chosen for a call with one because a call without was there before.
TEST(ConvChoices, AreKeptByTheWholeConfig) {
  using cuda::conv::ConvConfig;
  using cuda::conv::select_algorithm;
  const ConvOptions options{.stride = {2, 3}, .padding = {1, 2}, .dilation = {2, 1}, .groups = 4};
  const ConvProblem problem = ConvProblem::transposed("test", {16, 32, 128, 256}, {32, 16, 3, 5}, options);
  const ConvConfig plain{.alignment = 16};
  ConvConfig relu = plain;
  relu.activation.kind = ActivationKind::Relu;
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_STREQ(select_algorithm(problem, plain).name, "streams");
    const auto& other = select_algorithm(problem, relu);
    EXPECT_STRNE(other.name, "streams");
    EXPECT_TRUE(other.supports(problem, relu));
  }
}

}  // namespace
}  // namespace halo
