// What every differentiable op must hold: strided operands and upstream gradients give the bits of dense ones, an
// expanded upstream gradient those of a dense copy, and gradients pass the numerical check in both orders.
#pragma once

#include "tests/testing.h"

namespace halo::testing {

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

inline std::vector<Tensor> gradients(const Function& f, const std::vector<Tensor>& leaves, const Tensor& upstream) {
  return grad({f(leaves)}, leaves, {upstream}, {.allow_unused = true});
}

inline void expect_any_strides(const Function& f, const std::vector<Tensor>& inputs) {
  const PoisonGuard poison;
  std::vector<Tensor> dense, strided;
  for (const Tensor& t : inputs) {
    dense.push_back(leaf(t));
    strided.push_back(strided_copy(t).requires_grad_());
  }
  const Tensor y = f(dense).detach();
  EXPECT_TRUE(same(f(strided).detach(), y));
  const Tensor g = randn(y.shape(), y.options());
  const auto expected = gradients(f, dense, g);
  for (const auto& got : {gradients(f, strided, g), gradients(f, dense, strided_copy(g))}) {
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same(got[i], expected[i])) << "input " << i;
  }
  const auto ones_dense = gradients(f, dense, ones(y.shape(), y.options()));
  const auto ones_expanded = gradients(f, dense, ones({}, y.options()).expand(y.shape()));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(same(ones_expanded[i], ones_dense[i])) << "input " << i;
  }
}

inline void expect_gradients(const Function& f, const std::vector<Tensor>& inputs,
                             const GradcheckOptions& options = {.step = 1e-5, .tolerance = 1e-7}) {
  std::vector<Tensor> leaves;
  for (const Tensor& t : inputs) leaves.push_back(leaf(t));
  const auto result = gradcheck(f, leaves, options);
  EXPECT_TRUE(result.ok) << result.message;
}

/// The same bits with one thread as with several.
inline void expect_thread_independent(const std::function<std::vector<Tensor>()>& f) {
  const auto several = f();
  const int threads = num_threads();
  set_num_threads(1);
  const auto one = f();
  set_num_threads(threads);
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(same(one[i], several[i])) << "result " << i;
}

}  // namespace halo::testing
