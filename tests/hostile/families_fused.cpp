// The table's rows for operations fused from several.
#include "families.h"

namespace halo::testing {
namespace {

Tensor normal(const Shape& shape) { return randn(shape, {.dtype = float64}); }

}  // namespace

void add_fused(std::vector<Family>& all) {
  const std::vector<int64_t> sizes{1, 2, 3, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 129, 257};
  all.push_back({"residual_norm",
                 [](int64_t n) {
                   const Shape row{n + 1};
                   return Tensors{normal({3, 5, n + 1}), normal(row), normal({3, 5, n + 1}), normal(row), normal(row)};
                 },
                 [](const Tensors& t) {
                   const auto [sum, normed] = residual_norm(t[0], t[1], t[2], t[3], t[4]);
                   return sum + normed;
                 },
                 sizes, true, 2e-5});
  all.push_back({"residual_norm_linear",
                 [](int64_t n) {
                   const Shape row{n + 1};
                   return Tensors{normal({3, n + 1}), normal(row), normal({3, n + 1}),
                                  normal(row),        normal(row), normal({4, n + 1})};
                 },
                 [](const Tensors& t) {
                   const auto [sum, projected] = residual_norm_linear(t[0], t[1], t[2], t[3], t[4], t[5]);
                   return mean(sum, {1}, true) + projected;
                 },
                 sizes, true, 2e-5, 1e-5});
  all.push_back({"gelu_linear",
                 [](int64_t n) {
                   return Tensors{normal({3, n}), normal({n}), normal({5, n})};
                 },
                 [](const Tensors& t) { return gelu_linear(t[0], t[1], t[2]); }, sizes, true, 1e-5, 1e-5});
  all.push_back(
      {"gated_long_conv",
       [](int64_t n) {
         return Tensors{normal({2, n, 9}), normal({9}), normal({9, 3}), normal({9}), normal({3, n}), normal({3})};
       },
       [](const Tensors& t) { return gated_long_conv(t[0], t[1], t[2], t[3], t[4], t[5]); }, sizes, true, 2e-5, 1e-5,
       false});
}

}  // namespace halo::testing
