// The door from ops/ to a backend: one call, on the CPU or on a GPU.
#pragma once

#include <halo/core/tensor.h>

#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace halo::ops {

/// Whether every GPU call is repeated on the CPU and compared; on at start where the environment has HALO_CHECK=1.
/// Slow: for finding the first operation that goes wrong.
bool backend_checking();
void set_backend_checking(bool on);

/// A copy of `tensor` on the CPU that shares nothing with it; undefined stays undefined.
Tensor host_copy(const Tensor& tensor);

/// Compares up to 4096 elements, spread evenly. @throws InternalError naming `op`, the argument, the element and both
/// values where they differ by more than rounding (integers: at all).
void compare_with_host(const char* op, Device device, int argument, const Tensor& got, const Tensor& expected);

/// Calls f(tensor) for every tensor that an argument holds: a Tensor, a vector, or a struct that has
/// for_each_tensor(f).
template <class T, class F>
void for_each_tensor(T& argument, F&& f) {
  if constexpr (std::is_same_v<std::remove_const_t<T>, Tensor>) {
    f(argument);
  } else if constexpr (requires { argument.for_each_tensor(f); }) {
    argument.for_each_tensor(f);
  } else if constexpr (requires {
                         typename T::value_type;
                         argument.begin();
                       }) {
    for (auto& element : argument) for_each_tensor(element, f);
  }
}

/// All tensors that `arguments` hold, in order.
template <class... Args>
std::vector<Tensor> tensors_of(Args... arguments) {
  std::vector<Tensor> tensors;
  (for_each_tensor(arguments, [&](Tensor& t) { tensors.push_back(t); }), ...);
  return tensors;
}

/// Calls the function of `device`. Both have the same parameters.
template <class... Params, class... Args>
void run_backend(const char* op, Device device, void (*cpu)(Params...), void (*cuda)(Params...), Args&&... args) {
  if (device.is_cpu()) return cpu(args...);
  if (!backend_checking()) return cuda(args...);
  std::tuple<std::decay_t<Params>...> host(args...);
  std::apply([](auto&... arguments) { (for_each_tensor(arguments, [](Tensor& t) { t = host_copy(t); }), ...); }, host);
  cuda(args...);
  std::apply(cpu, host);
  const auto got = tensors_of(args...);
  const auto expected = std::apply([](const auto&... arguments) { return tensors_of(arguments...); }, host);
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i].defined()) compare_with_host(op, device, static_cast<int>(i), got[i], expected[i]);
  }
}

}  // namespace halo::ops
