// DLPack: tensors shared with another library in the same process, without a copy.
// The structures follow the DLPack binary interface, versions 0.x (DLManagedTensor) and 1.x (DLManagedTensorVersioned);
// a pointer to one may be passed to and from any library that speaks it.
#pragma once

#include <halo/core/tensor.h>

#include <cstdint>

namespace halo {
namespace dlpack {

enum DeviceCode : int32_t { kCPU = 1, kCUDA = 2, kCUDAHost = 3 };
enum TypeCode : uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBFloat = 4, kBool = 6 };
enum Flags : uint64_t { kReadOnly = 1, kIsCopied = 2 };

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};

struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  ///< elements; null: dense and row-major
  uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

struct DLPackVersion {
  uint32_t major;
  uint32_t minor;
};

struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
};

}  // namespace dlpack

/// A view of `tensor`'s memory for another library, which calls `deleter` when it is done. Strides are kept; history is
/// not part of it. Work on a GPU must have reached the consumer's stream (synchronize) before it reads.
/// @throws ArgumentError for an undefined tensor.
dlpack::DLManagedTensor* to_dlpack(const Tensor& tensor);
dlpack::DLManagedTensorVersioned* to_dlpack_versioned(const Tensor& tensor);

/// A tensor over the memory of another library; its deleter is called when the last tensor on that memory goes.
/// @throws ArgumentError naming the field that Halo cannot take (dtype, lanes, axes, strides, alignment, read-only
/// memory, which in-place functions could not respect), DeviceError for a GPU that is not there; `managed` then still
/// belongs to the caller.
Tensor from_dlpack(dlpack::DLManagedTensor* managed);
Tensor from_dlpack(dlpack::DLManagedTensorVersioned* managed);

}  // namespace halo
