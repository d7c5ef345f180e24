#include "axis.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace halo::cuda::conv {
namespace {

/// Source offsets that output `j` of a group reads, over all taps.
void append_offsets(const ConvProblem& p, std::size_t axis, bool forward, int64_t j, std::vector<int64_t>& offsets) {
  for (int64_t k = 0; k < p.kernel[axis]; ++k) {
    if (forward) {
      offsets.push_back(j * p.stride[axis] + k * p.dilation[axis] - p.padding_before[axis]);
    } else {
      const int64_t scaled = j + p.padding_before[axis] - k * p.dilation[axis];
      if (scaled % p.stride[axis] == 0) offsets.push_back(scaled / p.stride[axis]);
    }
  }
}

}  // namespace

DenseAxis make_dense_axis(const ConvProblem& p, std::size_t axis, bool forward, int64_t group, bool separate) {
  DenseAxis a;
  const int64_t stride = p.stride[axis];
  a.source = forward ? p.input[axis] : p.output[axis];
  a.target = forward ? p.output[axis] : p.input[axis];
  a.group = separate ? 1 : group;
  a.out_step = separate ? stride : group;
  a.in_step = forward ? stride * group : a.out_step / stride;
  if (!forward && !separate && stride > 1) a.origin = -(p.padding_before[axis] % stride);
  std::vector<std::vector<int64_t>> sets;
  int64_t step = 0;
  for (int64_t j0 = a.origin; j0 < a.origin + a.out_step; j0 += a.group) {
    std::vector<int64_t> offsets;
    for (int64_t j = j0; j < j0 + a.group; ++j) append_offsets(p, axis, forward, j, offsets);
    std::sort(offsets.begin(), offsets.end());
    for (int64_t o : offsets) step = std::gcd(step, o - offsets.front());
    sets.push_back(std::move(offsets));
  }
  a.tap_step = std::max<int64_t>(step, 1);
  for (std::size_t i = 0; i < sets.size(); ++i) {
    if (sets[i].empty()) {
      a.complete = false;
      continue;
    }
    a.phases.push_back({sets[i].front(), (sets[i].back() - sets[i].front()) / a.tap_step + 1,
                        a.origin + static_cast<int64_t>(i) * a.group});
  }
  const bool one_tap =
      std::all_of(a.phases.begin(), a.phases.end(), [](const DenseAxis::Taps& t) { return t.window == 1; });
  a.fill_step = one_tap ? a.in_step : std::gcd(a.in_step, a.tap_step);
  a.in_step /= a.fill_step;
  a.halo_tap_step = one_tap ? 1 : a.tap_step / a.fill_step;
  return a;
}

ConvProblem merge_axes(ConvProblem p) {
  for (std::size_t outer : {std::size_t{1}, std::size_t{0}}) {
    const std::size_t inner = outer + 1;
    const bool plain_inner = p.kernel[inner] == 1 && p.stride[inner] == 1 && p.padding_before[inner] == 0 &&
                             p.input[inner] == p.output[inner];
    if (!plain_inner || p.stride[outer] != 1 || p.input[outer] == 1) continue;
    const int64_t length = p.input[inner];
    p.dilation[inner] = p.kernel[outer] == 1 ? 1 : p.dilation[outer] * length;
    p.padding_before[inner] = p.padding_before[outer] * length;
    p.padding_after[inner] = p.padding_after[outer] * length;
    p.kernel[inner] = p.kernel[outer];
    p.input[inner] *= p.input[outer];
    p.output[inner] *= p.output[outer];
    p.input[outer] = p.output[outer] = p.kernel[outer] = p.dilation[outer] = 1;
    p.padding_before[outer] = p.padding_after[outer] = 0;
  }
  const bool flat_height = p.input[1] == 1 && p.output[1] == 1 && p.kernel[1] == 1 && p.padding_before[1] == 0;
  if (flat_height && (p.input[0] != 1 || p.kernel[0] != 1)) {  // an idle height: depth takes its place
    for (auto* extents :
         {&p.input, &p.output, &p.kernel, &p.stride, &p.dilation, &p.padding_before, &p.padding_after}) {
      std::swap((*extents)[0], (*extents)[1]);
    }
  }
  return p;
}

}  // namespace halo::cuda::conv
