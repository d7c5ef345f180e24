// Convolutions of few channels a group, few taps or few results, for tests of the kernels that are for them.
#pragma once

#include <halo/ops/conv_problem.h>

#include <cstdint>
#include <vector>

namespace halo::cuda::conv {

/// x [n, channels, extents...], w [channels * multiplier, channels / groups, kernel...].
inline ConvProblem problem(std::vector<int64_t> x, int64_t out_channels, int64_t groups,
                           const std::vector<int64_t>& kernel, ConvOptions options) {
  options.groups = groups;
  std::vector<int64_t> w{out_channels, x[1] / groups};
  w.insert(w.end(), kernel.begin(), kernel.end());
  return ConvProblem::conv("test", x, w, options);
}

inline std::vector<ConvProblem> narrow_problems() {
  return {
      problem({2, 5, 509}, 5, 5, {3}, {.padding = {1}}),
      problem({3, 4, 2048}, 4, 4, {4}, {.padding = {3}, .padding_after = {0}}),
      problem({2, 3, 1027}, 6, 3, {7}, {.padding = {2}}),
      problem({2, 3, 67, 131}, 3, 3, {3, 3}, {.padding = {1, 1}}),
      problem({2, 4, 33, 250}, 4, 4, {3, 7}, {}),
      problem({2, 3, 65, 64}, 3, 3, {3, 1}, {.padding = {2, 0}}),
      problem({2, 3, 40, 56}, 3, 3, {7, 7}, {.padding = {3, 3}}),
      problem({1, 3, 13, 17, 34}, 3, 3, {3, 3, 3}, {.padding = {1, 0, 2}}),
      problem({2, 6, 45, 51}, 12, 6, {3, 3}, {.stride = {2, 2}, .padding = {1, 1}}),
      problem({2, 6, 700}, 6, 6, {3}, {.padding = {8}, .dilation = {8}}),
      problem({2, 32, 15, 17, 33}, 32, 4, {3, 3, 3}, {.stride = {2, 2, 2}, .padding = {1, 1, 1}}),
      problem({2, 64, 57, 96}, 32, 4, {3, 5}, {.stride = {2, 3}, .padding = {1, 2}, .dilation = {2, 1}}),
      problem({2, 6, 41, 43}, 10, 2, {3, 2}, {.padding = {1, 1}}),
      problem({2, 3, 61, 19, 10}, 24, 1, {3, 3, 1}, {}),
      problem({1, 32, 9, 24, 47}, 32, 4, {3, 5, 7}, {.stride = {2, 2, 2}, .padding = {1, 2, 3}}),
      problem({2, 64, 1031}, 32, 1, {3}, {.stride = {2}, .padding = {1}, .dilation = {2}}),
      problem({2, 32, 33, 64}, 16, 1, {3, 3}, {.stride = {5, 5}, .padding = {1, 1}, .dilation = {2, 2}}),
      problem({3, 37, 1417}, 19, 1, {3}, {.stride = {2}, .padding = {1}, .dilation = {2}}),
      problem({2, 20, 6, 31, 645}, 9, 1, {2, 3, 3}, {.stride = {2, 5, 5}, .padding = {0, 1, 1}, .dilation = {1, 2, 2}}),
      problem({2, 64, 14, 1040}, 32, 1, {2, 3}, {.stride = {4, 3}, .padding = {0, 2}}),
      problem({2, 2, 40, 61}, 40, 1, {3, 3}, {.stride = {2, 2}, .padding = {1, 1}}),
      problem({2, 40, 30, 551}, 3, 1, {3, 3}, {.padding = {1, 1}}),
      problem({2, 40, 30, 552}, 3, 1, {3, 3}, {.padding = {1, 1}}),
      problem({2, 3, 61, 20, 10}, 32, 1, {3, 3, 1}, {}),
      problem({2, 3, 62, 20, 10}, 32, 1, {3, 3, 1}, {}),
      problem({1, 32, 2, 11, 900}, 4, 2, {1, 3, 3}, {.padding = {0, 3, 8}, .dilation = {1, 1, 5}}),
      problem({1, 16, 2, 11, 2700}, 4, 2, {1, 3, 3}, {.padding = {0, 3, 7}, .dilation = {1, 1, 5}}),
      problem({2, 3, 8194}, 3, 3, {3}, {.padding = {1}}),
      problem({11, 4, 502}, 4, 4, {5}, {.padding = {4}, .padding_after = {0}}),
      problem({2, 3, 67, 130}, 6, 3, {3, 3}, {.padding = {1, 1}}),
      problem({2, 2, 20, 1100}, 2, 2, {5, 5}, {}),
      problem({2, 3, 5, 18, 40}, 3, 3, {1, 3, 3}, {.padding = {0, 1, 1}}),
      problem({2, 24, 7, 9, 151}, 16, 2, {3, 3, 3}, {.stride = {2, 2, 2}, .padding = {1, 1, 1}}),
      problem({3, 32, 515}, 24, 2, {6}, {.stride = {4}, .padding = {1}}),
      problem({1, 18, 31, 70}, 30, 2, {5, 7}, {.stride = {3, 1}, .padding = {2, 3}, .dilation = {1, 2}}),
      problem({2, 16, 20, 263}, 16, 2, {3, 9}, {.stride = {1, 2}, .padding = {1, 4}}),
      problem({2, 16, 13, 192}, 32, 2, {2, 3}, {.stride = {2, 3}, .padding = {0, 4}, .dilation = {1, 5}}),
      problem({2, 40, 9, 24}, 72, 1, {1, 1}, {}),
      problem({1, 72, 11, 6, 20}, 40, 1, {2, 3, 1}, {.stride = {2, 1, 1}, .padding = {1, 1, 0}}),
      problem({7, 4, 13, 22}, 4, 4, {3, 3}, {.padding = {1, 0}}),
      problem({3, 4, 31, 30}, 8, 4, {5, 5}, {.stride = {2, 2}, .padding = {2, 2}}),
      problem({2, 5, 30, 47}, 5, 5, {3, 3}, {.stride = {2, 2}, .padding = {0, 1}, .padding_after = {1, 0}}),
      problem({2, 3, 40, 33}, 3, 3, {3, 3}, {.padding = {2, 3}, .dilation = {2, 3}}),
      problem({2, 3, 29, 70}, 3, 3, {5, 5}, {.stride = {2, 2}, .padding = {4, 3}, .dilation = {2, 2}}),
      problem({3, 5, 1501}, 5, 5, {5}, {.stride = {2}, .padding = {1}}),
      problem({3, 5, 90}, 5, 5, {7}, {.stride = {2}, .padding = {4}}),
      problem({2, 3, 67, 132}, 6, 3, {3, 3}, {.padding = {1, 0}, .padding_after = {1, 2}}),
      problem({3, 2, 20, 1108}, 2, 2, {3, 5}, {.padding = {1, 3}}),
      problem({3, 5, 31, 44}, 10, 5, {3, 3}, {.stride = {2, 2}, .padding = {1, 1}}),
      problem({2, 3, 30, 36}, 3, 3, {5, 5}, {.stride = {2, 2}, .padding = {2, 2}}),
      problem({3, 37, 41, 24}, 101, 1, {1, 1}, {}),
      problem({2, 33, 4104}, 70, 1, {1}, {}),
      problem({3, 5, 41, 24}, 6, 1, {1, 1}, {}),
      problem({1, 32, 9, 24, 48}, 32, 4, {3, 5, 7}, {.stride = {2, 2, 2}, .padding = {1, 2, 3}}),
      problem({2, 9, 13, 42}, 24, 3, {3, 3}, {.stride = {2, 2}, .padding = {1, 1}}),
      problem({2, 21, 34, 160}, 24, 3, {5, 6}, {.stride = {2, 3}, .padding = {2, 1}}),
      problem({2, 32, 21, 94}, 16, 2, {3, 5}, {.stride = {2, 3}, .padding = {1, 2}, .dilation = {2, 1}}),
      problem({2, 10, 5, 23, 99}, 20, 2, {2, 4, 2}, {.stride = {1, 2, 2}, .padding = {1, 0, 5}}),
      // Strided rows of whole vectors, padded by half of the taps, or more; several chunks of channels and results.
      problem({2, 22, 9, 15, 68}, 26, 2, {3, 3, 3}, {.stride = {2, 2, 2}, .padding = {1, 1, 1}}),
      problem({3, 14, 29, 132}, 20, 2, {3, 3}, {.stride = {1, 2}, .padding = {1, 5}}),
      problem({2, 32, 25, 96}, 10, 2, {3, 7}, {.stride = {2, 2}, .padding = {1, 3}}),
      problem({2, 22, 10, 31, 110}, 26, 2, {3, 4, 6}, {.stride = {2, 2, 2}, .padding = {1, 1, 2}}),
      // As many positions as a warp has, of one tap a phase: the copies of such rows once went beyond them.
      problem({2, 16, 10, 96}, 16, 2, {2, 2}, {.stride = {2, 2}}),
      // 33 to 48 positions of a phase, and 65 to 96: rows of whole 16 bytes and others, each of one to four phases.
      problem({2, 24, 5, 11, 96}, 16, 2, {3, 3, 7}, {.stride = {2, 2, 2}, .padding = {1, 1, 3}}),
      problem({1, 20, 3, 9, 83}, 14, 2, {2, 3, 3}, {.stride = {1, 2, 2}, .padding = {1, 0, 0}}),
      problem({2, 14, 12, 130}, 32, 2, {3, 5}, {.stride = {2, 3}, .padding = {1, 1}, .padding_after = {1, 3}}),
      problem({2, 16, 9, 184}, 24, 2, {4, 3}, {.stride = {3, 2}, .padding = {1, 1}}),
      problem({2, 12, 10, 367}, 15, 3, {3, 6}, {.stride = {2, 4}, .padding = {0, 2}, .padding_after = {1, 3}}),
      problem({2, 16, 13, 44}, 16, 2, {5, 3}, {.stride = {2, 1}, .padding = {2, 1}}),
      // Five to seven taps of stride 2: several warps a row, more padding than a window's edge, two chunks of channels,
      // rows shorter than a warp's.
      problem({2, 16, 7, 21, 203}, 14, 2, {3, 3, 7}, {.stride = {1, 2, 2}, .padding = {1, 1, 5}}),
      problem({3, 30, 19, 131}, 16, 2, {5, 5}, {.stride = {2, 2}, .padding = {2, 2}}),
      problem({2, 12, 5, 9, 30}, 10, 2, {3, 3, 6}, {.stride = {2, 2, 2}, .padding = {1, 1, 3}}),
      // Few taps in several items of a row: those of stride 4 once began at half of 16 bytes of the source.
      problem({3, 16, 4092}, 16, 1, {2}, {.stride = {4}, .padding = {2}, .padding_after = {1}, .dilation = {2}}),
      // Rows without taps between rows with them: several items a block, each from another boundary; items that begin
      // before the plane; several rows without taps; sources beside the rows; rows of any length of the source.
      problem({5, 29, 173, 159}, 8, 1, {3, 3}, {.stride = {5, 5}, .padding = {1, 1}, .dilation = {2, 2}}),
      problem({2, 20, 30, 259}, 14, 1, {2, 3}, {.stride = {4, 3}, .padding = {1, 2}}),
      problem({3, 12, 23, 301}, 16, 1, {2, 3}, {.stride = {3, 4}, .padding = {0, 9}, .dilation = {1, 3}}),
      problem({2, 9, 21, 144}, 16, 1, {1, 2}, {.stride = {2, 2}}),
      problem({2, 37, 47, 331}, 13, 1, {3, 3}, {.stride = {5, 5}, .padding = {4, 7}, .dilation = {2, 2}}),
      problem({2, 20, 6, 31, 678}, 9, 1, {2, 3, 3}, {.stride = {2, 5, 5}, .padding = {0, 1, 1}, .dilation = {1, 2, 2}}),
      // Columns of taps, along the height or the depth alone.
      problem({2, 4, 33, 70}, 4, 4, {7, 1}, {.padding = {3, 0}}),
      problem({2, 3, 40, 131}, 3, 3, {5, 1}, {.padding = {1, 0}}),
      problem({2, 6, 9, 13, 22}, 6, 6, {3, 1, 1}, {.padding = {1, 0, 0}}),
      problem({2, 3, 21, 6, 17}, 6, 3, {5, 1, 1}, {.padding = {0, 0, 0}}),
      // Rows in a ring: several blocks and pieces a slice; several tiles of odd rows; nine taps.
      problem({2, 2, 301, 37}, 2, 2, {3, 3}, {.padding = {1, 1}}),
      problem({2, 2, 9, 2051}, 2, 2, {5, 7}, {.padding = {2, 3}}),
      problem({2, 2, 19, 75}, 2, 2, {3, 9}, {.padding = {0, 4}, .padding_after = {2, 0}}),
      // Few channels a group side by side: no whole tiles of channels and taps, one tap along the height or the width.
      problem({2, 9, 67, 33}, 6, 3, {3, 3}, {.padding = {2, 0}, .padding_after = {0, 3}}),
      problem({2, 8, 70, 45}, 8, 2, {3, 1}, {.padding = {1, 0}}),
      problem({2, 8, 1, 1301}, 6, 2, {1, 3}, {.padding = {0, 4}}),
      problem({2, 4, 9, 13, 22}, 4, 2, {3, 3, 3}, {.stride = {2, 1, 1}, .padding = {3, 1, 1}, .dilation = {2, 1, 1}}),
      // Every second position alone, in several items of a row: rows apart, padding beyond the first tap, two taps.
      problem({2, 16, 2051}, 15, 1, {3}, {.stride = {2}, .padding = {1}, .dilation = {2}}),
      problem({2, 13, 7, 1083}, 16, 1, {1, 3}, {.stride = {3, 2}, .padding = {0, 9}, .dilation = {1, 2}}),
      problem({3, 16, 1056}, 11, 1, {2}, {.stride = {2}, .padding = {1}, .padding_after = {0}, .dilation = {2}}),
  };
}

}  // namespace halo::cuda::conv
