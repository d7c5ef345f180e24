// Twiddle tables and the last step of the weight gradient.
//
// The tables depend on the sizes alone. They are made anew each call (some microseconds) so that a call needs no state
// beside its workspace.
#include <halo/cuda/launch.h>

#include "block_shape.h"
#include "fft.cuh"
#include "kernels.h"
#include "row_io.cuh"

namespace halo::cuda::long_conv {
namespace {

/// Extents [owners][levels][positions] of the six tables, in the order of Tables. Mirrors BlockShape, at run time.
template <class Real>
struct TableSizes {
  static constexpr int kTables = 6;
  int owners[kTables], levels[kTables], positions[kTables];
  int log_block, log_residues, first_levels;

  __host__ __device__ TableSizes(int block, int log_residues_in)
      : log_block(0), log_residues(log_residues_in), first_levels(0) {
    while ((1 << log_block) < block) ++log_block;
    const auto [first, second, third] = pass_radices(log_block, log_elements<Real>(log_block));
    first_levels = first;
    const int residues = 1 << log_residues;
    set(0, residues, first, 1);
    set(1, residues, second, 1 << first);
    set(2, residues, third, block >> third);
    set(3, 1, second, 1 << third);
    set(4, 1, first + 1, block >> first);  // the levels of the last pass, and the weight that undoes the i of z^N - i
    set(5, residues, 1, log_residues <= kMaxLogSlices ? residues : 0);
  }
  __host__ __device__ int64_t points(int table) const {
    return int64_t{owners[table]} * levels[table] * positions[table];
  }
  __host__ __device__ int64_t points() const {
    int64_t sum = 0;
    for (int i = 0; i < kTables; ++i) sum += points(i);
    return sum;
  }

 private:
  __host__ __device__ void set(int table, int owner_count, int level_count, int position_count) {
    owners[table] = owner_count;
    levels[table] = level_count;
    positions[table] = position_count;
  }
};

__device__ unsigned reverse_low_bits(unsigned x, int bits) { return bits == 0 ? 0u : __brev(x) >> (32 - bits); }

template <class Real>
__global__ void tables_kernel(int block, int log_residues, Complex<Real>* out) {
  const TableSizes<Real> sizes(block, log_residues);
  const int64_t all = sizes.points();
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index >= all) return;
  int64_t i = index;
  int table = 0;
  while (i >= sizes.points(table)) i -= sizes.points(table++);
  const int positions = sizes.positions[table];
  const int position = static_cast<int>(i % positions);
  const int level = static_cast<int>(i / positions % sizes.levels[table]);
  const int owner = static_cast<int>(i / positions / sizes.levels[table]);
  double turns;
  if (table < 3) {  // e(theta / 2^(level+1)) of one block among all blocks of its size
    const int log_blocks = log_residues + (table == 0 ? 0 : sizes.first_levels + (table == 1 ? 0 : sizes.levels[1]));
    const unsigned block_index = static_cast<unsigned>(owner * positions + position);
    const double theta = ldexp(0.25 + reverse_low_bits(block_index, log_blocks), -log_blocks);
    turns = ldexp(theta, -(level + 1));
  } else if (table == 5) {  // e(theta slice)
    turns = ldexp(0.25 + reverse_low_bits(static_cast<unsigned>(owner), log_residues), -log_residues) * position;
  } else if (level <
             sizes.levels[table] - (table == 4 ? 1 : 0)) {  // e(-o / (2^(level+1) s0)), s0 = the number of positions
    turns = -static_cast<double>(position) / ldexp(static_cast<double>(positions), level + 1);
  } else {
    turns = -static_cast<double>(position) / (4.0 * block);
  }
  double re, im;
  sincospi(2 * turns, &im, &re);
  out[index] = {static_cast<Real>(re), static_cast<Real>(im)};
}

template <class Real>
__global__ void finish_kernel(const __grid_constant__ FinishArgs<Real> args) {
  const int64_t taps = args.sizes.kernel, all = args.sizes.channels * taps;
  const bool in_place = static_cast<const void*>(args.sums) == args.weight_grad && args.chunks == 1;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < all; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t tap = i % taps, lag = tap - args.sizes.center;
    const bool reaches = lag < args.sizes.length && -lag < args.sizes.length;
    if (in_place && reaches && (lag != 0 || args.skip_grad == nullptr)) continue;
    Real sum = 0;
    for (int chunk = 0; reaches && chunk < args.chunks; ++chunk) sum += args.sums[chunk * all + i];
    with_access<Real>(args.sizes.weight_dtype, [&](auto access) {
      if (args.weight_grad) access.store(access.at(args.weight_grad, i), sum);
      if (args.skip_grad && lag == 0) access.store(access.at(args.skip_grad, i / taps), sum);
    });
  }
}

}  // namespace

template <class Real>
int64_t table_points(int block, int log_residues) {
  return TableSizes<Real>(block, log_residues).points();
}

template <class Real>
Tables<Real> place_tables(int block, int log_residues, Complex<Real>* base) {
  const TableSizes<Real> sizes(block, log_residues);
  Complex<Real>* at[TableSizes<Real>::kTables];
  for (int i = 0; i < TableSizes<Real>::kTables; ++i) {
    at[i] = base;
    base += sizes.points(i);
  }
  return {at[0], at[1], at[2], at[3], at[4], at[5]};
}

template <class Real>
void launch_tables(const Sizes& sizes, const Tables<Real>& tables, cudaStream_t stream) {
  const int64_t points = table_points<Real>(sizes.block, sizes.log_residues);
  launch("long_conv_tables", tables_kernel<Real>, dim3(static_cast<unsigned>((points + 127) / 128)), dim3(128), 0,
         stream, sizes.block, sizes.log_residues, tables.first);
}

template <class Real>
void launch_finish(const FinishArgs<Real>& args, cudaStream_t stream) {
  const int64_t all = args.sizes.channels * args.sizes.kernel, blocks = (all + 255) / 256;
  launch("long_conv_finish", finish_kernel<Real>, dim3(static_cast<unsigned>(blocks < 65536 ? blocks : 65536)),
         dim3(256), 0, stream, args);
}

template int64_t table_points<float>(int, int);
template int64_t table_points<double>(int, int);
template Tables<float> place_tables<float>(int, int, Complex<float>*);
template Tables<double> place_tables<double>(int, int, Complex<double>*);
template void launch_tables<float>(const Sizes&, const Tables<float>&, cudaStream_t);
template void launch_tables<double>(const Sizes&, const Tables<double>&, cudaStream_t);
template void launch_finish<float>(const FinishArgs<float>&, cudaStream_t);
template void launch_finish<double>(const FinishArgs<double>&, cudaStream_t);

}  // namespace halo::cuda::long_conv
