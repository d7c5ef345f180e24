// The door from ops/ to a backend: one call, on the CPU or on a GPU.
#pragma once

#include <halo/core/tensor.h>

#include <new>
#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace halo::ops {

/// Whether every GPU call is repeated on the CPU and compared; on at start where the environment has HALO_CHECK=1.
/// Slow: for finding the first operation that goes wrong.
bool backend_checking();
void set_backend_checking(bool on);

/// A copy of `tensor` on the CPU with the same strides that shares nothing with it; undefined stays undefined.
Tensor host_copy(const Tensor& tensor);

/// The difference, as a share of the root mean square of a result, that rounding explains in a function of these
/// arguments: that of the shortest type among them.
double rounding_of(const std::vector<Tensor>& arguments);

/// Compares up to 4096 elements, spread evenly. @throws InternalError naming `op`, the argument, the element and both
/// values where they differ by more than `share` of the root mean square (integers: at all).
void compare_with_host(const char* op, Device device, int argument, const Tensor& got, const Tensor& expected,
                       double share);

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

/// Marks an argument of run_backend that the function changes.
template <class T>
struct Writes {
  T& argument;
};
template <class T>
Writes<T> writes(T& argument) {
  return {argument};
}

/// Which backends have kernels of their own for bfloat16 and float16. Elsewhere float32 ones run on converted copies,
/// so that every op computes half types with float32 arithmetic and one rounding at the end.
enum class HalfKernels { None, Cuda, Everywhere };

/// A half-precision tensor as a float32 copy, any other as it is.
Tensor widened(const Tensor& tensor);
/// Copies what widened(tensor) was given into `tensor`, where that was a copy.
void narrow_into(const Tensor& wide, const Tensor& tensor);

namespace detail {

template <class T>
T& plain(T& argument) {
  return argument;
}
template <class T>
T& plain(Writes<T> marked) {
  return marked.argument;
}

template <class T>
bool holds_half(T argument) {
  bool found = false;
  for_each_tensor(argument, [&](const Tensor& t) { found = found || (t.defined() && is_half(t.dtype())); });
  return found;
}

/// Copies of the arguments with every tensor replaced by f(tensor).
template <class... Params, class F, class... Args>
std::tuple<std::decay_t<Params>...> replaced(F&& f, Args&... args) {
  std::tuple<std::decay_t<Params>...> copies(args...);
  std::apply([&](auto&... arguments) { (for_each_tensor(arguments, [&](Tensor& t) { t = f(t); }), ...); }, copies);
  return copies;
}

template <class T>
constexpr bool is_written = requires(T t) {
  []<class U>(Writes<U>) {}(t);
};

template <class T, class Wide>
void narrow_back(const T& argument, const Wide& wide) {
  if constexpr (is_written<T>) {
    const auto from = tensors_of(wide), to = tensors_of(argument.argument);
    for (std::size_t i = 0; i < to.size(); ++i) narrow_into(from[i], to[i]);
  }
}

}  // namespace detail

/// function(args...) on float32 copies of what is half precision; what is marked writes(argument) is rounded back.
template <class... Params, class... Args>
void run_widened(void (*function)(Params...), Args&... args) {
  auto wide = detail::replaced<Params...>(widened, detail::plain(args)...);
  std::apply(function, wide);
  std::apply([&](auto&... arguments) { (detail::narrow_back(args, arguments), ...); }, wide);
}

/// @throws OutOfMemoryError naming `op`.
[[noreturn]] void fail_for_memory(const char* op);

/// Calls the function of `device`; both have the same parameters. What it changes is passed as writes(argument).
template <HalfKernels kHalf = HalfKernels::None, class... Params, class... Args>
void run_backend(const char* op, Device device, void (*cpu)(Params...), void (*cuda)(Params...), Args&&... args) {
  static_assert((detail::is_written<std::decay_t<Args>> || ...), "mark what the function changes: writes(argument)");
  const bool on_cpu = device.is_cpu(), half = (detail::holds_half(detail::plain(args)) || ...);
  const auto run = [&] {
    const bool native = kHalf == HalfKernels::Everywhere || (kHalf == HalfKernels::Cuda && !on_cpu);
    try {
      if (half && !native) return run_widened(on_cpu ? cpu : cuda, args...);
      (on_cpu ? cpu : cuda)(detail::plain(args)...);
    } catch (const std::bad_alloc&) {  // of room to work in
      fail_for_memory(op);
    } catch (const std::length_error&) {
      fail_for_memory(op);
    }
  };
  if (on_cpu || !backend_checking()) return run();
  const auto to_host = [](const Tensor& t) {
    return kHalf == HalfKernels::Everywhere ? host_copy(t) : widened(host_copy(t));
  };
  auto host = detail::replaced<Params...>(to_host, detail::plain(args)...);
  run();
  std::apply(cpu, host);
  const auto got = tensors_of(detail::plain(args)...);
  const auto expected = std::apply([](const auto&... arguments) { return tensors_of(arguments...); }, host);
  const double share = rounding_of(got);
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i].defined()) compare_with_host(op, device, static_cast<int>(i), got[i], expected[i], share);
  }
}

}  // namespace halo::ops
