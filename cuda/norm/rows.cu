// A warp a row: the row is read once, its statistics come from two passes over registers, and what backward sums over
// rows is kept a column a lane, added up over the block's warps, then over blocks (reduce/partials.h).
#include "../device/map.cuh"
#include "../launch.h"
#include "../reduce/partials.h"
#include "rows.h"

namespace halo::cuda {
namespace {

constexpr int kWarps = 8, kLanes = 32;

template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

/// The E elements of a row that a lane holds: packs of four, a pack each 128 columns.
template <class T, int E>
struct RowAccess {
  int length;
  bool packs;  ///< rows begin on a pack's boundary
  int lane;

  __device__ __forceinline__ int column(int e) const {
    return e / kPackSize * kPackSize * kLanes + lane * kPackSize + e % kPackSize;
  }
  __device__ __forceinline__ bool holds(int e) const { return column(e) < length; }
  __device__ __forceinline__ void load(T (&v)[E], const T* row) const {
#pragma unroll
    for (int q = 0; q < E; q += kPackSize) {
      Pack<T> pack{};
      if (packs) {
        if (holds(q)) pack = *reinterpret_cast<const Pack<T>*>(row + column(q));
      } else {
#pragma unroll
        for (int k = 0; k < kPackSize; ++k) pack.at[k] = holds(q + k) ? row[column(q + k)] : T(0);
      }
#pragma unroll
      for (int k = 0; k < kPackSize; ++k) v[q + k] = pack.at[k];
    }
  }
  /// `fill` where there is no array.
  __device__ __forceinline__ void load_or(T (&v)[E], const T* row, T fill) const {
    if (row != nullptr) return load(v, row);
#pragma unroll
    for (int e = 0; e < E; ++e) v[e] = fill;
  }
  __device__ __forceinline__ void store(const T (&v)[E], T* row) const {
#pragma unroll
    for (int q = 0; q < E; q += kPackSize) {
      if (packs) {
        Pack<T> pack;
#pragma unroll
        for (int k = 0; k < kPackSize; ++k) pack.at[k] = v[q + k];
        if (holds(q)) *reinterpret_cast<Pack<T>*>(row + column(q)) = pack;
      } else {
#pragma unroll
        for (int k = 0; k < kPackSize; ++k) {
          if (holds(q + k)) row[column(q + k)] = v[q + k];
        }
      }
    }
  }
};

template <class T, int E>
__device__ __forceinline__ void add_row(const RowAccess<T, E>& access, T (&v)[E], const T* row) {
  if (row == nullptr) return;
  T other[E];
  access.load(other, row);
#pragma unroll
  for (int e = 0; e < E; ++e) v[e] += other[e];
}

template <class T, int E>
__global__ void __launch_bounds__(kWarps* kLanes)
    rows_forward_kernel(const __grid_constant__ RowForward<T> args, bool packs) {
  const RowAccess<T, E> access{static_cast<int>(args.length), packs, static_cast<int>(threadIdx.x % kLanes)};
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes;
  if (row >= args.rows) return;
  const int64_t at = row * args.length;
  T v[E];
  access.load(v, args.x + at);
  add_row(access, v, args.x_bias);
  add_row(access, v, args.residual == nullptr ? nullptr : args.residual + at);
  if (args.sum != nullptr) access.store(v, args.sum + at);
  T total = 0;
#pragma unroll
  for (int e = 0; e < E; ++e) total += v[e];
  const T count = static_cast<T>(args.length), first_mean = warp_sum(total) / count;
  T lost = 0, squares = 0;  // what rounding took from the mean
#pragma unroll
  for (int e = 0; e < E; ++e) {
    v[e] = access.holds(e) ? v[e] - first_mean : T(0);
    lost += v[e];
    squares += v[e] * v[e];
  }
  lost = warp_sum(lost) / count;
  const T variance = warp_sum(squares) / count - lost * lost;
  const T rstd = T(1) / sqrt((variance < T(0) ? T(0) : variance) + static_cast<T>(args.eps));
  T weight[E], bias[E];
  access.load_or(weight, args.weight, T(1));
  access.load_or(bias, args.bias, T(0));
#pragma unroll
  for (int e = 0; e < E; ++e) v[e] = (v[e] - lost) * rstd * weight[e] + bias[e];
  access.store(v, args.y + at);
  if (access.lane > 0) return;
  args.mean[row] = first_mean + lost;
  args.rstd[row] = rstd;
}

/// Adds the warps' column sums, in order, into `sums`.
template <class T, int E>
__device__ void combine_warps(const RowAccess<T, E>& access, const T (&v)[E], T* sums) {
  for (int warp = 0; warp < kWarps; ++warp) {
    if (static_cast<int>(threadIdx.x / kLanes) == warp) {
#pragma unroll
      for (int e = 0; e < E; ++e) {
        if (access.holds(e)) sums[access.column(e)] = (warp == 0 ? T(0) : sums[access.column(e)]) + v[e];
      }
    }
    __syncthreads();
  }
}

/// A block takes every gridDim.x-th group of rows. partials: [blocks][weight, bias, x][length], or null.
template <class T, int E>
__global__ void __launch_bounds__(kWarps* kLanes)
    rows_backward_kernel(const __grid_constant__ RowBackward<T> args, bool packs, T* partials) {
  __shared__ T sums[kLanes * E];
  const RowAccess<T, E> access{static_cast<int>(args.length), packs, static_cast<int>(threadIdx.x % kLanes)};
  const T count = static_cast<T>(args.length);
  T weight_sum[E] = {}, bias_sum[E] = {}, x_sum[E] = {};
  const int64_t stride = int64_t{gridDim.x} * kWarps;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes; row < args.rows; row += stride) {
    const int64_t at = row * args.length;
    T d[E], g[E], h[E];
    access.load(d, args.x + at);
    access.load(g, args.g_y + at);
    access.load_or(h, args.weight, T(1));
    const T mean = args.mean[row], rstd = args.rstd[row];
    T lost = 0, plain = 0, scaled = 0;
#pragma unroll
    for (int e = 0; e < E; ++e) {
      d[e] = access.holds(e) ? d[e] - mean : T(0);
      h[e] *= g[e];
      lost += d[e];
      plain += h[e];
      scaled += h[e] * d[e];
    }
    lost = warp_sum(lost) / count;
    plain = warp_sum(plain);
    scaled = (warp_sum(scaled) - lost * plain) * rstd / count;
    plain /= count;
    T past[E];
    access.load_or(past, args.g_x == nullptr ? nullptr : args.g_x + at, T(0));
#pragma unroll
    for (int e = 0; e < E; ++e) {
      const T xhat = (d[e] - lost) * rstd;
      weight_sum[e] += g[e] * xhat;
      bias_sum[e] += g[e];
      h[e] = rstd * (h[e] - plain - xhat * scaled) + past[e];
      x_sum[e] += h[e];
    }
    if (args.x_grad != nullptr) access.store(h, args.x_grad + at);
  }
  if (partials == nullptr) return;
  T* const out = partials + int64_t{blockIdx.x} * 3 * args.length;
  const auto finish = [&](const T(&v)[E], T* to) {
    combine_warps(access, v, sums);
    for (int c = static_cast<int>(threadIdx.x); c < access.length; c += kWarps * kLanes) to[c] = sums[c];
    __syncthreads();
  };
  finish(weight_sum, out);
  finish(bias_sum, out + args.length);
  finish(x_sum, out + 2 * args.length);
}

/// f(integral_constant of the elements a lane needs).
template <class F>
void with_elements(int64_t length, F&& f) {
  if (length <= 128) return f(std::integral_constant<int, 4>{});
  if (length <= 256) return f(std::integral_constant<int, 8>{});
  if (length <= 512) return f(std::integral_constant<int, 16>{});
  f(std::integral_constant<int, 32>{});
}

template <class T, class... Pointers>
bool pack_rows(int64_t length, Pointers... pointers) {
  return length % kPackSize == 0 && (is_aligned<T>(pointers) && ...);
}

int64_t backward_blocks(int64_t rows) {
  constexpr int64_t kBlocks = 528;  // four a multiprocessor on the largest GPUs; the bits depend on it
  return std::clamp<int64_t>((rows + 4 * kWarps - 1) / (4 * kWarps), 1, kBlocks);
}

}  // namespace

template <class T>
void rows_forward(const char* name, const RowForward<T>& a, cudaStream_t stream) {
  const bool packs = pack_rows<T>(a.length, a.x, a.x_bias, a.residual, a.weight, a.bias, a.sum, a.y);
  const auto blocks = static_cast<unsigned>((a.rows + kWarps - 1) / kWarps);
  with_elements(a.length, [&](auto elements) {
    launch(name, rows_forward_kernel<T, decltype(elements)::value>, blocks, kWarps * kLanes, 0, stream, a, packs);
  });
}

int64_t rows_backward_workspace(int64_t rows, int64_t length) { return backward_blocks(rows) * 3 * length; }

template <class T>
void rows_backward(const char* name, const RowBackward<T>& a, T* workspace, cudaStream_t stream) {
  const bool packs = pack_rows<T>(a.length, a.x, a.weight, a.g_x, a.g_y, a.x_grad);
  const int64_t blocks = backward_blocks(a.rows);
  with_elements(a.length, [&](auto elements) {
    launch(name, rows_backward_kernel<T, decltype(elements)::value>, static_cast<unsigned>(blocks), kWarps * kLanes, 0,
           stream, a, packs, a.sums() ? workspace : nullptr);
  });
  const auto sum = [&](int which, T* out) {
    sum_partials(name, workspace + which * a.length, blocks, 3 * a.length, a.length, out, stream);
  };
  sum(0, a.weight_grad);
  sum(1, a.bias_grad);
  sum(2, a.x_sum);
}

template void rows_forward(const char*, const RowForward<float>&, cudaStream_t);
template void rows_forward(const char*, const RowForward<double>&, cudaStream_t);
template void rows_backward(const char*, const RowBackward<float>&, float*, cudaStream_t);
template void rows_backward(const char*, const RowBackward<double>&, double*, cudaStream_t);

}  // namespace halo::cuda
