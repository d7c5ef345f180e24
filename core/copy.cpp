#include <halo/core/copy.h>
#include <halo/core/cuda_backend.h>
#include <halo/core/error.h>
#include <halo/core/strided.h>
#include <halo/core/view.h>

#include <cstring>

namespace halo {
namespace {

template <class To, class From>
To cast(From value) {
  constexpr bool from_half = std::is_same_v<From, BFloat16> || std::is_same_v<From, Float16>;
  constexpr bool to_half = std::is_same_v<To, BFloat16> || std::is_same_v<To, Float16>;
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (from_half) {
    return cast<To>(static_cast<float>(value));
  } else if constexpr (to_half) {
    return To(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From(0);
  } else {
    return static_cast<To>(value);
  }
}

template <class To, class From>
void copy_elements(const Tensor& source, const Tensor& target) {
  const StridedLoop<2> loop(source.shape(), {target.strides(), source.strides()});
  To* const out = target.data<To>();
  const From* const in = source.data<From>();
  loop.for_each_run([&](const auto& offsets, const auto& steps, int64_t count) {
    To* o = out + offsets[0];
    const From* i = in + offsets[1];
    if (std::is_same_v<To, From> && steps[0] == 1 && steps[1] == 1) {
      std::memcpy(static_cast<void*>(o), i, static_cast<std::size_t>(count) * sizeof(To));
      return;
    }
    for (int64_t k = 0; k < count; ++k) o[k * steps[0]] = cast<To>(i[k * steps[1]]);
  });
}

/// Device to device: through dense blocks, since bytes are what crosses.
void copy_across(const Tensor& source, const Tensor& target) {
  const Tensor from = view::dense(convert(source, target.dtype(), source.device()));
  const Tensor to = target.is_contiguous() ? target : empty(target.shape(), target.options());
  cuda::copy_bytes(to.data(), to.device(), from.data(), from.device(), from.nbytes());
  if (!to.is_same(target)) copy(to, target);
}

}  // namespace

void copy(const Tensor& source, const Tensor& target) {
  if (source.shape() != target.shape()) {
    fail("copy: source expected the target's shape ", target.shape(), ", got ", source.shape());
  }
  if (source.numel() == 0) return;
  if (source.device() != target.device()) return copy_across(source, target);
  if (source.device().is_cuda()) return cuda::copy_elements(source, target);
  dispatch_dtype(target.dtype(), [&](auto to) {
    dispatch_dtype(source.dtype(), [&](auto from) {
      copy_elements<typename decltype(to)::type, typename decltype(from)::type>(source, target);
    });
  });
}

void fill(const Tensor& target, const Scalar& value) {
  if (target.numel() == 0) return;
  if (target.device().is_cuda()) return cuda::fill(target, value);
  dispatch_dtype(target.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const T element = value.as<T>();
    T* const out = target.data<T>();
    StridedLoop<1>(target.shape(), {target.strides()}).for_each_run([&](const auto& at, const auto& step, int64_t n) {
      for (int64_t k = 0; k < n; ++k) out[at[0] + k * step[0]] = element;
    });
  });
}

Tensor convert(const Tensor& tensor, DType dtype, Device device) {
  if (tensor.dtype() == dtype && tensor.device() == device) return tensor;
  Tensor result = empty(tensor.shape(), {.dtype = dtype, .device = device});
  copy(tensor, result);
  return result;
}

}  // namespace halo
