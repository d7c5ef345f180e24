// What the long convolution's kernels are given, and the functions that launch them. Host and device.
#pragma once

#include <halo/core/dtype.h>

#include <cstdint>

#include <cuda_runtime.h>

namespace halo::cuda::long_conv {

template <class Real>
struct Complex;

/// Sizes that every kernel needs. A row of the transform is `residues` x `block` points; with more than one residue,
/// residue g is the row modulo z^block - e(theta_g), theta_g = (1/4 + reverse(g)) / residues.
struct Sizes {
  int64_t batch, channels;               // of the tensors
  int64_t first_channel, channel_count;  // of this launch
  int length, kernel, center;
  int block, log_residues;
  DType dtype, weight_dtype;

  __host__ __device__ int residues() const { return 1 << log_residues; }
  __host__ __device__ int points() const { return block << log_residues; }
  /// Offset of row (b, h) in a [B, H, L] tensor; h counts from first_channel.
  __host__ __device__ int64_t row(int64_t b, int64_t h) const { return (b * channels + first_channel + h) * length; }
};

/// A real operand, values * gate; `gate` may be null.
struct RowIn {
  const void* values = nullptr;
  const void* gate = nullptr;
};

/// What to do with a real result r: out = r * scale, product = r * factor. Any may be null (`scale` null means 1).
struct RowOut {
  void* out = nullptr;
  const void* scale = nullptr;
  void* product = nullptr;
  const void* factor = nullptr;
};

struct Filter {
  const void* weight = nullptr;  // [H, K]
  const void* skip = nullptr;    // [H] or null; added to the tap at the center
};

/// Twiddles (see fft.cuh): [residue][level][block] for the forward passes, [level][position] for the inverse.
template <class Real>
struct Tables {
  Complex<Real>*first, *second, *third;
  Complex<Real>*merge_second, *merge_first;
  Complex<Real>* slices;  // [residue][slice], for few residues
};

/// Block kernel. For each channel and residue: transform the filter, then for each row of the batch its input (times
/// the filter: convolution) and its output gradient (times the conjugate filter: correlation), with the products of
/// both summed over the batch for the filter's gradient.
template <class Real>
struct BlockArgs {
  Sizes sizes;
  int chunks, rows_per_chunk;  // the batch in pieces, each a task of its own
  int64_t tasks;               // chunks x channel_count x residues
  bool input_step, input_inverse, grad_step, grad_inverse, weight_grad;
  bool make_spectra;  // nothing but the filters' spectra; rows_per_chunk is 0
  __host__ __device__ bool filter_step() const { return make_spectra || (!spectra && (input_inverse || grad_inverse)); }
  RowIn input, grad;
  RowOut input_out, grad_out;
  Filter filter;
  Real* weight_grad_sums;  // [chunks, H, K] when there is one residue
  // With several residues the results go to these, [B or chunks, channel_count, residues, block], and where
  // `split_first` is set the rows come from there too. Else each residue reads the whole row.
  bool split_first;
  Complex<Real>*input_residues, *grad_residues, *filter_residues, *weight_grad_residues;
  Complex<Real>* slots;  // [grid x rows a block][slot_count][block]: spectra of filter, input and weight gradient
  int slot_count;
  Complex<Real>* spectra;  // of the filters, [channels, residues, block]; or null: each task makes its own in its slot
  Tables<Real> tables;
};

/// Column kernels: rows to residues (split) and back (merge).
template <class Real>
struct SplitArgs {
  Sizes sizes;
  int64_t rows;  // batch x channel_count, or channel_count for the filter
  RowIn input;
  Filter filter;  // taken where `weight` is set, instead of `input`
  Complex<Real>* residues;
};

template <class Real>
struct MergeArgs {
  Sizes sizes;
  int64_t rows;
  RowOut output;
  Real* weight_grad_sums;  // taken where set, instead of `output`: [rows / channel_count, H, K]
  const Complex<Real>* residues;
};

template <class Real>
struct FinishArgs {
  Sizes sizes;
  int chunks;
  const Real* sums;  // [chunks, H, K]; may be `weight_grad` itself
  void *weight_grad, *skip_grad;
};

/// Up to this many residues the block kernel takes them from the rows itself; split_kernel makes more.
inline constexpr int kMaxLogSlices = 2;

/// Fills the twiddle tables of `sizes`, computed in float64.
template <class Real>
void launch_tables(const Sizes& sizes, const Tables<Real>& tables, cudaStream_t stream);
/// Number of points in all tables together, and the tables laid out from `base`.
template <class Real>
int64_t table_points(int block, int log_residues);
template <class Real>
Tables<Real> place_tables(int block, int log_residues, Complex<Real>* base);

/// Geometry of the block kernel for a `block` that block_for() gave.
struct BlockGeometry {
  int rows_per_block;  // rows in flight a thread block
  int blocks_per_multiprocessor;
};
template <class Real>
int block_for(int64_t length);
template <class Real>
BlockGeometry block_geometry(int block);
template <class Real>
void launch_block(const BlockArgs<Real>& args, int grid, cudaStream_t stream);

template <class Real>
void launch_split(const SplitArgs<Real>& args, cudaStream_t stream);
template <class Real>
void launch_merge(const MergeArgs<Real>& args, cudaStream_t stream);
/// Sums the chunks in order, converts, zeroes taps that meet no input, and takes the skip weight's gradient.
template <class Real>
void launch_finish(const FinishArgs<Real>& args, cudaStream_t stream);

}  // namespace halo::cuda::long_conv
