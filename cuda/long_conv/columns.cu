// Column kernels of rows too long for one block: the first levels of the forward transform (split: a row becomes
// residues of `block` points each) and the last levels of the inverse (merge). Both move each point once and are bound
// by memory.
//
// Limits: 2 to 256 residues; `block` a multiple of the columns below; any length up to residues * block, any alignment.
#include <halo/core/error.h>
#include <halo/cuda/launch.h>

#include "fft.cuh"
#include "kernels.h"
#include "row_io.cuh"

namespace halo::cuda::long_conv {
namespace {

/// 2^(First + Second) residues: radix 2^First in registers, then radix 2^Second after an exchange through shared
/// memory. A thread holds kElements points of one column j, positions j + s * block.
template <class RealType, int First, int Second>
struct ColumnShape {
  using Real = RealType;
  static constexpr int kFirst = First, kSecond = Second;
  static constexpr int kElements = 1 << First;
  static constexpr int kColumns = Second == 0 ? 256 : 32;  // a thread block's; 32 consecutive lanes are 32 columns
  static constexpr int kParts = 1 << Second;               // threads a column
  static constexpr int kThreads = kColumns * kParts;
  static constexpr std::size_t kSharedBytes =
      Second == 0 ? 0 : std::size_t{2} * sizeof(Real) * kColumns * kElements * kParts;
  static_assert(Second == 0 || (First == 4 && Second <= 4));
};

__device__ Complex<float> cis_turns(float turns) {
  Complex<float> c;
  sincospif(2 * turns, &c.im, &c.re);
  return c;
}
__device__ Complex<double> cis_turns(double turns) {
  Complex<double> c;
  sincospi(2 * turns, &c.im, &c.re);
  return c;
}

/// w[l] = e(theta / 2^(l+1)); every argument is exact, a small integer over a power of two.
template <int Levels, class Real>
__device__ void halving_twiddles(Complex<Real> (&w)[Levels], Real theta) {
#pragma unroll
  for (int l = 0; l < Levels; ++l) w[l] = cis_turns(theta / static_cast<Real>(2 << l));
}

/// Where this thread is: row, column, part.
template <class Shape>
struct Place {
  int64_t row, batch, channel;  // row = batch * channel_count + channel
  int column, part;
  __device__ explicit Place(const Sizes& sizes) {
    const int tiles = sizes.block / Shape::kColumns;
    row = blockIdx.x / static_cast<unsigned>(tiles);  // the axis that grows: rows x tiles
    batch = row / sizes.channel_count;
    channel = row % sizes.channel_count;
    column = static_cast<int>(blockIdx.x % static_cast<unsigned>(tiles)) * Shape::kColumns +
             static_cast<int>(threadIdx.x % Shape::kColumns);
    part = static_cast<int>(threadIdx.x / Shape::kColumns);
  }
};

__device__ RowSpan span_of(const Sizes& sizes, int64_t batch, int64_t channel, int first, int step) {
  return {sizes.row(batch, channel) + first, step, sizes.length - first};
}

/// Exchange buffer [residues][columns] at this thread's column.
template <class Shape>
__device__ Complex<typename Shape::Real>* exchange() {
  extern __shared__ __align__(16) unsigned char column_bytes[];
  return reinterpret_cast<Complex<typename Shape::Real>*>(column_bytes) + threadIdx.x % Shape::kColumns;
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads)
    split_kernel(const __grid_constant__ SplitArgs<typename Shape::Real> args) {
  using Real = typename Shape::Real;
  using C = Complex<Real>;
  constexpr int kSecond = Shape::kSecond;
  const Sizes& sizes = args.sizes;
  const Place<Shape> at(sizes);
  const int first = at.column + at.part * sizes.block, step = sizes.block << kSecond;
  C v[Shape::kElements];
  if (args.filter.weight) {
    load_filter(v, args.filter, sizes, at.channel, first, step);
  } else {
    Real x[Shape::kElements];
    load_row(x, args.input, sizes.dtype, span_of(sizes, at.batch, at.channel, first, step));
#pragma unroll
    for (int e = 0; e < Shape::kElements; ++e) v[e] = {x[e], 0};
  }
  C w[Shape::kFirst];
  halving_twiddles(w, Real(0.25));
  split_pass<Shape::kFirst>(v, w);

  C* residues = args.residues + ((at.row << sizes.log_residues) * sizes.block + at.column);
  if constexpr (kSecond == 0) {
#pragma unroll
    for (int e = 0; e < Shape::kElements; ++e) residues[int64_t{e} * sizes.block] = v[e];
  } else {
    C* shared = exchange<Shape>();
#pragma unroll
    for (int e = 0; e < Shape::kElements; ++e) shared[(at.part + (e << kSecond)) * Shape::kColumns] = v[e];
    __syncthreads();
#pragma unroll
    for (int g = 0; g < (Shape::kElements >> kSecond); ++g) {
      const int block = at.part + (g << kSecond);
      C u[1 << kSecond], t[kSecond];
#pragma unroll
      for (int e = 0; e < 1 << kSecond; ++e) u[e] = shared[((block << kSecond) + e) * Shape::kColumns];
      halving_twiddles(t, (Real(0.25) + static_cast<Real>(__brev(static_cast<unsigned>(block)) >> 28)) / 16);
      split_pass<kSecond>(u, t);
#pragma unroll
      for (int e = 0; e < 1 << kSecond; ++e) residues[int64_t{(block << kSecond) + e} * sizes.block] = u[e];
    }
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads)
    merge_kernel(const __grid_constant__ MergeArgs<typename Shape::Real> args) {
  using Real = typename Shape::Real;
  using C = Complex<Real>;
  constexpr int kSecond = Shape::kSecond;
  const Sizes& sizes = args.sizes;
  const Place<Shape> at(sizes);
  const int first = at.column + at.part * sizes.block, step = sizes.block << kSecond;
  const C* residues = args.residues + ((at.row << sizes.log_residues) * sizes.block + at.column);
  C v[Shape::kElements];
  if constexpr (kSecond == 0) {
#pragma unroll
    for (int e = 0; e < Shape::kElements; ++e) v[e] = residues[int64_t{e} * sizes.block];
  } else {
    C* shared = exchange<Shape>();
#pragma unroll
    for (int i = 0; i < Shape::kElements; ++i) {
      const int block = at.part + (i >> kSecond << kSecond), e = i & ((1 << kSecond) - 1);
      v[i] = residues[int64_t{(block << kSecond) + e} * sizes.block];
    }
    C t[kSecond];
    halving_twiddles(t, -static_cast<Real>(at.column) / static_cast<Real>(sizes.block));
#pragma unroll
    for (int g = 0; g < (Shape::kElements >> kSecond); ++g) {
      const int block = at.part + (g << kSecond);
      merge_pass<kSecond>(v + (g << kSecond), t);
#pragma unroll
      for (int e = 0; e < 1 << kSecond; ++e) shared[((block << kSecond) + e) * Shape::kColumns] = v[(g << kSecond) + e];
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < Shape::kElements; ++e) v[e] = shared[(at.part + (e << kSecond)) * Shape::kColumns];
  }
  C w[Shape::kFirst];
  const Real position = -static_cast<Real>(first) / static_cast<Real>(step);
  halving_twiddles(w, position);
  merge_pass<Shape::kFirst>(v, w);

  // e(-n / (4 points)), n = first + e step, undoes the i of z^points - i.
  const C base = cis_turns(position / static_cast<Real>(4 * Shape::kElements));
  static_for<Shape::kElements>([&](auto element) {
    constexpr int e = decltype(element)::value;
    v[e] = v[e] * base * root<-e, 4 * Shape::kElements, Real>();
  });
  if (args.weight_grad_sums) {
    const int64_t row = at.batch * sizes.channels + sizes.first_channel + at.channel;
    store_filter_grad(v, args.weight_grad_sums + row * sizes.kernel, sizes, first, step);
  } else {
    store_row(v, args.output, sizes.dtype, span_of(sizes, at.batch, at.channel, first, step));
  }
}

template <class Real, class F>
void with_column_shape(int log_residues, F&& f) {
  switch (log_residues) {
    case 1: return f(ColumnShape<Real, 1, 0>{});
    case 2: return f(ColumnShape<Real, 2, 0>{});
    case 3: return f(ColumnShape<Real, 3, 0>{});
    case 4: return f(ColumnShape<Real, 4, 0>{});
    case 5: return f(ColumnShape<Real, 4, 1>{});
    case 6: return f(ColumnShape<Real, 4, 2>{});
    case 7: return f(ColumnShape<Real, 4, 3>{});
    case 8: return f(ColumnShape<Real, 4, 4>{});
    default: fail<InternalError>("long_conv: no column kernel for 2^", log_residues, " residues");
  }
}

template <class Shape>
dim3 grid_for(const Sizes& sizes, int64_t rows) {
  const int64_t blocks = rows * (sizes.block / Shape::kColumns);
  if (blocks > 2147483647) fail("long_conv: rows expect a batch that fits one launch, got ", rows, " rows");
  return dim3(static_cast<unsigned>(blocks));
}

}  // namespace

template <class Real>
void launch_split(const SplitArgs<Real>& args, cudaStream_t stream) {
  with_column_shape<Real>(args.sizes.log_residues, [&](auto shape) {
    using Shape = decltype(shape);
    launch("long_conv_split", split_kernel<Shape>, grid_for<Shape>(args.sizes, args.rows), dim3(Shape::kThreads),
           Shape::kSharedBytes, stream, args);
  });
}

template <class Real>
void launch_merge(const MergeArgs<Real>& args, cudaStream_t stream) {
  with_column_shape<Real>(args.sizes.log_residues, [&](auto shape) {
    using Shape = decltype(shape);
    launch("long_conv_merge", merge_kernel<Shape>, grid_for<Shape>(args.sizes, args.rows), dim3(Shape::kThreads),
           Shape::kSharedBytes, stream, args);
  });
}

template void launch_split<float>(const SplitArgs<float>&, cudaStream_t);
template void launch_split<double>(const SplitArgs<double>&, cudaStream_t);
template void launch_merge<float>(const MergeArgs<float>&, cudaStream_t);
template void launch_merge<double>(const MergeArgs<double>&, cudaStream_t);

}  // namespace halo::cuda::long_conv
