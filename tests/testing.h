// What the tests share: fresh random tensors and comparisons that say where and by how much.
#pragma once

#include <halo/halo.h>

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace halo::testing {

/// Relative Frobenius error of `got` against `expected`. Where the expectation is all zero, the largest absolute value
/// of `got`. NaN in one that is not in the other gives infinity; matching infinities and NaNs count as equal.
inline double relative_error(const Tensor& got, const Tensor& expected) {
  if (got.shape() != expected.shape()) return INFINITY;
  const auto a = got.to_vector<double>(), b = expected.to_vector<double>();
  double difference = 0, scale = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) {
      if (std::isfinite(b[i])) scale += b[i] * b[i];
      continue;
    }
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return INFINITY;
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    scale += b[i] * b[i];
    largest = std::max(largest, std::abs(a[i]));
  }
  return scale > 0 ? std::sqrt(difference / scale) : largest;
}

inline ::testing::AssertionResult near(const Tensor& got, const Tensor& expected, double bound) {
  const double error = relative_error(got, expected);
  if (error <= bound) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "relative error " << error << " above " << bound << "\ngot " << got
                                       << "\nexpected " << expected;
}

/// Same shape, dtype and bits (NaN equals NaN).
inline ::testing::AssertionResult same(const Tensor& got, const Tensor& expected) {
  if (got.dtype() != expected.dtype() || got.shape() != expected.shape()) {
    return ::testing::AssertionFailure() << "got " << got.describe() << ", expected " << expected.describe();
  }
  return near(got, expected, 0.0);
}

/// Small integers: products and sums of them are exact in float32.
inline Tensor random_integers(const Shape& shape, const TensorOptions& options = {}, int64_t limit = 4) {
  return randint(-limit, limit + 1, shape).to(options.dtype).to(options.device);
}

/// The same values with every second element of a larger NaN-filled buffer: strided, offset, and with poison around it.
inline Tensor strided_copy(const Tensor& t) {
  Shape wide = t.shape();
  wide.push_back(3);
  const Tensor buffer = full(wide, NAN, t.options());
  const Tensor view = buffer.select(-1, 1);
  const NoGradGuard guard;
  view.copy_(t);
  return view;
}

inline Tensor leaf(const Tensor& t) { return t.detach().clone().requires_grad_(); }

/// What an exception of type E said; fails the test where none came.
template <class E = ArgumentError, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  } catch (const std::exception& e) {
    ADD_FAILURE() << "another exception type: " << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no exception";
  return {};
}

}  // namespace halo::testing
