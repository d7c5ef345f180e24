// Tensor: a cheap handle on shared storage, with shape, strides, element type and device.
//
// Copying a Tensor copies the handle. Methods that a gradient must pass through (views, conversions, arithmetic) record
// themselves and are therefore defined in autograd/; the plain forms, for code below autograd, are in core/view.h and
// core/copy.h.
#pragma once

#include <halo/core/device.h>
#include <halo/core/dtype.h>
#include <halo/core/hook.h>
#include <halo/core/scalar.h>
#include <halo/core/shape.h>
#include <halo/core/storage.h>

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace halo {

/// What a new tensor is made of: `zeros({2, 3}, {.dtype = float64, .device = Device::cuda()})`.
struct TensorOptions {
  DType dtype = DType::Float32;
  Device device = Device::cpu();
};

/// What autograd hangs on a tensor. Only autograd/ knows what is in it.
struct AutogradState {
  virtual ~AutogradState() = default;
};

class Tensor;
/// Given the gradient of a tensor, returns what takes its place, or the undefined tensor to leave it as it is.
using GradHook = std::function<Tensor(const Tensor& grad)>;

class Tensor {
 public:
  /// The undefined tensor: what an absent bias or gradient is.
  Tensor() = default;
  /// A tensor over `storage`. Checks that every element lies inside it.
  Tensor(std::shared_ptr<Storage> storage, DType dtype, const Shape& shape, const Shape& strides, int64_t offset);

  bool defined() const { return impl_ != nullptr; }

  // --- What it is -----------------------------------------------------------------------------------------------
  const Shape& shape() const { return impl().shape; }
  const Shape& strides() const { return impl().strides; }  ///< in elements
  int64_t size(int64_t dim) const;                         ///< negative dims count from the back
  int rank() const { return impl().shape.rank(); }
  int64_t numel() const { return impl().numel; }
  DType dtype() const { return impl().dtype; }
  Device device() const { return impl().storage->device(); }
  TensorOptions options() const { return {dtype(), device()}; }
  std::size_t nbytes() const { return static_cast<std::size_t>(numel()) * size_of(dtype()); }
  int64_t storage_offset() const { return impl().offset; }  ///< in elements
  /// Dense and row-major; strides of axes of extent 1 do not matter.
  bool is_contiguous() const;
  const std::shared_ptr<Storage>& storage() const { return impl().storage; }
  /// True where both are handles on the same tensor.
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }
  /// "float32 [2, 3] on cpu": for messages.
  std::string describe() const;

  // --- Its elements ---------------------------------------------------------------------------------------------
  /// Address of the first element, on its device.
  void* data() const;
  /// The same, typed. @throws ArgumentError where T is not the dtype.
  template <class T>
  T* data() const {
    check_dtype(dtype_of<T>());
    return static_cast<T*>(data());
  }
  /// The one element of a tensor of one element, converted; copied from a GPU.
  double item() const;
  /// All elements in row-major order, converted to T; copied from a GPU.
  template <class T>
  std::vector<T> to_vector() const;

  // --- Conversions and views (differentiable; defined in autograd/views.cpp) ---------------------------------------
  // A view shares its elements. Negative dims count from the back. @throws ArgumentError for a dim that there is not,
  // and for shapes, indices or steps that do not fit; DeviceError and OutOfMemoryError where a copy finds no room.
  Tensor to(Device device) const;
  Tensor to(DType dtype) const;
  /// This tensor if it is dense, else a dense copy.
  Tensor contiguous() const;
  Tensor clone() const;
  /// The same elements in another shape; a view where strides allow, else a copy. One extent may be -1.
  Tensor reshape(const Shape& shape) const;
  /// Merges dims start..end into one.
  Tensor flatten(int64_t start = 0, int64_t end = -1) const;
  Tensor transpose(int64_t dim0, int64_t dim1) const;
  Tensor permute(const Shape& dims) const;
  /// Stretches extents of 1 (and adds leading axes) with stride 0; -1 keeps an extent.
  Tensor expand(const Shape& shape) const;
  Tensor unsqueeze(int64_t dim) const;
  Tensor squeeze(int64_t dim) const;
  /// Elements start, start+step, ... below end, along dim. Negative bounds count from the back; bounds are clipped.
  Tensor slice(int64_t dim, int64_t start, int64_t end, int64_t step = 1) const;
  /// Drops `dim`, keeping `index` of it.
  Tensor select(int64_t dim, int64_t index) const;
  Tensor operator[](int64_t index) const { return select(0, index); }

  // --- Reductions to one element (differentiable) ------------------------------------------------------------------
  Tensor sum() const;
  Tensor mean() const;

  // --- In place (refused where a gradient would be lost; autograd/inplace.cpp) --------------------------------------
  const Tensor& copy_(const Tensor& source) const;  ///< broadcasts, converts, crosses devices
  const Tensor& fill_(const Scalar& value) const;
  const Tensor& zero_() const { return fill_(0); }
  const Tensor& add_(const Tensor& other, double alpha = 1) const;  ///< += alpha * other
  const Tensor& mul_(double factor) const;

  // --- Autograd (defined in autograd/) ---------------------------------------------------------------------------
  bool requires_grad() const;
  /// Marks a leaf; floating dtypes only.
  const Tensor& requires_grad_(bool on = true) const;
  bool is_leaf() const;
  /// The accumulated gradient of a leaf; undefined before the first backward.
  Tensor grad() const;
  void set_grad(const Tensor& grad) const;
  /// Gradients of this (with `grad`, default 1 for one element) into every leaf it came from.
  void backward(const Tensor& grad = {}, bool retain_graph = false) const;
  /// The same elements without history.
  Tensor detach() const;
  /// Of a leaf: the tensor, which stays the same for all who hold it, from now on has the memory, dtype and device of
  /// `data`, of the same shape. A gradient that no longer fits is dropped.
  void set_data(const Tensor& data) const;
  /// Calls `hook(grad)` in every backward() and grad() that the gradient of this tensor takes part in, once it is
  /// complete; hooks of one tensor run in the order they were registered. The hook returns nothing, or the gradient to
  /// go on with: same shape, dtype and device (else that backward throws ArgumentError). It must not change its
  /// argument in place, which others may share, and is recorded where the gradient is (create_graph). A hook that
  /// holds a leaf it hangs on keeps it alive; on a result it is dropped with what the graph saved.
  template <class Hook>
  HookHandle register_hook(Hook hook) const {
    if constexpr (std::is_void_v<std::invoke_result_t<Hook&, const Tensor&>>) {
      return add_hook([call = std::move(hook)](const Tensor& grad) mutable {
        call(grad);
        return Tensor();
      });
    } else {
      return add_hook(std::move(hook));
    }
  }
  /// Of a leaf: calls `hook` with the leaf, recording off, each time backward() has added to its grad(). An optimiser
  /// can step here, and drop the gradient, while backward goes on.
  HookHandle register_post_accumulate_grad_hook(std::function<void(const Tensor& leaf)> hook) const;
  /// Of a result of an operation: backward() adds its gradient to grad(), as for a leaf.
  void retain_grad() const;

  /// Autograd's own; nobody else reads or writes it.
  const std::shared_ptr<AutogradState>& autograd_state() const { return impl().autograd; }
  void set_autograd_state(std::shared_ptr<AutogradState> state) const { impl().autograd = std::move(state); }
  /// Handles on this very tensor; 1 means nobody else can see it.
  long use_count() const { return impl_.use_count(); }

 private:
  struct Impl {
    std::shared_ptr<Storage> storage;
    DType dtype;
    Shape shape, strides;
    int64_t offset = 0;
    int64_t numel = 0;
    std::shared_ptr<AutogradState> autograd;
  };
  Impl& impl() const {
    if (impl_ == nullptr) undefined();
    return *impl_;
  }
  [[noreturn]] static void undefined();
  void check_dtype(DType wanted) const;
  HookHandle add_hook(GradHook hook) const;
  friend class WeakTensor;

  std::shared_ptr<Impl> impl_;
};

/// A handle that does not keep its tensor.
class WeakTensor {
 public:
  explicit WeakTensor(const Tensor& tensor) : impl_(tensor.impl_) {}
  /// The tensor, or the undefined one where it is gone.
  Tensor lock() const {
    Tensor tensor;
    tensor.impl_ = impl_.lock();
    return tensor;
  }

 private:
  std::weak_ptr<Tensor::Impl> impl_;
};

// --- Creation ----------------------------------------------------------------------------------------------------

/// Elements unspecified (NaN bytes while memory poisoning is on).
Tensor empty(const Shape& shape, const TensorOptions& options = {});
Tensor zeros(const Shape& shape, const TensorOptions& options = {});
Tensor ones(const Shape& shape, const TensorOptions& options = {});
Tensor full(const Shape& shape, const Scalar& value, const TensorOptions& options = {});
Tensor empty_like(const Tensor& like);
Tensor zeros_like(const Tensor& like);
Tensor ones_like(const Tensor& like);
Tensor full_like(const Tensor& like, const Scalar& value);
/// 0, 1, ... n-1.
Tensor arange(int64_t n, const TensorOptions& options = {.dtype = DType::Int64});
/// `steps` values from start to end, both included.
Tensor linspace(double start, double end, int64_t steps, const TensorOptions& options = {});

/// Copies `values` (row-major) into a new tensor of T's dtype on `device`.
template <class T>
Tensor from_vector(const std::vector<T>& values, const Shape& shape, Device device = Device::cpu());
/// A float32 vector: `tensor({1, 2, 3})`.
Tensor tensor(std::initializer_list<float> values);
/// A tensor over memory of the caller, who keeps it alive until `release` is called.
Tensor from_memory(void* data, const Shape& shape, const TensorOptions& options, std::function<void()> release);

/// Prints values (edges of long axes), shape and dtype.
std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

/// An argument of a function as its errors name it. One that is `kOptional` may be undefined.
struct NamedTensor {
  const char* name;
  const Tensor& tensor;
  bool optional = false;
};
inline constexpr bool kOptional = true;
/// @throws ArgumentError ("conv2d: weight is undefined") where an operand that is not optional is undefined.
void check_defined(const char* op, std::initializer_list<NamedTensor> operands);
/// The same for a list, whose members are called "tensor 0" and so on.
void check_all_defined(const char* op, const std::vector<Tensor>& tensors);
/// As check_defined, and lists dtype and device of every operand unless all agree.
void check_same_dtype_and_device(const char* op, std::initializer_list<NamedTensor> operands);
/// The same, and that the dtype is a floating one.
void check_floating(const char* op, std::initializer_list<NamedTensor> operands);
/// @throws ArgumentError where `tensor`, an argument of `op`, is defined and has another shape.
void check_shape(const char* op, const char* argument, const Tensor& tensor, const Shape& expected);
/// @throws ArgumentError where an extent is negative.
void check_extents(const char* op, const Shape& shape);

}  // namespace halo
