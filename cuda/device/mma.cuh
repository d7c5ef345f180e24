// Products of two tiles with float32 sums, on the tensor cores of every GPU since 8.0.
#pragma once

#include <halo/core/dtype.h>

#include <cstdint>
#include <type_traits>

namespace halo::cuda::device {

/// sum += a b, 16 x 8 from 16 x 16 and 16 x 8. Lane (g, t) = (lane / 4, lane % 4) holds, two elements a word, columns
/// 2t and 2t + 1 of rows g, g + 8 of `a`, then the columns 8 further; rows 2t and 2t + 1 of column g of `b`, then the
/// rows 8 further; and columns 2t, 2t + 1 of row g, then of row g + 8 of `sum`.
template <class T>
__device__ __forceinline__ void multiply_halves(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

/// sum += a b, or = where First, 16 x 8 from 16 x 8 and 8 x 8 in TF32 (other bits of float32 are cut). Lane (g, t)
/// holds a (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4); b (t, g), (t + 4, g); `sum` as above.
template <bool First>
__device__ __forceinline__ void multiply_tf32(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (First) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
  } else {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

/// Two 8 x 8 matrices from shared memory, transposed; lanes 0 to 15 give the addresses of their rows (16 bytes each,
/// aligned).
__device__ __forceinline__ void load_transposed(uint32_t row, uint32_t& first, uint32_t& second) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(first), "=r"(second)
               : "r"(row)
               : "memory");
}

}  // namespace halo::cuda::device
