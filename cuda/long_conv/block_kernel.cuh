// The long convolution's block kernel: a transform of up to 8192 points lives in the registers of one thread block, and
// everything that happens to a row (load, gate, transform, product, inverse, gate, store) happens there.
//
// Limits: lengths up to the block's points with one residue (rows go straight from and to the tensors), longer ones as
// residues that the column kernels made. Any alignment. A row never meets another row of the batch, except in the
// weight gradient, whose sum runs over the batch in order.
#pragma once

#include "block_shape.h"
#include "fft.cuh"
#include "kernels.h"
#include "row_io.cuh"

namespace halo::cuda::long_conv {

/// Forward and inverse transforms of one row, 32 points a thread. Element e of thread t is point t + e kThreads before
/// forward() and after inverse(); in between it is a frequency whose place only these two know. Of the second and third
/// pass thread t does whole radix groups, such that a warp stays within its own 1024 points.
template <class Shape, bool kResidues>
struct BlockTransform {
  using Real = typename Shape::Real;
  using C = Complex<Real>;
  static constexpr int kElements = Shape::kElements, kThreads = Shape::kThreads;
  static constexpr int kFirst = Shape::kFirst, kSecond = Shape::kSecond, kThird = Shape::kThird;
  static constexpr int kStride = 1 << kThird;  // of the second pass

  C* shared;  // one row, padded
  int thread;
  int residue;
  const Tables<Real>& tables;

  __device__ static void sync() {
    if constexpr (Shape::kBlock <= 32) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  /// First radix group of this thread where a pass has kElements >> log_radix groups a thread; group g is g * kWarp on.
  __device__ int group(int log_radix) const {
    return (thread & ~(Shape::kWarp - 1)) * (kElements >> log_radix) + (thread & (Shape::kWarp - 1));
  }
  __device__ C* first_pass() const { return shared + Shape::pad(thread); }
  __device__ C* second_pass() const {
    const int g = group(kSecond);
    return shared + Shape::pad((g >> kThird << (kSecond + kThird)) + (g & (kStride - 1)));
  }
  __device__ C* third_pass() const { return shared + Shape::pad(group(kThird) << kThird); }

  /// Calls f(element, point's distance from the pass's base) for the groups of a pass with elements `stride` apart.
  /// `Far`: in the order in which a pass's first (split) or last (merge) level pairs them, e with e + half.
  template <int LogRadix, bool Far, class F>
  __device__ static void each(int stride, F&& f) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const int g = i >> LogRadix, j = i & ((1 << LogRadix) - 1);
      const int e = Far ? (j >> 1) + ((j & 1) << (LogRadix - 1)) : j;
      f((g << LogRadix) + e, Shape::pad((g * Shape::kWarp << LogRadix) + e * stride));
    }
  }

  /// Twiddles of one radix group from a table [owner][Levels][Positions].
  template <int Positions, int Levels>
  __device__ static void load_twiddles(C (&w)[Levels], const C* table, int owner, int position) {
    const C* at = table + (owner * (Levels * Positions) + position);
#pragma unroll
    for (int l = 0; l < Levels; ++l) w[l] = load_constant(at + l * Positions);
  }

  // The twiddles of a pass are loaded before the exchange that precedes it, which hides their latency.
  // `real`: all imaginary parts are zero.
  __device__ void forward(C (&v)[kElements], bool real) const {
    if constexpr (!kResidues) {
      split_pass_at_root<kFirst>(v, real);
    } else {
      C w[kFirst];
      load_twiddles<1>(w, tables.first, residue, 0);
      split_pass<kFirst>(v, w);
    }
    constexpr int kGroups = kElements >> kSecond;
    C w[kGroups][kSecond];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      load_twiddles<kElements>(w[g], tables.second, residue, (group(kSecond) + g * Shape::kWarp) >> kThird);
    }
    C* at = first_pass();
#pragma unroll
    for (int e = 0; e < kElements; ++e) at[Shape::pad(e * kThreads)] = v[e];
    sync();
    at = second_pass();
    each<kSecond, true>(kStride, [&](int i, int d) { v[i] = at[d]; });
#pragma unroll
    for (int g = 0; g < kGroups; ++g) split_pass<kSecond>(v + (g << kSecond), w[g]);
    if constexpr (kThird > 0) forward_third(v);
  }

  __device__ void forward_third(C (&v)[kElements]) const {
    constexpr int kGroups = kElements >> kThird, kBlocks = Shape::kSize >> kThird;
    constexpr int kEarly = kGroups > 4 ? 4 : kGroups;  // no more than registers allow
    C w[kGroups][kThird];
#pragma unroll
    for (int g = 0; g < kEarly; ++g) {
      load_twiddles<kBlocks>(w[g], tables.third, residue, group(kThird) + g * Shape::kWarp);
    }
    C* at = second_pass();
    each<kSecond, false>(kStride, [&](int i, int d) { at[d] = v[i]; });
    __syncwarp();
    at = third_pass();
    each<kThird, true>(1, [&](int i, int d) { v[i] = at[d]; });
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (g >= kEarly) load_twiddles<kBlocks>(w[g], tables.third, residue, group(kThird) + g * Shape::kWarp);
      split_pass<kThird>(v + (g << kThird), w[g]);
    }
  }

  // `both`: imaginary parts are wanted too.
  __device__ void inverse(C (&v)[kElements], bool both) const {
    C* at = second_pass();
    if constexpr (kThird > 0) {
#pragma unroll
      for (int g = 0; g < kElements >> kThird; ++g) merge_pass_at_origin<kThird>(v + (g << kThird));
      C w[kSecond];
      load_twiddles<kStride>(w, tables.merge_second, 0, group(kSecond) & (kStride - 1));
      C* to = third_pass();
      each<kThird, true>(1, [&](int i, int d) { to[d] = v[i]; });
      __syncwarp();
      each<kSecond, false>(kStride, [&](int i, int d) { v[i] = at[d]; });
#pragma unroll
      for (int g = 0; g < kElements >> kSecond; ++g) merge_pass<kSecond>(v + (g << kSecond), w);
    } else {
#pragma unroll
      for (int g = 0; g < kElements >> kSecond; ++g) merge_pass_at_origin<kSecond>(v + (g << kSecond));
    }
    C w[kFirst];
    load_twiddles<kThreads>(w, tables.merge_first, 0, thread);
    each<kSecond, true>(kStride, [&](int i, int d) { at[d] = v[i]; });
    sync();
    at = first_pass();
#pragma unroll
    for (int e = 0; e < kElements; ++e) v[e] = at[Shape::pad(e * kThreads)];
    if constexpr (kResidues) {
      merge_pass<kFirst>(v, w);
    } else {
      const C weight = load_constant(tables.merge_first + kFirst * kThreads + thread);
      if (both) {
        merge_last_pass<kFirst, true>(v, w, weight);
      } else {
        merge_last_pass<kFirst, false>(v, w, weight);
      }
    }
  }
};

enum class Step { Filter, Input, Grad, WeightGrad };

/// One task: which channel, residue and piece of the batch.
template <class Real>
struct Task {
  bool live;  // short rows share a warp, and the last may have none
  int64_t channel;
  int residue, chunk;
  int64_t first_row, rows_end;

  __device__ Task(const BlockArgs<Real>& args, int64_t index) : live(index < args.tasks) {
    const int64_t i = live ? index : 0;
    const int64_t rest = i >> args.sizes.log_residues;
    residue = static_cast<int>(i & (args.sizes.residues() - 1));
    channel = rest % args.sizes.channel_count;
    chunk = static_cast<int>(rest / args.sizes.channel_count);
    first_row = int64_t{chunk} * args.rows_per_chunk;
    rows_end = first_row + args.rows_per_chunk < args.sizes.batch ? first_row + args.rows_per_chunk : args.sizes.batch;
  }
};

/// kResidues: rows are longer than the block, which holds one of their residues.
template <class Shape, bool kResidues>
struct BlockWork {
  using Real = typename Shape::Real;
  using C = Complex<Real>;
  static constexpr int kElements = Shape::kElements, kThreads = Shape::kThreads;
  const BlockArgs<Real>& args;
  const Task<Real>& task;
  int thread;
  C* near;  // shared memory for kNear points of the input's spectrum, kBlock apart

  /// Points of `residues` [outer, channel_count, residues, block] that belong to this task and thread.
  __device__ C* own(C* residues, int64_t outer) const {
    const int64_t row = outer * args.sizes.channel_count + task.channel;
    return residues + ((row << args.sizes.log_residues) + task.residue) * Shape::kSize + thread;
  }
  /// This task's part of args.spectra.
  __device__ C* spectrum() const {
    const int64_t row = args.sizes.first_channel + task.channel;
    return args.spectra + ((row << args.sizes.log_residues) + task.residue) * Shape::kSize + thread;
  }
  __device__ RowSpan span(int64_t b, int first = 0) const {
    return {args.sizes.row(b, task.channel) + first + thread, kThreads, args.sizes.length - first - thread};
  }
  __device__ void load(C (&v)[kElements], Step step, int64_t b) const {
    const bool live = task.live && (step == Step::Filter || b < task.rows_end);
    if (!live) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) v[e] = {0, 0};
    } else if constexpr (kResidues) {
      load_residue(v, step, b);
    } else if (step == Step::Filter) {
      load_filter(v, args.filter, args.sizes, task.channel, thread, kThreads);
    } else {
      Real x[kElements];
      load_row(x, step == Step::Input ? args.input : args.grad, args.sizes.dtype, span(b));
#pragma unroll
      for (int e = 0; e < kElements; ++e) v[e] = {x[e], 0};
    }
  }

  /// Modulo z^kSize - e(theta) a row is the sum of its slices of kSize points times e(theta slice).
  __device__ void load_residue(C (&v)[kElements], Step step, int64_t b) const {
    if (args.split_first) {
      C* all = step == Step::Filter  ? args.filter_residues
               : step == Step::Input ? args.input_residues
                                     : args.grad_residues;
      const C* from = own(all, step == Step::Filter ? 0 : b);
#pragma unroll
      for (int e = 0; e < kElements; ++e) v[e] = load_streaming(from + e * kThreads);
      return;
    }
    const C* weights = args.tables.slices + (task.residue << args.sizes.log_residues);
    if (step == Step::Filter) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) v[e] = {0, 0};
#pragma unroll 1
      for (int slice = 0; slice < args.sizes.residues(); ++slice) {
        add_filter_slice(v, load_constant(weights + slice), slice * Shape::kSize);
      }
      return;
    }
    const RowIn& in = step == Step::Input ? args.input : args.grad;
    Real x[kElements];
    {
      Real first[kElements];  // its weight is 1; in flight together with the second
      load_row(first, in, args.sizes.dtype, span(b));
      load_row(x, in, args.sizes.dtype, span(b, Shape::kSize));
      const C w = load_constant(weights + 1);
#pragma unroll
      for (int e = 0; e < kElements; ++e) v[e] = {fma(x[e], w.re, first[e]), x[e] * w.im};
    }
#pragma unroll 1
    for (int slice = 2; slice < args.sizes.residues(); ++slice) {
      load_row(x, in, args.sizes.dtype, span(b, slice * Shape::kSize));
      const C w = load_constant(weights + slice);
#pragma unroll
      for (int e = 0; e < kElements; ++e) v[e] = {fma(x[e], w.re, v[e].re), fma(x[e], w.im, v[e].im)};
    }
  }

  __device__ void add_filter_slice(C (&v)[kElements], C w, int first) const {
    constexpr int kPart = 8;  // few registers at a time
#pragma unroll
    for (int start = 0; start < kElements; start += kPart) {
      C u[kPart];
      load_filter(u, args.filter, args.sizes, task.channel, thread + first + start * kThreads, kThreads);
#pragma unroll
      for (int e = 0; e < kPart; ++e) {
        C& to = v[start + e];
        to = {fma(-u[e].im, w.im, fma(u[e].re, w.re, to.re)), fma(u[e].im, w.re, fma(u[e].re, w.im, to.im))};
      }
    }
  }

  __device__ void store(C (&v)[kElements], Step step, int64_t b) const {
    const bool live = task.live && (step == Step::WeightGrad || b < task.rows_end);
    if (!live) return;
    if constexpr (kResidues) {
      C* all = step == Step::WeightGrad ? args.weight_grad_residues
               : step == Step::Input    ? args.input_residues
                                        : args.grad_residues;
      C* to = own(all, step == Step::WeightGrad ? task.chunk : b);
#pragma unroll
      for (int e = 0; e < kElements; ++e) store_streaming(to + e * kThreads, v[e]);
    } else if (step == Step::WeightGrad) {
      const int64_t row = task.chunk * args.sizes.channels + args.sizes.first_channel + task.channel;
      store_filter_grad(v, args.weight_grad_sums + row * args.sizes.kernel, args.sizes, thread, kThreads);
    } else {
      store_row(v, step == Step::Input ? args.input_out : args.grad_out, args.sizes.dtype, span(b));
    }
  }

  /// sum += v conj(input), a batch of loads ahead of the stores that the compiler will not move them across.
  __device__ void add_products(const C (&v)[kElements], const C* input, C* sum, bool first) const {
    constexpr int kBatch = 8;
#pragma unroll
    for (int start = 0; start < kElements; start += kBatch) {
      C p[kBatch], before[kBatch];
#pragma unroll
      for (int e = 0; e < kBatch; ++e) {
        p[e] = start + e < Shape::kNear ? near[(start + e) * Shape::kBlock] : load_far(input + (start + e) * kThreads);
        before[e] = first ? C{0, 0} : load_far(sum + (start + e) * kThreads);
      }
#pragma unroll
      for (int e = 0; e < kBatch; ++e) {
        p[e] = times_conj(v[start + e], p[e]);
        sum[(start + e) * kThreads] = {before[e].re + p[e].re, before[e].im + p[e].im};
      }
    }
  }

  /// What happens to a spectrum; `slots` are this thread's own places, so nothing here needs a barrier. Returns whether
  /// an inverse transform follows.
  __device__ bool product(C (&v)[kElements], Step step, bool first, C* slots) const {
    C* filter = args.spectra ? spectrum() : slots;
    C* input = slots + Shape::kSize;
    C* sum = slots + 2 * Shape::kSize;
    if (step == Step::Filter) {
      if (args.spectra && !task.live) return false;  // it would write another's
      const Real scale = Real(1) / static_cast<Real>(args.sizes.points());
#pragma unroll
      for (int e = 0; e < kElements; ++e) filter[e * kThreads] = {v[e].re * scale, v[e].im * scale};
      return false;
    }
    if (step == Step::Input) {
      if (args.weight_grad) {
#pragma unroll
        for (int e = 0; e < kElements; ++e)
          *(e < Shape::kNear ? near + e * Shape::kBlock : input + e * kThreads) = v[e];
      }
      if (!args.input_inverse) return false;
#pragma unroll
      for (int e = 0; e < kElements; ++e) v[e] = v[e] * load_far(filter + e * kThreads);
      return true;
    }
    if (step == Step::Grad) {
      if (args.weight_grad) add_products(v, input, sum, first);
      if (!args.grad_inverse) return false;
#pragma unroll
      for (int e = 0; e < kElements; ++e) v[e] = times_conj(v[e], load_far(filter + e * kThreads));
      return true;
    }
    const Real scale = Real(1) / static_cast<Real>(args.sizes.points());
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const C total = load_far(sum + e * kThreads);
      v[e] = {total.re * scale, total.im * scale};
    }
    return true;
  }
};

/// Grid: any number of blocks; tasks are taken in strides of the grid, and all have the same number of steps. The steps
/// run through one loop so that the code of the two transforms exists once.
template <class Shape, bool kResidues>
__global__ void __launch_bounds__(Shape::kBlock, Shape::kBlocksPerMultiprocessor)
    block_kernel(const __grid_constant__ BlockArgs<typename Shape::Real> args) {
  using Real = typename Shape::Real;
  using C = Complex<Real>;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  const int row = static_cast<int>(threadIdx.x / Shape::kThreads),
            thread = static_cast<int>(threadIdx.x % Shape::kThreads);
  C* shared = reinterpret_cast<C*>(shared_bytes) + row * Shape::kRowStride;
  C* near = reinterpret_cast<C*>(shared_bytes) + Shape::kRows * Shape::kRowStride + threadIdx.x;
  C* slots = args.slots + (int64_t{blockIdx.x} * Shape::kRows + row) * args.slot_count * Shape::kSize + thread;
  const int steps_a_row = args.input_step && args.grad_step ? 2 : 1;
  const int last = args.rows_per_chunk * steps_a_row;

  for (int64_t base = int64_t{blockIdx.x} * Shape::kRows; base < args.tasks;
       base += int64_t{gridDim.x} * Shape::kRows) {
    const Task<Real> task(args, base + row);
    const BlockTransform<Shape, kResidues> transform{shared, thread, task.residue, args.tables};
    const BlockWork<Shape, kResidues> work{args, task, thread, near};
    for (int i = args.filter_step() ? 0 : 1; i <= last + (args.weight_grad ? 1 : 0); ++i) {
      const bool input_turn = args.input_step && (!args.grad_step || i % 2 == 1);
      const Step step = i == 0 ? Step::Filter : i > last ? Step::WeightGrad : input_turn ? Step::Input : Step::Grad;
      const int64_t b = task.first_row + (i - 1) / steps_a_row;
      C v[Shape::kElements];
      if (step != Step::WeightGrad) {
        work.load(v, step, b);
        transform.forward(v, step != Step::Filter || args.sizes.center == 0);
      } else {
        transform.sync();  // others may still read what the last inverse left
      }
      if (!work.product(v, step, b == task.first_row, slots)) {
        transform.sync();  // no inverse, whose barrier would keep the next forward from writing too early
        continue;
      }
      transform.inverse(v, step == Step::WeightGrad);
      work.store(v, step, b);
    }
  }
}

}  // namespace halo::cuda::long_conv
