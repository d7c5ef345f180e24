// Padding of the last one to three axes.
#pragma once

#include <halo/core/host_device.h>
#include <halo/core/tensor.h>

#include <array>

namespace halo {

enum class PadMode : uint8_t { Constant, Reflect, Replicate, Circular };

/// Sizes of one padding: tensors seen as [outer, three axes], absent axes with extent 1 and no padding in front.
struct PadProblem {
  PadMode mode = PadMode::Constant;
  int64_t outer = 1;
  std::array<int64_t, 3> input{1, 1, 1}, before{0, 0, 0}, output{1, 1, 1};
};

/// The input position on an axis of `extent` that output position `o` takes; -1 for the constant outside. Reflection
/// leaves the edge out (before, after < extent); the circle goes round once (before, after <= extent).
HALO_HOST_DEVICE inline int64_t pad_source(PadMode mode, int64_t o, int64_t before, int64_t extent) {
  const int64_t i = o - before;
  if (i >= 0 && i < extent) return i;
  switch (mode) {
    case PadMode::Constant: return -1;
    case PadMode::Reflect: return i < 0 ? -i : 2 * (extent - 1) - i;
    case PadMode::Replicate: return i < 0 ? 0 : extent - 1;
    case PadMode::Circular: return i < 0 ? i + extent : i - extent;
  }
  return -1;
}

namespace ops {

/// `pad` lists before and after of the last axis, then of the one in front of it, and so on (PyTorch's order): 2, 4 or
/// 6 numbers of 0 or more. `value` is Constant's. Any dtype.
Tensor pad(const Tensor& x, const IntList& pad, PadMode mode = PadMode::Constant, const Scalar& value = 0);

/// The adjoint: gradient of an input of `shape` for the upstream gradient g of the padded tensor.
Tensor pad_backward(const Tensor& g, const Shape& shape, const IntList& pad, PadMode mode);

}  // namespace ops
}  // namespace halo
