// A team of threads a row: the row is read once, its statistics come from two passes over registers, and what backward
// sums over rows is kept a column a thread, added up over the block's teams, then over blocks (reduce/partials.h).
#include <halo/ops/binary_functors.h>

#include "../device/team_row.cuh"
#include "../reduce/partials.h"
#include "rows.h"

namespace halo::cuda {
namespace {

/// Several sums at once.
template <class Value, int N>
struct Totals {
  Value at[N];
  __device__ friend Totals operator+(const Totals& a, const Totals& b) {
    Totals sum;
#pragma unroll
    for (int k = 0; k < N; ++k) sum.at[k] = a.at[k] + b.at[k];
    return sum;
  }
};

template <class Row>
__device__ __forceinline__ void add_to(typename Row::Values& values, const typename Row::Values& more) {
#pragma unroll
  for (int e = 0; e < Row::kElements; ++e) values.at[e] += more.at[e];
}

/// x with what is added to it. Only x is read ahead: registers are short.
template <class Row>
__device__ typename Row::Values stream_sum(const Row& row, const typename Row::Raw& x,
                                           const RowForward<typename Row::Element>& args) {
  auto v = row.values(x);
  if (args.x_bias != nullptr) {
#pragma unroll
    for (int p = 0; p < Row::kElements; p += Row::kSize) {
      const auto chunk = row.chunk(typename Row::Columns{args.x_bias, 0}, p / Row::kSize);
#pragma unroll
      for (int k = 0; k < Row::kSize; ++k) v.at[p + k] += chunk.at[k];
    }
  }
  if (args.residual != nullptr) add_to<Row>(v, row.values(row.load(args.residual)));
  return v;
}

template <class Row>
__global__ void __launch_bounds__(Teams::kThreads)
    rows_forward_kernel(const __grid_constant__ RowTeams teams,
                        const __grid_constant__ RowForward<typename Row::Element> args) {
  using Value = typename Row::Value;
  using Columns = typename Row::Columns;
  __shared__ Totals<Value, 2> shared[Teams::kThreads / Teams::kWarp];
  const Value count = static_cast<Value>(args.length);
  Row next(teams);
  auto raw = next.load(args.x);
  while (next.more()) {
    const Row row = next;
    const auto v = stream_sum(row, raw, args);
    next.advance();
    raw = next.load(args.x);
    if (args.sum != nullptr)
      row.store(
          args.sum, [](int64_t, Value value) { return value; }, v);
    Value total = 0;
    row.each([&](int64_t, Value value) { total += value; }, v);
    const Value mean = row.combine(total, reinterpret_cast<Value*>(shared), functor::Add{}) / count;
    Totals<Value, 2> sums{0, 0};  // of differences, which show what rounding took from the mean, and of their squares
    row.each(
        [&](int64_t, Value value) {
          sums = sums + Totals<Value, 2>{value - mean, (value - mean) * (value - mean)};
        },
        v);
    sums = row.combine(sums, shared, functor::Add{});
    const Value rest = sums.at[0] / count, variance = sums.at[1] / count - rest * rest;
    const Value rstd = 1 / sqrt((variance < 0 ? Value(0) : variance) + static_cast<Value>(args.eps));
    row.store(
        args.y, [&](int64_t, Value value, Value w, Value b) { return (value - mean - rest) * rstd * w + b; }, v,
        Columns{args.weight, 1}, Columns{args.bias, 0});
    if (!row.active || row.rank > 0) continue;
    args.mean[row.row] = mean + rest;
    args.rstd[row.row] = rstd;
  }
}

/// Adds the block's teams' column sums, in order, into out[0 ... length). All threads of the block call it.
template <class Row>
__device__ void store_column_sums(const Row& row, int length, const Teams& teams, const typename Row::Values& values,
                                  typename Row::Value* out) {
  for (int team = 0; team < teams.lanes; ++team) {
    if (teams.lane() == team) {
#pragma unroll
      for (int e = 0; e < Row::kElements; ++e) {
        const int column = row.column(e);
        if (column < length) out[column] = (team == 0 ? 0 : out[column]) + values.at[e];
      }
    }
    __syncthreads();
  }
}

/// What backward reads of a row.
template <class Row>
struct Incoming {
  using Value = typename Row::Value;
  typename Row::Raw x, g;
  Value mean, rstd;
  __device__ Incoming(const Row& row, const RowBackward<typename Row::Element>& args)
      : x(row.load(args.x)),
        g(row.load(args.g_y)),
        mean(row.active ? args.mean[row.row] : Value(0)),
        rstd(row.active ? args.rstd[row.row] : Value(0)) {}
};

/// partials: [blocks][kSums][length], sums over the block's rows.
template <class Row, int kSums>
__global__ void __launch_bounds__(Teams::kThreads)
    rows_backward_kernel(const __grid_constant__ RowTeams teams,
                         const __grid_constant__ RowBackward<typename Row::Element> args,
                         typename Row::Value* partials) {
  using Value = typename Row::Value;
  using Values = typename Row::Values;
  constexpr int kSize = Row::kSize;
  __shared__ Totals<Value, 3> shared[Teams::kThreads / Teams::kWarp];
  const Value count = static_cast<Value>(args.length);
  Values sums[kSums] = {};
  for (Row row(teams); row.more(); row.advance()) {
    const Incoming<Row> incoming(row, args);
    const Value mean = incoming.mean, rstd = incoming.rstd;
    Values d = row.values(incoming.x), h;
    const Values g = row.values(incoming.g);
    Totals<Value, 3> totals{0, 0, 0};  // of d, h and h d
#pragma unroll
    for (int p = 0; p < Row::kElements; p += kSize) {
      const auto weight = row.chunk(typename Row::Columns{args.weight, 1}, p / kSize);
#pragma unroll
      for (int e = p; e < p + kSize; ++e) {
        d.at[e] = row.holds(e) ? d.at[e] - mean : Value(0);
        h.at[e] = g.at[e] * weight.at[e - p];
        totals = totals + Totals<Value, 3>{d.at[e], h.at[e], h.at[e] * d.at[e]};
      }
    }
    totals = row.combine(totals, shared, functor::Add{});
    const Value rest = totals.at[0] / count, plain = totals.at[1] / count;
    const Value scaled = (totals.at[2] - rest * totals.at[1]) * rstd / count;
    Values past{};
    if (args.g_x != nullptr) past = row.values(row.load(args.g_x));
#pragma unroll
    for (int e = 0; e < Row::kElements; ++e) {
      const Value xhat = (d.at[e] - rest) * rstd;
      h.at[e] = rstd * (h.at[e] - plain - xhat * scaled) + past.at[e];
      sums[0].at[e] += g.at[e] * xhat;
      sums[1].at[e] += g.at[e];
      // What lies beyond the row is not 0 after the mean has gone.
      if constexpr (kSums > 2) sums[2].at[e] += row.active ? h.at[e] : Value(0);
    }
    if (args.x_grad != nullptr)
      row.store(
          args.x_grad, [](int64_t, Value value) { return value; }, h);
  }
  const Row row(teams);
#pragma unroll
  for (int k = 0; k < kSums; ++k) {
    store_column_sums(row, static_cast<int>(args.length), teams.teams, sums[k],
                      partials + (int64_t{blockIdx.x} * kSums + k) * args.length);
  }
}

template <class T, class... Pointers>
bool pack_rows(int64_t length, Pointers... pointers) {
  return length % kWide<T> == 0 && (is_aligned<T, kWide<T>>(pointers) && ...);
}

template <class T, class F>
void with_forward_row(int64_t rows, int64_t length, bool packs, F&& f) {
  if (length <= kHeldElements<T> * Teams::kThreads) return with_held_row<T, kHeldElements<T>>({rows, length}, packs, f);
  with_held_row<T, kMostHeldElements<T>>({rows, length}, packs, f);
}
/// Backward, with its sums, needs many registers for each element.
template <class T, class F>
void with_backward_row(int64_t rows, int64_t length, bool packs, F&& f) {
  constexpr int kFew = sizeof(T) == 8 ? 8 : 16;
  if (length <= kFew * Teams::kThreads) return with_held_row<T, kFew>({rows, length}, packs, f);
  with_held_row<T, 2 * kFew>({rows, length}, packs, f);
}

/// Blocks of the backward kernel, on which the bits of the sums depend.
template <class T>
int64_t backward_blocks(int64_t rows, int64_t length) {
  int64_t blocks = 0;
  with_backward_row<T>(rows, length, false, [&](auto, const RowTeams& t) {
    constexpr int64_t kMost = 528, kRowsATeam = 16;  // four a multiprocessor on the largest GPUs
    blocks = std::clamp<int64_t>(rows / (t.teams.lanes * kRowsATeam), 1, kMost);
  });
  return blocks;
}

/// Sums over rows that the kernel takes.
template <class T>
int kernel_sums(const RowBackward<T>& a) {
  return a.x_sum != nullptr ? 3 : 2;
}

}  // namespace

template <class T>
void rows_forward(const char* name, const RowForward<T>& a, cudaStream_t stream) {
  if constexpr (std::is_same_v<T, float>) {
    if (few_rows_forward(name, a, stream)) return;
  }
  const bool packs = pack_rows<T>(a.length, a.x, a.x_bias, a.residual, a.weight, a.bias, a.sum, a.y);
  with_forward_row<T>(a.rows, a.length, packs, [&]<class Row>(std::type_identity<Row>, const RowTeams& t) {
    launch(name, rows_forward_kernel<Row>, t.blocks(), Teams::kThreads, 0, stream, t, a);
  });
}

template <class T>
int64_t rows_backward_workspace(const RowBackward<T>& a) {
  return backward_blocks<T>(a.rows, a.length) * kernel_sums(a) * a.length;
}

template <class T>
void rows_backward(const char* name, const RowBackward<T>& a, RowStatistic<T>* workspace, cudaStream_t stream) {
  const bool packs = pack_rows<T>(a.length, a.x, a.weight, a.g_x, a.g_y, a.x_grad);
  const int64_t blocks = backward_blocks<T>(a.rows, a.length);
  const int sums = kernel_sums(a);
  with_backward_row<T>(a.rows, a.length, packs, [&]<class Row>(std::type_identity<Row>, const RowTeams& t) {
    auto kernel = rows_backward_kernel<Row, 2>;
    if constexpr (sizeof(T) >= 4) {  // a residual stream of half types is widened
      if (sums > 2) kernel = rows_backward_kernel<Row, 3>;
    }
    launch(name, kernel, static_cast<unsigned>(blocks), Teams::kThreads, 0, stream, t, a, workspace);
  });
  const auto sum = [&](int which, T* out) {
    sum_partials(name, workspace + which * a.length, blocks, sums * a.length, a.length, out, stream);
  };
  sum(0, a.weight_grad);
  sum(1, a.bias_grad);
  sum(2, a.x_sum);
}

template void rows_forward(const char*, const RowForward<float>&, cudaStream_t);
template void rows_forward(const char*, const RowForward<double>&, cudaStream_t);
template void rows_forward(const char*, const RowForward<BFloat16>&, cudaStream_t);
template void rows_forward(const char*, const RowForward<Float16>&, cudaStream_t);
template void rows_backward(const char*, const RowBackward<float>&, float*, cudaStream_t);
template void rows_backward(const char*, const RowBackward<double>&, double*, cudaStream_t);
template void rows_backward(const char*, const RowBackward<BFloat16>&, float*, cudaStream_t);
template void rows_backward(const char*, const RowBackward<Float16>&, float*, cudaStream_t);
template int64_t rows_backward_workspace(const RowBackward<float>&);
template int64_t rows_backward_workspace(const RowBackward<double>&);
template int64_t rows_backward_workspace(const RowBackward<BFloat16>&);
template int64_t rows_backward_workspace(const RowBackward<Float16>&);

}  // namespace halo::cuda
