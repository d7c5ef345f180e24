#include <halo/core/copy.h>
#include <halo/core/error.h>
#include <halo/core/precision.h>
#include <halo/core/view.h>
#include <halo/ops/backend.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace halo::ops {
namespace {

std::atomic<bool>& checking() {
  static std::atomic<bool> on = [] {
    const char* value = std::getenv("HALO_CHECK");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return on;
}

/// Allowed difference as a share of the root mean square of what is expected: rounding of long sums, not a wrong index.
double rounding(DType dtype) {
  switch (dtype) {
    case DType::Float64: return 1e-9;
    case DType::Float32: return precision() == Precision::TF32 ? 2e-2 : 1e-4;
    case DType::BFloat16: return 5e-2;
    case DType::Float16: return 1e-2;
    default: return 0;
  }
}

std::vector<double> sample(const Tensor& t) {
  constexpr int64_t kMost = 4096;
  const Tensor flat = view::reshape(t, {t.numel()});
  return view::slice(flat, 0, 0, t.numel(), std::max<int64_t>(1, t.numel() / kMost)).to_vector<double>();
}

bool agree(double a, double b, double bound) {
  return a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= bound;
}

/// A copy with the strides of `t`: some functions are told the strides, apart from the tensor.
Tensor copy_with_layout(const Tensor& t, DType dtype, Device device) {
  Tensor from = t;
  int64_t span = t.numel() == 0 ? 0 : 1;
  for (int axis = 0; axis < t.rank() && span > 0; ++axis) {
    if (t.strides()[axis] == 0) from = view::slice(from, axis, 0, 1);  // the elements that an expanded axis repeats
    span += (t.size(axis) - 1) * t.strides()[axis];
  }
  const auto storage = empty({span}, {.dtype = dtype, .device = device}).storage();
  copy(from, Tensor(storage, dtype, from.shape(), from.strides(), 0));
  return Tensor(storage, dtype, t.shape(), t.strides(), 0);
}

}  // namespace

bool backend_checking() { return checking(); }
void set_backend_checking(bool on) { checking() = on; }

Tensor host_copy(const Tensor& tensor) {
  return tensor.defined() ? copy_with_layout(tensor, tensor.dtype(), Device::cpu()) : Tensor();
}

Tensor widened(const Tensor& tensor) {
  if (!tensor.defined() || !is_half(tensor.dtype())) return tensor;
  return copy_with_layout(tensor, DType::Float32, tensor.device());
}

void narrow_into(const Tensor& wide, const Tensor& tensor) {
  if (tensor.defined() && is_half(tensor.dtype())) copy(wide, tensor);
}

void fail_for_memory(const char* op) { fail<OutOfMemoryError>(op, ": found no memory to work in"); }

double rounding_of(const std::vector<Tensor>& arguments) {
  double largest = 0;
  for (const Tensor& t : arguments) largest = std::max(largest, t.defined() ? rounding(t.dtype()) : 0);
  return largest;
}

void compare_with_host(const char* op, Device device, int argument, const Tensor& got, const Tensor& expected,
                       double share) {
  const auto a = sample(got), b = sample(expected);
  double square = 0;
  int64_t finite = 0;
  for (double v : b) {
    if (!std::isfinite(v)) continue;
    square += v * v;
    ++finite;
  }
  const double bound = (is_floating_point(got.dtype()) ? share : 0) *
                       std::sqrt(square / static_cast<double>(std::max<int64_t>(1, finite)));
  const auto step =
      std::max<std::size_t>(1, static_cast<std::size_t>(got.numel()) / std::max<std::size_t>(1, a.size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (agree(a[i], b[i], bound)) continue;
    fail<InternalError>("HALO_CHECK: ", op, " on ", device, " disagrees with the CPU: tensor ", argument, " (",
                        got.describe(), "), element ", i * step, " is ", a[i], ", expected ", b[i], " within ", bound);
  }
}

}  // namespace halo::ops
