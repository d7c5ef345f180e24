#include <halo/core/copy.h>
#include <halo/core/cuda_backend.h>
#include <halo/core/error.h>
#include <halo/core/tensor.h>
#include <halo/core/view.h>

#include <cstring>
#include <numeric>
#include <utility>

namespace halo {
namespace {

/// Offset of the last element reachable from offset 0, or -1 where there is none.
int64_t last_element(const Shape& shape, const Shape& strides) {
  int64_t last = 0;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == 0) return -1;
    last += (shape[i] - 1) * strides[i];
  }
  return last;
}

}  // namespace

Tensor::Tensor(std::shared_ptr<Storage> storage, DType dtype, const Shape& shape, const Shape& strides, int64_t offset)
    : impl_(std::make_shared<Impl>()) {
  for (int64_t extent : shape) {
    if (extent < 0) fail("Tensor: shape expected extents of 0 or more, got ", shape);
  }
  const int64_t elements = static_cast<int64_t>(storage->bytes() / size_of(dtype));
  if (strides.rank() != shape.rank() || offset < 0 ||
      last_element(shape, strides) + offset >= elements + (shape.numel() == 0)) {
    fail("Tensor: shape ", shape, " strides ", strides, " offset ", offset, " expected to lie within ", elements,
         " elements of ", name(dtype));
  }
  impl_->numel = shape.numel();
  impl_->storage = std::move(storage);
  impl_->dtype = dtype;
  impl_->shape = shape;
  impl_->strides = strides;
  impl_->offset = offset;
}

void Tensor::undefined() { fail("Tensor: expected a defined tensor, got the undefined one"); }

void Tensor::check_dtype(DType wanted) const {
  if (dtype() != wanted) fail("data: expected dtype ", name(dtype()), " (the tensor's), got ", name(wanted));
}

int64_t Tensor::size(int64_t dim) const { return shape()[normalize_axis("size", dim, rank())]; }

bool Tensor::is_contiguous() const {
  int64_t step = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    if (shape()[i] == 0) return true;
    if (shape()[i] != 1 && strides()[i] != step) return false;
    step *= shape()[i];
  }
  return true;
}

std::string Tensor::describe() const {
  if (!defined()) return "undefined";
  return concat(name(dtype()), " ", shape(), " on ", device());
}

void* Tensor::data() const {
  const Impl& t = impl();
  return static_cast<char*>(t.storage->data()) + t.offset * static_cast<int64_t>(size_of(t.dtype));
}

double Tensor::item() const {
  if (numel() != 1) fail("item: expected a tensor of one element, got ", describe());
  return to_vector<double>()[0];
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  std::vector<T> values(static_cast<std::size_t>(numel()));
  const Tensor host = view::dense(convert(*this, dtype_of<T>(), Device::cpu()));
  if (!values.empty()) std::memcpy(values.data(), host.data(), host.nbytes());
  return values;
}
template <>
std::vector<bool> Tensor::to_vector<bool>() const {  // std::vector<bool> has no contiguous elements
  const auto bytes = convert(*this, DType::Bool, Device::cpu()).to_vector<uint8_t>();
  return {bytes.begin(), bytes.end()};
}
template std::vector<float> Tensor::to_vector<float>() const;
template std::vector<double> Tensor::to_vector<double>() const;
template std::vector<int64_t> Tensor::to_vector<int64_t>() const;
template std::vector<int32_t> Tensor::to_vector<int32_t>() const;
template std::vector<uint8_t> Tensor::to_vector<uint8_t>() const;
template std::vector<BFloat16> Tensor::to_vector<BFloat16>() const;
template std::vector<Float16> Tensor::to_vector<Float16>() const;

Tensor empty(const Shape& shape, const TensorOptions& options) {
  check_extents("empty", shape);
  const int64_t numel = shape.numel();
  const auto element = static_cast<int64_t>(size_of(options.dtype));
  if (numel > INT64_MAX / element) fail("empty: shape ", shape, " of ", name(options.dtype), " passes 2^63 bytes");
  auto storage = std::make_shared<Storage>(static_cast<std::size_t>(numel * element), options.device);
  return Tensor(std::move(storage), options.dtype, shape, contiguous_strides(shape), 0);
}

namespace {

Tensor filled(const char* op, const Shape& shape, const Scalar& value, const TensorOptions& options) {
  check_extents(op, shape);
  Tensor result = empty(shape, options);
  fill(result, value);
  return result;
}

}  // namespace

Tensor full(const Shape& shape, const Scalar& value, const TensorOptions& options) {
  return filled("full", shape, value, options);
}
Tensor zeros(const Shape& shape, const TensorOptions& options) { return filled("zeros", shape, 0, options); }
Tensor ones(const Shape& shape, const TensorOptions& options) { return filled("ones", shape, 1, options); }
Tensor empty_like(const Tensor& like) { return empty(like.shape(), like.options()); }
Tensor zeros_like(const Tensor& like) { return zeros(like.shape(), like.options()); }
Tensor ones_like(const Tensor& like) { return ones(like.shape(), like.options()); }
Tensor full_like(const Tensor& like, const Scalar& value) { return full(like.shape(), value, like.options()); }

Tensor arange(int64_t n, const TensorOptions& options) {
  if (n < 0) fail("arange: n expected 0 or more, got ", n);
  const Tensor whole = empty({n}, {.dtype = DType::Int64, .device = options.device});
  if (options.device.is_cuda()) {
    cuda::arange(whole);
  } else {
    std::iota(whole.data<int64_t>(), whole.data<int64_t>() + n, int64_t{0});
  }
  return convert(whole, options.dtype, options.device);
}

Tensor linspace(double start, double end, int64_t steps, const TensorOptions& options) {
  if (steps < 0) fail("linspace: steps expected 0 or more, got ", steps);
  const Tensor values = empty({steps}, {.dtype = DType::Float64});
  auto* const to = values.data<double>();
  const double step = steps > 1 ? (end - start) / static_cast<double>(steps - 1) : 0.0;
  for (int64_t i = 0; i < steps; ++i) {
    // The second half counts back from the end, so that the last value is exactly `end`.
    const bool front = i < steps - i;
    to[i] = front ? start + step * static_cast<double>(i) : end - step * static_cast<double>(steps - 1 - i);
  }
  return convert(values, options.dtype, options.device);
}

template <class T>
Tensor from_vector(const std::vector<T>& values, const Shape& shape, Device device) {
  if (static_cast<int64_t>(values.size()) != shape.numel()) {
    fail("from_vector: shape ", shape, " expected ", shape.numel(), " values, got ", values.size());
  }
  Tensor host = empty(shape, {.dtype = dtype_of<T>()});
  if constexpr (std::is_same_v<T, bool>) {
    std::copy(values.begin(), values.end(), host.data<bool>());
  } else if (!values.empty()) {
    std::memcpy(host.data(), values.data(), host.nbytes());
  }
  return convert(host, host.dtype(), device);
}
template Tensor from_vector(const std::vector<float>&, const Shape&, Device);
template Tensor from_vector(const std::vector<double>&, const Shape&, Device);
template Tensor from_vector(const std::vector<int64_t>&, const Shape&, Device);
template Tensor from_vector(const std::vector<int32_t>&, const Shape&, Device);
template Tensor from_vector(const std::vector<uint8_t>&, const Shape&, Device);
template Tensor from_vector(const std::vector<bool>&, const Shape&, Device);
template Tensor from_vector(const std::vector<BFloat16>&, const Shape&, Device);
template Tensor from_vector(const std::vector<Float16>&, const Shape&, Device);

Tensor tensor(std::initializer_list<float> values) {
  return from_vector(std::vector<float>(values), {static_cast<int64_t>(values.size())});
}

Tensor from_memory(void* data, const Shape& shape, const TensorOptions& options, std::function<void()> release) {
  const auto bytes = static_cast<std::size_t>(shape.numel()) * size_of(options.dtype);
  auto storage = std::make_shared<Storage>(data, bytes, options.device, std::move(release));
  return Tensor(std::move(storage), options.dtype, shape, contiguous_strides(shape), 0);
}

void check_defined(const char* op, std::initializer_list<NamedTensor> operands) {
  for (const NamedTensor& t : operands) {  // NOLINT(clang-analyzer-core.NullDereference): a list that exists
    if (!t.optional && !t.tensor.defined()) fail(op, ": ", t.name, " is undefined");
  }
}

void check_all_defined(const char* op, const std::vector<Tensor>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) fail(op, ": tensor ", i, " is undefined");
  }
}

void check_same_dtype_and_device(const char* op, std::initializer_list<NamedTensor> operands) {
  check_defined(op, operands);
  const NamedTensor* first = nullptr;
  bool agree = true;
  for (const NamedTensor& t : operands) {  // NOLINT(clang-analyzer-core.NullDereference): a list that exists
    if (!t.tensor.defined()) continue;
    if (first == nullptr) first = &t;
    agree = agree && t.tensor.dtype() == first->tensor.dtype() && t.tensor.device() == first->tensor.device();
  }
  if (agree) return;
  std::string text;
  for (const NamedTensor& t : operands) {
    if (t.tensor.defined()) text += concat(text.empty() ? "" : ", ", t.name, " ", t.tensor.describe());
  }
  fail(op, ": operands expected one dtype and one device, got ", text);
}

void check_shape(const char* op, const char* argument, const Tensor& tensor, const Shape& expected) {
  if (tensor.defined() && tensor.shape() != expected) {
    fail(op, ": ", argument, " expects shape ", expected, ", got ", tensor.shape());
  }
}

void check_extents(const char* op, const Shape& shape) {
  for (const int64_t extent : shape) {
    if (extent < 0) fail(op, ": shape expected extents of 0 or more, got ", shape);
  }
}

void check_floating(const char* op, std::initializer_list<NamedTensor> operands) {
  check_same_dtype_and_device(op, operands);
  for (const NamedTensor& t : operands) {  // NOLINT(clang-analyzer-core.NullDereference): a list that exists
    if (t.tensor.defined() && !is_floating_point(t.tensor.dtype())) {
      fail(op, ": ", t.name, " expected a floating dtype, got ", t.tensor.describe());
    }
  }
}

}  // namespace halo
