#include <halo/core/strided.h>
#include <halo/ops/dropout_backend.h>

namespace halo::cpu {

void dropout(double p, PhiloxState state, const Tensor& x, const Tensor& y) {
  if (x.numel() == 0) return;
  dispatch_float("dropout", x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const T* const in = x.data<T>();
    T* const out = y.data<T>();
    const auto limit = static_cast<float>(p);
    const T scale = static_cast<T>(1 / (1 - p));
    StridedLoop<2>(x.shape(), {y.strides(), x.strides()})
        .for_each_run([&](const auto& at, const auto& step, int64_t n) {
          PhiloxBlock block{};
          for (int64_t i = 0; i < n; ++i) {
            const int64_t position = at[0] + i * step[0];  // y is dense: its offset is the row-major position
            const auto draw = static_cast<uint64_t>(position);
            if (i == 0 || draw % 4 == 0) block = philox(state, draw / 4);
            const float uniform = static_cast<float>(block.v[draw % 4] >> 8) * 0x1p-24f;  // random_uniform(state, draw)
            out[position] = uniform < limit ? T(0) : in[at[1] + i * step[1]] * scale;
          }
        });
  });
}

}  // namespace halo::cpu
