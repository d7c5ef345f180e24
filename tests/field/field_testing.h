// What the field cases share. A field case is a fault that people met in public with another library: a small input
// with a right answer worked out by hand, run on every device there is, with poisoned memory.
#pragma once

#include <halo/core/cuda_backend.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/testing.h"

namespace halo::testing {

/// A case runs once on the CPU and once on the first GPU (skipped, saying why, where there is none). Fresh and reused
/// memory is full of NaN while it runs.
class Field : public ::testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    if (GetParam().is_cuda() && cuda::device_count() == 0) GTEST_SKIP() << cuda::describe(0);
    poison_.emplace();
  }
  Device device() const { return GetParam(); }
  bool on_gpu() const { return device().is_cuda(); }

  /// A float32 tensor on the device under test.
  Tensor make(const std::vector<float>& values, const Shape& shape) const {
    return from_vector(values, shape, device());
  }
  Tensor make(const std::vector<float>& values) const { return make(values, {static_cast<int64_t>(values.size())}); }
  TensorOptions options(DType dtype = DType::Float32) const { return {dtype, device()}; }

 private:
  std::optional<PoisonGuard> poison_;
};

inline std::string device_name(const ::testing::TestParamInfo<Device>& info) {
  return info.param.is_cpu() ? "Cpu" : "Gpu";
}
inline auto both_devices() { return ::testing::Values(Device::cpu(), Device::cuda()); }

/// A case for a GPU with at least `bytes` free, past what 32-bit arithmetic can count.
inline bool gpu_has(int64_t bytes) {
  if (cuda::device_count() == 0) return false;
  try {
    const Tensor probe = empty({bytes}, {DType::UInt8, Device::cuda()});
  } catch (const OutOfMemoryError&) {
    return false;
  }
  allocator(Device::cuda()).release_cache();
  return true;
}

/// Exactly these values, in row-major order.
inline ::testing::AssertionResult holds(const Tensor& got, const std::vector<double>& expected) {
  const auto values = got.to_vector<double>();
  if (values.size() != expected.size()) {
    return ::testing::AssertionFailure() << "got " << values.size() << " values, expected " << expected.size();
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] == expected[i] || (std::isnan(values[i]) && std::isnan(expected[i]))) continue;
    return ::testing::AssertionFailure() << "value " << i << " is " << values[i] << ", expected " << expected[i]
                                         << "\ngot " << got;
  }
  return ::testing::AssertionSuccess();
}

/// Every value within `bound` of the expected one, absolutely.
inline ::testing::AssertionResult close(const Tensor& got, const std::vector<double>& expected, double bound) {
  const auto values = got.to_vector<double>();
  if (values.size() != expected.size()) {
    return ::testing::AssertionFailure() << "got " << values.size() << " values, expected " << expected.size();
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::abs(values[i] - expected[i]) <= bound) continue;  // false for NaN
    return ::testing::AssertionFailure() << "value " << i << " is " << values[i] << ", expected " << expected[i]
                                         << " within " << bound;
  }
  return ::testing::AssertionSuccess();
}

inline bool all_equal(const Tensor& t, double value) {
  return t.numel() == 0 || (amin(t).item() == value && amax(t).item() == value);
}

/// Values in [-1, 1) from a linear congruential generator: z <- 1664525 z + 1013904223 mod 2^32, z / 2^31 - 1.
inline Tensor lcg(uint32_t seed, const Shape& shape, Device device = Device::cpu()) {
  std::vector<float> values(static_cast<std::size_t>(shape.numel()));
  uint32_t z = seed;
  for (float& v : values) {
    z = 1664525u * z + 1013904223u;
    v = static_cast<float>(z / 2147483648.0 - 1);
  }
  return from_vector(values, shape, device);
}

/// A 1-D convolution written with one, two or three spatial axes, its long axis in any of their places.
struct Form {
  int rank, axis;

  Tensor shaped(const Tensor& t) const {  // [n, c, length] to [n, c, 1.., length, 1..]
    Shape shape{t.size(0), t.size(1)};
    for (int i = 0; i < rank; ++i) shape.push_back(i == axis ? t.size(2) : 1);
    return t.reshape(shape);
  }
  IntList list(const IntList& given, int64_t elsewhere) const {
    if (given.empty()) return given;
    IntList values(static_cast<std::size_t>(rank), elsewhere);
    values[static_cast<std::size_t>(axis)] = given[0];
    return values;
  }
  ConvOptions options(const ConvOptions& o) const {
    return {.stride = list(o.stride, 1),
            .padding = list(o.padding, 0),
            .padding_after = list(o.padding_after, 0),
            .dilation = list(o.dilation, 1),
            .output_padding = list(o.output_padding, 0),
            .groups = o.groups,
            .auto_padding = o.auto_padding};
  }
  std::string str() const { return concat(rank, "-D with the long axis ", axis); }
};

inline std::vector<Form> all_forms() { return {{1, 0}, {2, 0}, {2, 1}, {3, 0}, {3, 1}, {3, 2}}; }

/// conv1d or conv_transpose1d in a form; x, w and the result have one spatial axis.
inline Tensor convolve(const Form& form, bool transposed, const Tensor& x, const Tensor& w, const Tensor& bias,
                       const ConvOptions& options) {
  const Tensor a = form.shaped(x), b = form.shaped(w);
  const ConvOptions o = form.options(options);
  const auto run = [&] {
    switch (form.rank * 2 + (transposed ? 1 : 0)) {
      case 2: return conv1d(a, b, bias, o);
      case 3: return conv_transpose1d(a, b, bias, o);
      case 4: return conv2d(a, b, bias, o);
      case 5: return conv_transpose2d(a, b, bias, o);
      case 6: return conv3d(a, b, bias, o);
      default: return conv_transpose3d(a, b, bias, o);
    }
  };
  const Tensor y = run();
  return y.reshape({y.size(0), y.size(1), -1});
}

/// What a convolution case knows: operands as [n, c, length], and the answers where the source gives them.
struct ConvCase {
  Tensor x, w;
  Tensor bias{};
  ConvOptions options{};
  bool transposed = false;
  std::vector<double> y{};
  Tensor up{};  ///< upstream gradient; all gradients are checked with it
  std::vector<double> dx{}, dw{}, db{};
};

/// Runs the case in every form and compares exactly.
inline void check(const ConvCase& c) {
  for (const Form& form : all_forms()) {
    SCOPED_TRACE(form.str());
    const Tensor x = leaf(c.x), w = leaf(c.w), b = c.bias.defined() ? leaf(c.bias) : Tensor();
    const Tensor y = convolve(form, c.transposed, x, w, b, c.options);
    if (!c.y.empty()) {
      EXPECT_TRUE(holds(y, c.y));
    }
    if (!c.up.defined()) continue;
    y.backward(c.up.defined() && c.up.rank() == 0 ? c.up.expand(y.shape()) : c.up);
    if (!c.dx.empty()) {
      EXPECT_TRUE(holds(x.grad(), c.dx));
    }
    if (!c.dw.empty()) {
      EXPECT_TRUE(holds(w.grad(), c.dw));
    }
    if (!c.db.empty()) {
      EXPECT_TRUE(holds(b.grad(), c.db));
    }
  }
}

/// Whether `text` has every one of `parts` in it.
inline ::testing::AssertionResult mentions(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (text.find(part) == std::string::npos) {
      return ::testing::AssertionFailure() << "\"" << part << "\" is not in: " << text;
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace halo::testing
