// The portable engine's phases and taps, against the definition. Needs no GPU.
#include <halo/cuda/conv/portable/portable.h>

#include <vector>

#include "random_problems.h"
#include <gtest/gtest.h>

namespace halo::cuda::conv {
namespace {

/// Each position of one axis of the target meets, through its phase or group, every tap that the definition gives it.
void expect_all_taps(const Sizes& sizes, int axis, bool forward, const std::vector<PortableAxis>& phases) {
  const int64_t source = forward ? sizes.input[axis] : sizes.output[axis];
  const int64_t target = forward ? sizes.output[axis] : sizes.input[axis];
  std::vector<int> met(static_cast<std::size_t>(target * sizes.kernel[axis]));
  for (const PortableAxis& a : phases) {
    for (int q = 0; q < a.positions; ++q) {
      for (int j = 0; j < a.group; ++j) {
        const int64_t to = q * int64_t{a.out_step} + a.origin + j;
        for (int v = 0; v < a.taps; ++v) {
          const int64_t from = q * int64_t{a.in_step} + a.shift + v * a.shift_step;
          const int k = portable_kernel_tap(sizes, axis, a, j, v, forward);
          if (k < 0 || to >= target || from < 0 || from >= source) continue;
          const int64_t i = forward ? from : to, o = forward ? to : from;
          EXPECT_EQ(i, o * sizes.stride[axis] + k * sizes.dilation[axis] - sizes.padding[axis]);
          ++met[static_cast<std::size_t>(to * sizes.kernel[axis] + k)];
        }
      }
    }
  }
  for (int64_t to = 0; to < target; ++to) {
    for (int64_t k = 0; k < sizes.kernel[axis]; ++k) {
      bool there = false;
      for (int64_t from = 0; from < source; ++from) {
        const int64_t i = forward ? from : to, o = forward ? to : from;
        there = there || i == o * sizes.stride[axis] + k * sizes.dilation[axis] - sizes.padding[axis];
      }
      EXPECT_EQ(met[static_cast<std::size_t>(to * sizes.kernel[axis] + k)], there ? 1 : 0);
    }
  }
}

TEST(PortableAxis, EveryTapIsMetOnce) {
  for (const ConvProblem& problem : problems(60, 14)) {
    const Sizes sizes(problem);
    for (int axis = 0; axis < 3; ++axis) {
      if (sizes.input[axis] > 150) continue;
      std::vector<PortableAxis> phases;
      const int stride = static_cast<int>(sizes.stride[axis]);
      for (int residue = 0; residue < stride; ++residue) phases.push_back(portable_axis(sizes, axis, residue, false));
      expect_all_taps(sizes, axis, false, phases);
      expect_all_taps(sizes, axis, true, {portable_axis(sizes, axis, 0, true)});
      for (const int group : {2, 4}) {
        expect_all_taps(sizes, axis, false, {portable_grouped_axis(sizes, axis, group * stride, false)});
        expect_all_taps(sizes, axis, true, {portable_grouped_axis(sizes, axis, group, true)});
      }
      EXPECT_FALSE(HasFailure()) << problem.str();
    }
  }
}

}  // namespace
}  // namespace halo::cuda::conv
