#include <halo/ops/binary_functors.h>
#include <halo/ops/cumsum_backend.h>

#include <array>

#include "columns.h"

namespace halo::cpu {

void cumsum(const Tensor& x, int dim, bool reverse, const Tensor& y) {
  dispatch_arithmetic_dtype("cumsum", x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    using Sum = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;
    const T* const in = x.data<T>();
    T* const out = y.data<T>();
    for_each_column_block(x, dim, [&](const ColumnBlock& b) {
      std::array<Sum, ColumnBlock::kWidth> sum{};
      for (int64_t j = 0; j < b.length; ++j) {
        const int64_t row = b.first + (reverse ? b.length - 1 - j : j) * b.stride;
        for (int64_t i = 0; i < b.width; ++i) {
          Sum& s = sum[static_cast<std::size_t>(i)];
          s += static_cast<Sum>(in[row + i]);
          out[row + i] = static_cast<T>(s);
        }
      }
    });
  });
}

}  // namespace halo::cpu
