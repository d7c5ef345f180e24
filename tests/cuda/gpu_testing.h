// Comparing the GPU with the CPU.
#pragma once

#include <halo/core/cuda_backend.h>
#include <halo/halo.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/testing.h"

namespace halo::testing {

/// A test that needs a GPU: skipped, with the reason, where there is none. Memory is poisoned while it runs, so that an
/// element nobody wrote shows as NaN. Its random numbers do not depend on the tests before it.
class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << cuda::describe(0);
    poison_.emplace();
    manual_seed(20);
  }

 private:
  std::optional<PoisonGuard> poison_;
};

using Tensors = std::vector<Tensor>;
using Operation = std::function<Tensors(const Tensors&)>;

/// The result and, for a cotangent that is the same on every device, the gradients of all floating inputs.
inline Operation with_gradients(const std::function<Tensor(const Tensors&)>& f) {
  return [f](const Tensors& inputs) {
    Tensors leaves, wanted;
    for (const Tensor& t : inputs) {
      const bool floating = t.defined() && is_floating_point(t.dtype());
      leaves.push_back(floating ? t.detach().requires_grad_() : t);
      if (floating) wanted.push_back(leaves.back());
    }
    const Tensor y = f(leaves);
    Generator generator(99);
    const Tensor g = rand(y.shape(), y.options(), generator) - 0.4;
    Tensors results = grad({y}, wanted, {g}, {.allow_unused = true});
    results.push_back(y.detach());
    return results;
  };
}

/// Relative Frobenius errors that two devices may differ by. 0 asks for the same bits.
struct Bounds {
  double single = 2e-6;
  double twice = 1e-13;
};

inline Tensors on_gpu(const Tensors& inputs, bool strided) {
  Tensors moved;
  for (const Tensor& t : inputs) {
    moved.push_back(!t.defined() ? t : strided ? strided_copy(t.to(Device::cuda())) : t.to(Device::cuda()));
  }
  return moved;
}

inline void compare_results(const Tensors& got, const Tensors& expected, double bound, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!expected[i].defined()) continue;
    const Tensor back = got[i].to(Device::cpu());
    ASSERT_EQ(got[i].dtype(), expected[i].dtype()) << what;
    ASSERT_EQ(got[i].shape(), expected[i].shape()) << what;
    EXPECT_TRUE(near(back, expected[i], bound)) << what << ", result " << i;
  }
}

/// A wrong result must be seen: one element in each result is changed by a hundred times the bound.
inline void expect_bound_sees(const Tensors& expected, double bound) {
  for (const Tensor& t : expected) {
    if (!t.defined() || t.numel() == 0 || !is_floating_point(t.dtype())) continue;
    auto values = t.to_vector<double>();
    double squares = 0;
    bool finite = true;
    for (double v : values) {
      squares += v * v;
      finite = finite && std::isfinite(v);
    }
    if (!finite || squares == 0) continue;
    values.back() += 100 * (bound + 1e-15) * std::sqrt(squares) + 1e-30;
    EXPECT_FALSE(near(from_vector(values, t.shape()), t.to(float64), bound));
  }
}

/// Runs `f` on the CPU and, dense and strided, on the GPU in float32 and float64: same results, and the same bits
/// twice. `inputs` are on the CPU; floating ones are converted to the dtype under test.
inline void compare(const std::string& name, const Tensors& inputs, const Operation& f, const Bounds& bounds = {},
                    bool strided_too = true) {
  for (DType dtype : {float32, float64}) {
    const double bound = dtype == float32 ? bounds.single : bounds.twice;
    Tensors here;
    for (const Tensor& t : inputs) {
      here.push_back(t.defined() && is_floating_point(t.dtype()) ? t.to(dtype) : t);
    }
    const Tensors expected = f(here);
    expect_bound_sees(expected, bound);
    for (bool strided : {false, true}) {
      if (strided && !strided_too) continue;
      const std::string what = name + " " + halo::name(dtype) + (strided ? " strided" : " dense");
      const Tensors there = on_gpu(here, strided);
      const Tensors got = f(there);
      compare_results(got, expected, bound, what);
      const Tensors again = f(there);
      for (std::size_t i = 0; i < got.size(); ++i) {
        if (!got[i].defined()) continue;
        EXPECT_TRUE(same(again[i].to(Device::cpu()), got[i].to(Device::cpu()))) << what;
      }
    }
  }
}

}  // namespace halo::testing
