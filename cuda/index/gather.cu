// Reading by index. An index outside reads as NaN, or 0 for integers.
#include <halo/ops/index_backend.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "../device/map.cuh"

namespace halo::cuda {
namespace {

/// The bits of NaN in `dtype`, 0 for integers and bool.
uint64_t missing_bits(DType dtype) {
  return dispatch_dtype(dtype, [&]<class T>(std::type_identity<T>) -> uint64_t {
    if constexpr (std::is_integral_v<T>) {
      return 0;
    } else if constexpr (std::is_same_v<T, double>) {
      return std::bit_cast<uint64_t>(static_cast<double>(NAN));
    } else if constexpr (std::is_same_v<T, float>) {
      return std::bit_cast<uint32_t>(NAN);
    } else {
      return T(NAN).bits;
    }
  });
}

template <class T>
struct IndexSelect {
  const T* x;
  const int64_t* index;
  int64_t extent;
  Divide inner, chosen;
  T missing;
  __device__ T operator()(int64_t i) const {
    const int64_t at = inner.split(i), j = chosen.split(i), v = index[j];
    return v < 0 || v >= extent ? missing : x[(i * extent + v) * inner.divisor + at];
  }
};

template <class T>
struct Gather {
  const T* x;
  const int64_t* index;
  int64_t extent, stride;  ///< of x along the indexed axis
  Walk<1> walk;            ///< where x has the other coordinates
  T missing;
  __device__ T operator()(int64_t i) const {
    const int64_t v = index[i];
    if (v < 0 || v >= extent) return missing;
    int64_t base[1];
    walk.locate(i, base);
    return x[base[0] + v * stride];
  }
};

}  // namespace

void index_select(const char* op, const Tensor& x, int dim, const Tensor& index, const Tensor& y) {
  if (y.numel() == 0) return;
  int64_t inner = 1;
  for (int axis = dim + 1; axis < x.rank(); ++axis) inner *= x.shape()[axis];
  const auto select = [&]<int kEach, class T>(std::integral_constant<int, kEach>, T missing) {
    const auto elements = static_cast<int64_t>(sizeof(T) / size_of(x.dtype()));
    const int64_t count = y.numel() / elements;
    const IndexSelect<T> f{static_cast<const T*>(x.data()), index.data<int64_t>(),        x.shape()[dim],
                           Divide(inner / elements, count), Divide(index.numel(), count), missing};
    const DeviceScope scope(y.device());
    launch(op, generate_kernel<kEach, IndexSelect<T>, T>, map_blocks((count + kEach - 1) / kEach), kMapThreads, 0,
           scope.stream(), count, false, f, static_cast<T*>(y.data()));
  };
  dispatch_size(x.dtype(), [&]<class T>(std::type_identity<T>) {
    const auto missing = static_cast<T>(missing_bits(x.dtype()));
    constexpr int kSize = kWide<T>;
    const bool packs = inner % kSize == 0 && is_aligned<T, kSize>(static_cast<const T*>(x.data())) &&
                       is_aligned<T, kSize>(static_cast<const T*>(y.data()));
    if (!packs) return select(std::integral_constant<int, 4>{}, missing);
    uint64_t words[2];  // of a pack without an index
    for (int k = 0; k < kSize; ++k) std::memcpy(reinterpret_cast<T*>(words) + k, &missing, sizeof(T));
    select(std::integral_constant<int, 2>{}, std::bit_cast<Pack<uint64_t, 2>>(words));
  });
}

void gather(const char* op, const Tensor& x, int dim, const Tensor& index, const Tensor& y) {
  if (y.numel() == 0) return;
  Shape strides = x.strides();
  strides[dim] = 0;
  dispatch_size(x.dtype(), [&]<class T>(std::type_identity<T>) {
    const Gather<T> f{static_cast<const T*>(x.data()),
                      index.data<int64_t>(),
                      x.shape()[dim],
                      x.strides()[dim],
                      Walk<1>(StridedLoop<1>(y.shape(), {strides})),
                      static_cast<T>(missing_bits(x.dtype()))};
    generate<4>(op, f, Elements<T>{y});
  });
}

}  // namespace halo::cuda
