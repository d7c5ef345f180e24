#include "long_conv.h"

#include <halo/core/error.h>
#include <halo/cuda/launch.h>

#include <algorithm>
#include <limits>

#include "../runtime/traits.h"
#include "kernels.h"

namespace halo::cuda {
namespace {

using namespace long_conv;

constexpr int64_t kMaxLength = int64_t{1} << 21;
constexpr int64_t kMaxKernel = int64_t{1} << 30;
/// Residues of long rows are made for as many channels at once as fit this (one channel at least).
constexpr int64_t kResidueBytes = int64_t{512} << 20;

/// Which of the kernel's steps a pass needs.
struct Steps {
  bool input = false, input_inverse = false, grad = false, grad_inverse = false, weight_grad = false;
  bool weight_in_place = false;  ///< one chunk's sums may go where the weight's gradient is wanted
  bool make_spectra = false;     ///< the filters' transforms and nothing else
  int64_t residue_rows(int64_t batch) const { return batch * ((input ? 1 : 0) + (grad ? 1 : 0)) + 1; }
};

Steps forward_steps() { return {.input = true, .input_inverse = true}; }
Steps prepare_steps() { return {.make_spectra = true}; }

Steps backward_steps(const LongConvOperands& a, const LongConvGrads& g) {
  const DType sums = a.dtype == DType::Float64 ? DType::Float64 : DType::Float32;
  const bool weight_grad = g.weight || g.skip, grad_inverse = g.x || g.gate_in;
  return {.input = weight_grad || g.gate_out,
          .input_inverse = g.gate_out != nullptr,
          .grad = weight_grad || grad_inverse,
          .grad_inverse = grad_inverse,
          .weight_grad = weight_grad,
          .weight_in_place = g.weight != nullptr && a.weight_dtype == sums};
}

void check_operands(const char* op, const LongConvOperands& a) {
  const LongConvProblem& p = a.problem;
  if (p.batch < 0 || p.channels < 0 || p.length < 0 || p.kernel < 1)
    fail(op, ": problem expects sizes of make(), got ", p.str());
  if (p.length > kMaxLength) fail(op, ": length expects at most ", kMaxLength, ", got ", p.str());
  if (p.kernel > kMaxKernel) fail(op, ": kernel expects at most ", kMaxKernel, " taps, got ", p.str());
  for (DType t : {a.dtype, a.weight_dtype}) {
    if (!is_floating_point(t)) fail(op, ": expects floating-point operands, got ", name(t));
  }
  if ((a.dtype == DType::Float64) != (a.weight_dtype == DType::Float64)) {
    fail(op, ": weight expects float64 exactly where input is, got input ", name(a.dtype), ", weight ",
         name(a.weight_dtype));
  }
}

void check_grads(const char* op, const LongConvOperands& a, const LongConvGrads& g) {
  if (g.gate_in && !a.gate_in) fail(op, ": gate_in expects an operand where its gradient is asked for, got none");
  if (g.gate_out && !a.gate_out) fail(op, ": gate_out expects an operand where its gradient is asked for, got none");
}

/// Pieces the batch of a channel is cut into, so that the device has enough tasks: each costs one more transform of the
/// filter (half a row's work). The cost is time on the fullest multiprocessor, with a term for one that is not full.
int choose_chunks(int64_t batch, int64_t channels, int residues, const BlockGeometry& geometry, int processors) {
  int best = 1;
  double best_cost = std::numeric_limits<double>::infinity();
  const int64_t capacity = int64_t{processors} * geometry.blocks_per_multiprocessor * geometry.rows_per_block;
  for (int chunks = 1; chunks <= std::min<int64_t>(batch, 64); ++chunks) {
    const int64_t rows = (batch + chunks - 1) / chunks;
    if ((batch + rows - 1) / rows != chunks) continue;
    const int64_t tasks = channels * residues * chunks, rounds = (tasks + capacity - 1) / capacity;
    const double full = geometry.blocks_per_multiprocessor * geometry.rows_per_block;
    const double load =
        rounds > 1 ? static_cast<double>(rounds) * full : static_cast<double>((tasks + processors - 1) / processors);
    const double cost = (static_cast<double>(rows) + 0.5) * (load + 0.15 * full);
    if (cost < best_cost) {
      best_cost = cost;
      best = chunks;
    }
  }
  return best;
}

/// Hands out aligned pieces of a workspace; with a null base it only counts.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<char*>(base)) {}
  template <class T>
  T* take(int64_t count) {
    char* at = base_ ? base_ + used_ : nullptr;
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + 255) / 256 * 256;
    return reinterpret_cast<T*>(at);
  }
  std::size_t used() const { return used_; }

 private:
  char* base_;
  std::size_t used_ = 0;
};

/// Room for one complex number, where the device's type is not at hand.
template <class Real>
struct Pair {
  Real parts[2];
};

template <class Real>
Complex<Real>* take_points(Carver& carver, int64_t count) {
  return reinterpret_cast<Complex<Real>*>(carver.take<Pair<Real>>(count));
}

template <class Real>
Sizes sizes_of(const LongConvOperands& a) {
  const LongConvProblem& p = a.problem;
  Sizes s{.batch = p.batch,
          .channels = p.channels,
          .first_channel = 0,
          .channel_count = p.channels,
          .length = static_cast<int>(p.length),
          .kernel = static_cast<int>(p.kernel),
          .center = static_cast<int>(p.center()),
          .block = block_for<Real>(p.length),
          .log_residues = 0,
          .dtype = a.dtype,
          .weight_dtype = a.weight_dtype};
  while (s.points() < s.length) ++s.log_residues;
  return s;
}

/// What is made once for many calls: twiddles and the filters' spectra.
template <class Real>
struct Prepared {
  Tables<Real> tables{};
  Complex<Real>* spectra = nullptr;
  std::size_t bytes = 0;

  Prepared(const Sizes& s, const void* memory) {
    Carver carver(const_cast<void*>(memory));
    Complex<Real>* base = take_points<Real>(carver, table_points<Real>(s.block, s.log_residues));
    if (memory) tables = place_tables(s.block, s.log_residues, base);
    spectra = take_points<Real>(carver, s.channels * s.points());
    bytes = carver.used();
  }
};

/// One pass laid out: arguments of the block kernel with every workspace pointer set, and the launches' extents.
template <class Real>
struct Plan {
  BlockArgs<Real> args{};
  int64_t group = 0;  // channels a round of launches
  int slots = 0;      // rows in flight, the most that a launch has
  int rows_per_block = 1;
  Real* own_sums = nullptr;
  bool in_place = false;  ///< the weight's gradient itself takes the sums
  bool make_tables = true;
  std::size_t workspace_bytes = 0;

  Plan(const LongConvOperands& a, const Steps& steps, void* workspace) {
    const LongConvProblem& p = a.problem;
    Sizes& s = args.sizes;
    s = sizes_of<Real>(a);
    const int64_t points = s.points();
    const BlockGeometry geometry = block_geometry<Real>(s.block);
    rows_per_block = geometry.rows_per_block;
    const int processors = device_traits().multiprocessors;

    group = p.channels;
    if (s.log_residues > 0) {
      const int64_t channel_bytes = steps.residue_rows(p.batch) * points * static_cast<int64_t>(sizeof(Pair<Real>));
      group = std::clamp<int64_t>(kResidueBytes / channel_bytes, 1, p.channels);
      // Whole rounds of blocks, so that no launch but the last ends with a part of the device.
      const int64_t capacity = int64_t{processors} * geometry.blocks_per_multiprocessor * rows_per_block;
      const int64_t rounds = group * s.residues() / capacity;
      if (group < p.channels && rounds > 0) group = rounds * capacity / s.residues();
    }
    args.split_first = s.log_residues > kMaxLogSlices;
    args.chunks = choose_chunks(p.batch, group, s.residues(), geometry, processors);
    args.rows_per_chunk = static_cast<int>((p.batch + args.chunks - 1) / args.chunks);
    args.input_step = steps.input;
    args.input_inverse = steps.input_inverse;
    args.grad_step = steps.grad;
    args.grad_inverse = steps.grad_inverse;
    args.weight_grad = steps.weight_grad;
    args.make_spectra = steps.make_spectra;
    if (args.make_spectra) {
      args.chunks = 1;
      args.rows_per_chunk = 0;
    }
    args.slot_count = steps.weight_grad ? 3 : 1;
    const int64_t tasks = int64_t{args.chunks} * group * s.residues();
    const int64_t in_flight = int64_t{processors} * geometry.blocks_per_multiprocessor * rows_per_block;
    slots = static_cast<int>(std::min((tasks + rows_per_block - 1) / rows_per_block * rows_per_block, in_flight));

    Carver carver(workspace);
    if (a.prepared) {
      const Prepared<Real> made(s, a.prepared);
      args.tables = made.tables;
      args.spectra = made.spectra;
      make_tables = false;
    } else if (!steps.make_spectra) {
      Complex<Real>* tables = take_points<Real>(carver, table_points<Real>(s.block, s.log_residues));
      if (workspace) args.tables = place_tables(s.block, s.log_residues, tables);
    }
    args.slots = take_points<Real>(carver, int64_t{slots} * args.slot_count * s.block);
    if (s.log_residues > 0) {
      if (args.split_first ? steps.input : steps.input_inverse)
        args.input_residues = take_points<Real>(carver, p.batch * group * points);
      if (args.split_first ? steps.grad : steps.grad_inverse)
        args.grad_residues = take_points<Real>(carver, p.batch * group * points);
      if (args.split_first && !a.prepared) args.filter_residues = take_points<Real>(carver, group * points);
      args.weight_grad_residues = args.filter_residues;  // read before it is written, unless other chunks read it too
      if (steps.weight_grad && (args.chunks > 1 || !args.split_first)) {
        args.weight_grad_residues = take_points<Real>(carver, args.chunks * group * points);
      }
    }
    in_place = steps.weight_in_place && args.chunks == 1;
    if (steps.weight_grad && !in_place) own_sums = carver.take<Real>(args.chunks * p.w_numel());
    workspace_bytes = carver.used();
  }

  void run(cudaStream_t stream) {
    const Sizes whole = args.sizes;
    if (make_tables) launch_tables(whole, args.tables, stream);
    for (int64_t first = 0; first < whole.channels; first += group) {
      args.sizes.first_channel = first;
      args.sizes.channel_count = std::min(group, whole.channels - first);
      run_group(stream);
    }
    args.sizes = whole;
  }

 private:
  void run_group(cudaStream_t stream) {
    const Sizes& s = args.sizes;
    const int64_t rows = s.batch * s.channel_count;
    if (args.split_first) {
      if (args.filter_step()) {
        launch_split(SplitArgs<Real>{s, s.channel_count, {}, args.filter, args.filter_residues}, stream);
      }
      if (args.input_step) launch_split(SplitArgs<Real>{s, rows, args.input, {}, args.input_residues}, stream);
      if (args.grad_step) launch_split(SplitArgs<Real>{s, rows, args.grad, {}, args.grad_residues}, stream);
    }
    args.tasks = int64_t{args.chunks} * s.channel_count * s.residues();
    const int64_t blocks =
        std::min<int64_t>((args.tasks + rows_per_block - 1) / rows_per_block, slots / rows_per_block);
    launch_block(args, static_cast<int>(blocks), stream);
    if (s.log_residues > 0) {
      if (args.input_inverse)
        launch_merge(MergeArgs<Real>{s, rows, args.input_out, nullptr, args.input_residues}, stream);
      if (args.grad_inverse) launch_merge(MergeArgs<Real>{s, rows, args.grad_out, nullptr, args.grad_residues}, stream);
      if (args.weight_grad) {
        launch_merge(
            MergeArgs<Real>{s, args.chunks * s.channel_count, {}, args.weight_grad_sums, args.weight_grad_residues},
            stream);
      }
    }
  }
};

template <class F>
decltype(auto) dispatch_compute(DType dtype, F&& f) {
  return dtype == DType::Float64 ? f(double{}) : f(float{});
}

bool is_empty(const LongConvProblem& p) { return p.x_numel() == 0; }

}  // namespace

std::size_t long_conv_forward_workspace(const LongConvOperands& a) {
  check_operands("long_conv", a);
  if (is_empty(a.problem)) return 0;
  return dispatch_compute(a.dtype,
                          [&](auto real) { return Plan<decltype(real)>(a, forward_steps(), nullptr).workspace_bytes; });
}

std::size_t long_conv_backward_workspace(const LongConvOperands& a, const LongConvGrads& g) {
  check_operands("long_conv_backward", a);
  check_grads("long_conv_backward", a, g);
  if (is_empty(a.problem)) return 0;
  return dispatch_compute(
      a.dtype, [&](auto real) { return Plan<decltype(real)>(a, backward_steps(a, g), nullptr).workspace_bytes; });
}

void long_conv_forward(const LongConvOperands& a, void* output, void* workspace, cudaStream_t stream) {
  check_operands("long_conv", a);
  if (is_empty(a.problem)) return;
  dispatch_compute(a.dtype, [&](auto real) {
    Plan<decltype(real)> plan(a, forward_steps(), workspace);
    plan.args.input = {a.x, a.gate_in};
    plan.args.input_out = {output, a.gate_out, nullptr, nullptr};
    plan.args.filter = {a.weight, a.skip};
    plan.run(stream);
  });
}

std::size_t long_conv_prepared_bytes(const LongConvOperands& a) {
  check_operands("long_conv_prepare", a);
  return dispatch_compute(
      a.dtype, [&](auto real) { return Prepared<decltype(real)>(sizes_of<decltype(real)>(a), nullptr).bytes; });
}

std::size_t long_conv_prepare_workspace(const LongConvOperands& a) {
  return dispatch_compute(a.dtype,
                          [&](auto real) { return Plan<decltype(real)>(a, prepare_steps(), nullptr).workspace_bytes; });
}

void long_conv_prepare(const LongConvOperands& a, void* prepared, void* workspace, cudaStream_t stream) {
  check_operands("long_conv_prepare", a);
  dispatch_compute(a.dtype, [&](auto real) {
    Plan<decltype(real)> plan(a, prepare_steps(), workspace);
    const Prepared<decltype(real)> made(plan.args.sizes, prepared);
    plan.args.tables = made.tables;
    plan.args.spectra = made.spectra;
    plan.args.filter = {a.weight, a.skip};
    plan.run(stream);
  });
}

void long_conv_backward(const LongConvOperands& a, const LongConvGrads& g, void* workspace, cudaStream_t stream) {
  check_operands("long_conv_backward", a);
  check_grads("long_conv_backward", a, g);
  if (a.problem.channels == 0) return;
  const Steps steps = backward_steps(a, g);
  if (!steps.input && !steps.grad) return;
  dispatch_compute(a.dtype, [&](auto real) {
    using Real = decltype(real);
    FinishArgs<Real> finish{.sizes = {}, .chunks = 0, .sums = nullptr, .weight_grad = g.weight, .skip_grad = g.skip};
    if (is_empty(a.problem)) {  // gradients of a sum over nothing: zeros
      finish.sizes.channels = a.problem.channels;
      finish.sizes.kernel = static_cast<int>(a.problem.kernel);
      finish.sizes.center = static_cast<int>(a.problem.center());
      finish.sizes.weight_dtype = a.weight_dtype;
    } else {
      Plan<Real> plan(a, steps, workspace);
      plan.args.input = {a.x, a.gate_in};
      plan.args.grad = {g.grad_output, a.gate_out};
      plan.args.input_out = {g.gate_out, g.grad_output, nullptr, nullptr};
      plan.args.grad_out = {g.x, a.gate_in, g.gate_in, a.x};
      plan.args.filter = {a.weight, a.skip};
      plan.args.weight_grad_sums = plan.in_place ? static_cast<Real*>(g.weight) : plan.own_sums;
      plan.run(stream);
      finish.sizes = plan.args.sizes;
      finish.chunks = plan.args.chunks;
      finish.sums = plan.args.weight_grad_sums;
    }
    if (steps.weight_grad) launch_finish(finish, stream);
  });
}

}  // namespace halo::cuda
