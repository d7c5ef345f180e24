#include <halo/core/cuda_backend.h>
#include <halo/core/error.h>
#include <halo/io/dlpack.h>

#include <memory>
#include <vector>

namespace halo {
namespace {

using namespace dlpack;

/// What an exported structure points at.
template <class Managed>
struct Export {
  Managed managed;
  Tensor tensor;  // keeps the memory
  Shape shape, strides;
};

DLDataType type_of(DType dtype) {
  const auto bits = static_cast<uint8_t>(8 * size_of(dtype));
  switch (dtype) {
    case DType::Float32:
    case DType::Float64:
    case DType::Float16: return {kFloat, bits, 1};
    case DType::BFloat16: return {kBFloat, bits, 1};
    case DType::Int64:
    case DType::Int32: return {kInt, bits, 1};
    case DType::UInt8: return {kUInt, bits, 1};
    case DType::Bool: return {kBool, bits, 1};
  }
  fail<InternalError>("to_dlpack: unknown dtype");
}

template <class Managed>
Managed* export_tensor(const Tensor& tensor) {
  auto owner = std::make_unique<Export<Managed>>();
  owner->tensor = tensor;
  owner->shape = tensor.shape();
  owner->strides = tensor.strides();
  const Device device = tensor.device();
  owner->managed.dl_tensor = {.data = tensor.data(),
                              .device = {device.is_cuda() ? kCUDA : kCPU, device.index},
                              .ndim = tensor.rank(),
                              .dtype = type_of(tensor.dtype()),
                              .shape = owner->shape.begin(),
                              .strides = owner->strides.begin(),
                              .byte_offset = 0};
  tensor.storage()->lend();
  owner->managed.manager_ctx = owner.get();
  owner->managed.deleter = [](Managed* self) { delete static_cast<Export<Managed>*>(self->manager_ctx); };
  return &owner.release()->managed;
}

DType dtype_from(const DLDataType& type) {
  if (type.lanes == 1) {
    for (DType dtype : {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16, DType::Int64, DType::Int32,
                        DType::UInt8, DType::Bool}) {
      const DLDataType known = type_of(dtype);
      if (known.code == type.code && known.bits == type.bits) return dtype;
    }
  }
  fail("from_dlpack: dtype expected one of Halo's, got code ", int{type.code}, " of ", int{type.bits}, " bits and ",
       type.lanes, " lanes");
}

Device device_from(const DLDevice& device) {
  if (device.device_type == kCPU || device.device_type == kCUDAHost) return Device::cpu();
  if (device.device_type != kCUDA) {
    fail("from_dlpack: device_type expected 1 (CPU), 2 (CUDA) or 3 (CUDA host), got ", device.device_type);
  }
  if (device.device_id < 0 || device.device_id >= cuda::device_count()) {
    fail<DeviceError>("from_dlpack: device_id ", device.device_id, " expected below ", cuda::device_count(),
                      ", the number of GPUs");
  }
  return Device::cuda(device.device_id);
}

/// Elements from the first to the last one, both included.
int64_t span_of(const Shape& shape, const Shape& strides) {
  int64_t last = 0;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] < 0) fail("from_dlpack: shape expected extents of 0 or more, got ", shape);
    if (strides[i] < 0 && shape[i] > 1) fail("from_dlpack: strides expected 0 or more, got ", strides);
  }
  if (shape.numel() == 0) return 0;
  for (int i = 0; i < shape.rank(); ++i) {
    int64_t step = 0;
    if (__builtin_mul_overflow(shape[i] - 1, strides[i], &step) || __builtin_add_overflow(last, step, &last)) {
      fail("from_dlpack: shape ", shape, " and strides ", strides, " pass 2^63 elements");
    }
  }
  return last + 1;
}

template <class Managed>
Tensor import_tensor(Managed* managed) {
  if (managed == nullptr) fail("from_dlpack: managed expected a tensor, got null");
  const DLTensor& t = managed->dl_tensor;
  if (t.ndim < 0 || t.ndim > kMaxRank) fail("from_dlpack: ndim expected 0 to ", kMaxRank, ", got ", t.ndim);
  const DType dtype = dtype_from(t.dtype);
  const Device device = device_from(t.device);
  const auto axes = static_cast<std::size_t>(t.ndim);
  const Shape shape(std::span<const int64_t>(t.shape, axes));
  const Shape strides =
      t.strides == nullptr ? contiguous_strides(shape) : Shape(std::span<const int64_t>(t.strides, axes));
  const int64_t span = span_of(shape, strides);
  const auto element = static_cast<int64_t>(size_of(dtype));
  if (span > INT64_MAX / element) fail("from_dlpack: shape ", shape, " passes 2^63 bytes");
  if (t.data == nullptr && span > 0) fail("from_dlpack: data expected memory, got null");
  char* const data = t.data == nullptr ? nullptr : static_cast<char*>(t.data) + t.byte_offset;
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(element) != 0) {
    fail("from_dlpack: data expected aligned to ", element, " bytes, the size of ", name(dtype));
  }
  // Nothing may throw once the deleter has an owner, or it would run for a tensor that the caller keeps.
  const auto storage = std::make_shared<Storage>(data, static_cast<std::size_t>(span * element), device, [managed] {
    if (managed->deleter != nullptr) managed->deleter(managed);
  });
  return Tensor(storage, dtype, shape, strides, 0);
}

}  // namespace

DLManagedTensor* to_dlpack(const Tensor& tensor) { return export_tensor<DLManagedTensor>(tensor); }

DLManagedTensorVersioned* to_dlpack_versioned(const Tensor& tensor) {
  auto* managed = export_tensor<DLManagedTensorVersioned>(tensor);
  managed->version = {1, 0};
  managed->flags = 0;
  return managed;
}

Tensor from_dlpack(DLManagedTensor* managed) { return import_tensor(managed); }

Tensor from_dlpack(DLManagedTensorVersioned* managed) {
  if (managed == nullptr) fail("from_dlpack: managed expected a tensor, got null");
  if (managed->version.major != 1) fail("from_dlpack: version expected 1.x, got ", managed->version.major, ".x");
  if ((managed->flags & kReadOnly) != 0) fail("from_dlpack: expected writable memory, got read-only; copy it first");
  return import_tensor(managed);
}

}  // namespace halo
