// Hostile inputs: what every op family must hold for operands and upstream gradients of any layout, at every size where
// its code changes course, with NaN around the data, and with NaN, infinities and subnormal numbers in it.
#include <halo/core/cuda_backend.h>

#include <cstdlib>
#include <optional>

#include "families.h"

namespace halo {
namespace {

using namespace testing;

struct Place {
  std::size_t family;
  Device device;
  std::string str() const { return families()[family].name + (device.is_cpu() ? "_cpu" : "_gpu"); }
};
std::ostream& operator<<(std::ostream& out, const Place& place) { return out << place.str(); }
std::string place_name(const ::testing::TestParamInfo<Place>& info) { return info.param.str(); }

class Hostile : public ::testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    if (device().is_cuda() && cuda::device_count() == 0) GTEST_SKIP() << cuda::describe(0);
    // compute-sanitizer's initcheck looks for reads of memory that nobody wrote, which poison would be a write to.
    if (std::getenv("HALO_TEST_WITHOUT_POISON") == nullptr) poison_.emplace();
    manual_seed(17);
  }
  const Family& family() const { return families()[GetParam().family]; }
  Device device() const { return GetParam().device; }

  Tensors operands(int64_t n, DType dtype, Device where) const {
    Tensors all;
    for (const Tensor& t : family().operands(n)) {
      all.push_back((is_floating_point(t.dtype()) ? t.to(dtype) : t).to(where));
    }
    return all;
  }
  Tensors operands(int64_t n, DType dtype) const { return operands(n, dtype, device()); }

  /// The result, then the gradients of the floating operands.
  Tensors run(const Tensors& operands, const std::function<Tensor(const Tensor&)>& upstream_as) const {
    Tensors leaves, wanted;
    for (const Tensor& t : operands) {
      leaves.push_back(is_floating_point(t.dtype()) ? t.detach().requires_grad_() : t);
      if (is_floating_point(t.dtype())) wanted.push_back(leaves.back());
    }
    const Tensor y = family().f(leaves);
    Generator generator(5);
    const Tensor g = rand(y.shape(), y.options(), generator) - 0.4;
    Tensors results = grad({y}, wanted, {upstream_as(g)}, {.allow_unused = true});
    results.insert(results.begin(), y.detach());
    return results;
  }
  Tensors run(const Tensors& operands) const {
    return run(operands, [](const Tensor& g) { return g; });
  }

 private:
  std::optional<PoisonGuard> poison_;
};

void expect_near(const Tensors& got, const Tensors& expected, double bound, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].dtype(), expected[i].dtype()) << what;
    EXPECT_TRUE(near(got[i], expected[i], bound)) << what << ", result " << i;
  }
}

void expect_same(const Tensors& got, const Tensors& expected, const std::string& what) {
  expect_near(got, expected, 0, what);
}

/// Dense values at an odd element of a larger NaN-filled buffer: no alignment but the element's own.
Tensor offset_copy(const Tensor& t) {
  const Tensor buffer = zeros({t.numel() + 6}, t.options());
  if (is_floating_point(t.dtype())) buffer.fill_(NAN);
  const Tensor view = buffer.slice(0, 3, 3 + t.numel()).reshape(t.shape());
  view.copy_(t);
  return view;
}

/// The same values with the axes laid out in the opposite order.
Tensor transposed_copy(const Tensor& t) {
  Shape reversed;
  for (int axis = t.rank() - 1; axis >= 0; --axis) reversed.push_back(axis);
  return t.permute(reversed).clone().permute(reversed);
}

Tensor poisoned_strides(const Tensor& t) { return is_floating_point(t.dtype()) ? strided_copy(t) : transposed_copy(t); }

struct Layout {
  const char* name;
  Tensor (*apply)(const Tensor&);
};
const std::vector<Layout> kLayouts{
    {"strided in NaN", poisoned_strides}, {"at an odd offset", offset_copy}, {"transposed", transposed_copy}};

/// Few enough calls for compute-sanitizer, which makes each a hundred times slower (scripts/check_gpu.sh).
TEST_P(Hostile, RunsAtThreeSizes) {
  const auto& sizes = family().sizes;
  for (DType dtype : {float32, float64}) {
    for (int64_t n : {sizes.front(), sizes[sizes.size() / 2], sizes[sizes.size() * 2 / 3]}) {
      for (const Tensor& t : run(operands(n, dtype))) EXPECT_FALSE(t.numel() > 0 && std::isnan(t.sum().item())) << n;
    }
  }
}

TEST_P(Hostile, AnyLayoutOfOperandsAndUpstream) {
  for (DType dtype : {float32, float64}) {
    for (int64_t n : family().sizes) {
      manual_seed(17);
      const Tensors dense = operands(n, dtype);
      const Tensors expected = run(dense);
      expect_same(run(dense), expected, concat("again, size ", n));
      for (const Layout& layout : kLayouts) {
        const std::string what = concat(layout.name, ", size ", n, ", ", name(dtype));
        Tensors odd;
        for (const Tensor& t : dense) odd.push_back(layout.apply(t));
        const double bound = dtype == float32 ? family().layouts : 1e-8 * family().layouts;
        expect_near(run(odd), expected, bound, what);
        expect_near(run(dense, layout.apply), expected, bound, what + ", upstream");
      }
      manual_seed(17);
      expect_same(dense, operands(n, dtype), concat("operands after all that, size ", n));
    }
  }
}

/// Half types are stored in 16 bits and computed in float32: near its results, and the same bits in any layout.
TEST_P(Hostile, HalfTypesInAnyLayout) {
  const auto& sizes = family().sizes;
  for (DType dtype : {bfloat16, float16}) {
    for (int64_t n : {sizes.front(), sizes[sizes.size() / 2]}) {
      const Tensors dense = operands(n, dtype);
      const Tensors expected = run(dense);
      Tensors wide;
      for (const Tensor& t : dense) wide.push_back(is_floating_point(t.dtype()) ? t.to(float32) : t);
      const Tensor reference = family().f(wide);
      EXPECT_EQ(expected[0].dtype(), dtype);
      EXPECT_TRUE(near(expected[0], reference, 0.03)) << name(dtype) << ", size " << n;
      for (const Layout& layout : kLayouts) {
        Tensors odd;
        for (const Tensor& t : dense) odd.push_back(layout.apply(t));
        expect_near(run(odd), expected, family().layouts > 0 ? 0.03 : 0, concat(layout.name, ", size ", n));
      }
    }
  }
}

TEST_P(Hostile, ExpandedOperandsAndUpstream) {
  for (int64_t n : family().sizes) {
    const Tensors dense = operands(n, float32);
    for (int axis = 0; axis < 3; ++axis) {
      Tensors expanded, copied;
      for (const Tensor& t : dense) {
        const bool fits = axis < t.rank() && t.size(axis) > 0 && is_floating_point(t.dtype());
        expanded.push_back(fits ? t.slice(axis, 0, 1).expand(t.shape()) : t);
        copied.push_back(expanded.back().clone());
      }
      expect_near(run(expanded), run(copied), family().layouts, concat("axis ", axis, ", size ", n));
    }
    const auto one = [](const Tensor& g) { return ones({}, g.options()).expand(g.shape()); };
    expect_near(run(dense, one), run(dense, [](const Tensor& g) { return ones_like(g); }), family().layouts,
                concat("size ", n));
  }
}

/// Sizes with values that spread: a result is right only if every sum left them where they belong.
TEST_P(Hostile, SamplesDoNotSeeEachOther) {
  if (!family().samples) GTEST_SKIP() << "its samples are not apart";
  const float inf = INFINITY;
  for (int64_t n : {family().sizes.front(), family().sizes[family().sizes.size() / 2], family().sizes.back()}) {
    Tensors clean = operands(n, float32);
    const Tensor expected = family().f(clean);
    if (clean[0].rank() < 1 || clean[0].size(0) < 2 || clean[0].numel() == 0) continue;
    for (float value : {NAN, inf, 3e38f, 1e-40f}) {
      Tensors dirty = clean;
      dirty[0] = clean[0].clone();
      dirty[0].select(0, 0).fill_(value);
      const Tensor y = family().f(dirty);
      EXPECT_TRUE(same(y.slice(0, 1, y.size(0)).contiguous(), expected.slice(0, 1, y.size(0)).contiguous()))
          << value << ", size " << n;
    }
  }
}

/// NaN, infinities and subnormal numbers come out of float32 where they come out of float64, and on a GPU where they
/// come out of the CPU.
TEST_P(Hostile, SpecialValuesComeOutTheSame) {
  if (!family().special) GTEST_SKIP() << "they spread by what an algorithm adds up";
  const float inf = INFINITY;
  for (int64_t n : {family().sizes[family().sizes.size() / 2], family().sizes.back()}) {
    for (float value : {NAN, inf, -inf, 0.0f, -0.0f, 1e-41f}) {
      Tensors here = operands(n, float32, Device::cpu());
      if (here[0].numel() == 0) continue;
      here[0].reshape({-1}).select(0, here[0].numel() / 2).fill_(value);
      Tensors there;
      for (const Tensor& t : here)
        there.push_back(device().is_cpu() && is_floating_point(t.dtype()) ? t.to(float64) : t.to(device()));
      const Tensors expected = run(here), got = run(there);
      for (std::size_t i = 0; i < got.size(); ++i) {
        const auto a = got[i].to_vector<double>(), b = expected[i].to_vector<double>();
        for (std::size_t k = 0; k < a.size(); ++k) {
          const bool alike =
              std::isnan(a[k]) == std::isnan(b[k]) && std::isinf(static_cast<float>(a[k])) == std::isinf(b[k]);
          ASSERT_TRUE(alike) << value << " at size " << n << ", result " << i << ": " << a[k] << " and " << b[k];
        }
      }
    }
  }
}

TEST_P(Hostile, DevicesAgree) {
  if (device().is_cpu()) GTEST_SKIP() << "compares a GPU with the CPU";
  for (DType dtype : {float32, float64}) {
    const double bound = dtype == float32 ? family().bound : 1e-6 * family().bound;
    for (int64_t n : family().sizes) {
      const Tensors here = operands(n, dtype, Device::cpu());
      Tensors there;
      for (const Tensor& t : here) there.push_back(t.to(device()));
      const Tensors expected = run(here), got = run(there);
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(near(got[i].to(Device::cpu()), expected[i], bound)) << name(dtype) << ", size " << n << ", " << i;
      }
    }
  }
}

std::vector<Place> places() {
  std::vector<Place> all;
  for (std::size_t i = 0; i < families().size(); ++i) {
    all.push_back({i, Device::cpu()});
    all.push_back({i, Device::cuda()});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Families, Hostile, ::testing::ValuesIn(places()), place_name);

// The comparison itself sees one wrong element in any result.
TEST(HostileControl, OneWrongElementIsSeen) {
  const Tensor x = randn({3, 5}), y = x.clone();
  EXPECT_TRUE(same(x, y));
  y.select(0, 1).select(0, 2).add_(full({}, 1e-6));
  EXPECT_FALSE(same(x, y));
  EXPECT_TRUE(same(transposed_copy(x), x));
  EXPECT_FALSE(transposed_copy(x).is_contiguous());
  EXPECT_EQ(offset_copy(x).storage_offset(), 3);
}

}  // namespace
}  // namespace halo
