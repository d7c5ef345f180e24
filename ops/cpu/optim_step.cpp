#include <halo/core/strided.h>
#include <halo/ops/optim_step_backend.h>

#include <array>
#include <utility>

namespace halo::cpu {
namespace {

/// Calls f(element of each tensor) for tensors of one shape, by reference.
template <class T, std::size_t N, class F>
void for_each_element(const std::array<const Tensor*, N>& tensors, F f) {
  if (tensors[0]->numel() == 0) return;
  std::array<T*, N> data;
  std::array<Shape, N> strides;
  for (std::size_t k = 0; k < N; ++k) {
    data[k] = tensors[k]->template data<T>();
    strides[k] = tensors[k]->strides();
  }
  const auto run = [&]<std::size_t... K>(std::index_sequence<K...>) {
    StridedLoop<N>(tensors[0]->shape(), strides)
        .for_each_run([&](const auto& offsets, const auto& steps, int64_t count) {
          const std::array<T*, N> at{(data[K] + offsets[K])...};
          const F local = f;
          if (((steps[K] == 1) && ...)) {
#pragma GCC ivdep
            for (int64_t i = 0; i < count; ++i) local(at[K][i]...);
          } else {
            for (int64_t i = 0; i < count; ++i) local(at[K][i * steps[K]]...);
          }
        });
  };
  run(std::make_index_sequence<N>());
}

}  // namespace

// The updates are copied into the loops: what is stored cannot change them then, so that loops become vectors.

void sgd_step(const SgdUpdate& update, const std::vector<SgdTensors>& tensors) {
  for (const SgdTensors& t : tensors) {
    dispatch_float("sgd_step", t.param.dtype(), [&](auto type) {
      using T = typename decltype(type)::type;
      if (update.momentum == 0) {
        for_each_element<T, 2>({&t.param, &t.grad}, [update](T& param, T& grad) {
          T none = 0;
          update.apply(param, grad, none);
        });
      } else {
        for_each_element<T, 3>({&t.param, &t.grad, &t.velocity},
                               [update](T& param, T& grad, T& velocity) { update.apply(param, grad, velocity); });
      }
    });
  }
}

void adam_step(const AdamUpdate& update, const std::vector<AdamTensors>& tensors) {
  for (const AdamTensors& t : tensors) {
    const AdamUpdate::Correction correction = update.correction(t.step);
    dispatch_float("adam_step", t.param.dtype(), [&](auto type) {
      using T = typename decltype(type)::type;
      for_each_element<T, 4>({&t.param, &t.grad, &t.exp_avg, &t.exp_avg_sq},
                             [update, correction](T& param, T& grad, T& exp_avg, T& exp_avg_sq) {
                               update.apply(correction, param, grad, exp_avg, exp_avg_sq);
                             });
    });
  }
}

}  // namespace halo::cpu
