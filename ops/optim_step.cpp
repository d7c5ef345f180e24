#include <halo/core/error.h>
#include <halo/ops/backend.h>
#include <halo/ops/optim_step.h>
#include <halo/ops/optim_step_backend.h>

namespace halo::ops {
namespace {

/// Checks one parameter against what goes with it.
void check_entry(const char* op, const Tensor& param, std::initializer_list<NamedTensor> others) {
  if (param.dtype() != DType::Float32 && param.dtype() != DType::Float64) {
    fail(op, ": param expected float32 or float64, got ", param.describe());
  }
  for (const NamedTensor& other : others) {
    check_same_dtype_and_device(op, {{"param", param}, other});
    if (other.tensor.shape() != param.shape()) {
      fail(op, ": ", other.name, " expected shape ", param.shape(), ", got ", other.tensor.shape());
    }
  }
}

/// Tells autograd that `tensor` is about to change, and refuses one whose elements share memory.
void begin_change(const char* op, const Tensor& tensor) {
  for (int i = 0; i < tensor.rank(); ++i) {
    if (tensor.shape()[i] > 1 && tensor.strides()[i] == 0) {
      fail(op, ": param and state expected elements with memory of their own, got an expanded view ",
           tensor.describe());
    }
  }
  tensor.storage()->bump_version();
}

template <class Entry>
Device device_of(const char* op, const std::vector<Entry>& tensors) {
  const Device device = tensors[0].param.device();
  for (const Entry& entry : tensors) {
    if (!(entry.param.device() == device)) {
      fail(op, ": tensors expected on one device, got ", device, " and ", entry.param.device());
    }
  }
  return device;
}

}  // namespace

void sgd_step(const SgdUpdate& update, const std::vector<SgdTensors>& tensors) {
  if (tensors.empty()) return;
  for (const SgdTensors& t : tensors) {
    check_entry("sgd_step", t.param, {{"grad", t.grad}});
    if (update.momentum != 0) check_entry("sgd_step", t.param, {{"velocity", t.velocity}});
  }
  const Device device = device_of("sgd_step", tensors);
  for (const SgdTensors& t : tensors) {
    begin_change("sgd_step", t.param);
    if (update.momentum != 0) begin_change("sgd_step", t.velocity);
  }
  run_backend("sgd_step", device, cpu::sgd_step, cuda::sgd_step, update, writes(tensors));
}

void adam_step(const AdamUpdate& update, const std::vector<AdamTensors>& tensors) {
  if (tensors.empty()) return;
  for (const AdamTensors& t : tensors) {
    check_entry("adam_step", t.param, {{"grad", t.grad}, {"exp_avg", t.exp_avg}, {"exp_avg_sq", t.exp_avg_sq}});
    if (t.step < 1) fail("adam_step: step expected 1 or more, got ", t.step);
  }
  const Device device = device_of("adam_step", tensors);
  for (const AdamTensors& t : tensors) {
    for (const Tensor* changed : {&t.param, &t.exp_avg, &t.exp_avg_sq}) begin_change("adam_step", *changed);
  }
  run_backend("adam_step", device, cpu::adam_step, cuda::adam_step, update, writes(tensors));
}

}  // namespace halo::ops
