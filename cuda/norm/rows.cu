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

enum Slot { kX, kResidual, kGradient = 1, kPast };

/// x with what is added to it.
template <class Row>
__device__ __forceinline__ typename Row::Values stream_sum(const Row& row,
                                                           const RowForward<typename Row::Element>& args) {
  auto v = row.take(kX, args.x);
  if (args.x_bias != nullptr) {
#pragma unroll
    for (int p = 0; p < Row::kPacks; ++p) {
      const auto chunk = row.chunk(typename Row::Columns{args.x_bias, 0}, p);
#pragma unroll
      for (int k = 0; k < Row::kSize; ++k) v.at[p * Row::kSize + k] += chunk.at[k];
    }
  }
  if (args.residual != nullptr) {
    const auto more = row.take(kResidual, args.residual);
#pragma unroll
    for (int e = 0; e < Row::kElements; ++e) v.at[e] += more.at[e];
  }
  return v;
}

template <class Row>
__global__ void __launch_bounds__(Teams::kThreads, 2)
    rows_forward_kernel(const __grid_constant__ RowTeams teams,
                        const __grid_constant__ RowForward<typename Row::Element> args) {
  using Value = typename Row::Value;
  using Columns = typename Row::Columns;
  __shared__ Totals<Value, 2> shared[Teams::kThreads / Teams::kWarp];
  const Value count = static_cast<Value>(args.length);
  const auto fetch = [&](const Row& row) {
    row.fetch(kX, args.x);
    if (args.residual != nullptr) row.fetch(kResidual, args.residual);
  };
  Row next(teams);
  fetch(next);
  while (next.more()) {
    const Row row = next;
    const auto v = stream_sum(row, args);
    next.advance();
    fetch(next);
    if (args.sum != nullptr)
      row.store(
          args.sum, [](int64_t, Value value) { return value; }, v);
    const Value total = row.template sum<Value>([&](Value& sum, int e) { sum += v.at[e]; });
    const Value mean = row.combine(total, reinterpret_cast<Value*>(shared), functor::Add{}) / count;
    // Of differences, which show what rounding took from the mean, and of their squares.
    auto sums = row.template sum<Totals<Value, 2>>([&](Totals<Value, 2>& sum, int e) {
      const Value difference = row.holds(e) ? v.at[e] - mean : Value(0);
      sum.at[0] += difference;
      sum.at[1] += difference * difference;
    });
    sums = row.combine(sums, shared, functor::Add{});
    const Value rest = sums.at[0] / count, variance = sums.at[1] / count - rest * rest;
    const Value rstd = 1 / sqrt((variance < 0 ? Value(0) : variance) + static_cast<Value>(args.eps));
    const Value shift = -rest * rstd;
    row.store(
        args.y, [&](int64_t, Value value, Value w, Value b) { return ((value - mean) * rstd + shift) * w + b; }, v,
        Columns{args.weight, 1}, Columns{args.bias, 0});
    if (!row.active || row.rank > 0) continue;
    args.mean[row.row] = mean + rest;
    args.rstd[row.row] = rstd;
  }
}

/// Adds the block's teams' column sums, in order, into out[0 ... length). All threads of the block call it.
template <class Row>
__device__ __forceinline__ void store_column_sums(const Row& row, const Teams& teams,
                                                  const typename Row::Values& values, typename Row::Value* out) {
  using Value = typename Row::Value;
  Value* const sums = reinterpret_cast<Value*>(row_slots);  // [teams][pitch]
  const int pitch = Row::kElements * teams.depth, own = teams.lane() * pitch;
  device::copy_async_wait_all();  // of rows that there are not
  __syncthreads();                // what is there may still be read
#pragma unroll
  for (int e = 0; e < Row::kElements; ++e) sums[own + row.column(e)] = values.at[e];
  __syncthreads();
  for (int column = static_cast<int>(threadIdx.x); column < row.length; column += Teams::kThreads) {
    Value sum = 0;
#pragma unroll 8
    for (int team = 0; team < teams.lanes; ++team) sum += sums[team * pitch + column];
    out[column] = sum;
  }
}

/// partials: [blocks][kSums][length], sums over the block's rows.
template <class Row, int kSums>
__global__ void __launch_bounds__(Teams::kThreads, 1)
    rows_backward_kernel(const __grid_constant__ RowTeams teams,
                         const __grid_constant__ RowBackward<typename Row::Element> args,
                         typename Row::Value* partials) {
  using Value = typename Row::Value;
  using Values = typename Row::Values;
  using Three = Totals<Value, 3>;
  __shared__ Three shared[Teams::kThreads / Teams::kWarp];
  const Value count = static_cast<Value>(args.length);
  Value next_mean, next_rstd;
  const auto fetch = [&](const Row& row) {
    row.fetch(kX, args.x);
    row.fetch(kGradient, args.g_y);
    if (args.g_x != nullptr) row.fetch(kPast, args.g_x);
    next_mean = row.active ? args.mean[row.row] : Value(0);
    next_rstd = row.active ? args.rstd[row.row] : Value(0);
  };
  Values sums[kSums] = {};
  Row next(teams);
  fetch(next);
  while (next.more()) {
    const Row row = next;
    const Value mean = next_mean, rstd = next_rstd;
    Values d = row.take(kX, args.x), h, past{};
    const Values g = row.take(kGradient, args.g_y);
    if (args.g_x != nullptr) past = row.take(kPast, args.g_x);
    next.advance();
    fetch(next);
#pragma unroll
    for (int p = 0; p < Row::kPacks; ++p) {
      const auto weight = row.chunk(typename Row::Columns{args.weight, 1}, p);
#pragma unroll
      for (int k = 0; k < Row::kSize; ++k) {
        const int e = p * Row::kSize + k;
        if (row.holds(e)) d.at[e] -= mean;
        h.at[e] = g.at[e] * weight.at[k];
      }
    }
    auto totals = row.template sum<Three>([&](Three& sum, int e) {
      sum.at[0] += d.at[e];
      sum.at[1] += h.at[e];
      sum.at[2] += h.at[e] * d.at[e];
    });
    totals = row.combine(totals, shared, functor::Add{});
    const Value rest = totals.at[0] / count, plain = totals.at[1] / count;
    const Value scaled = (totals.at[2] - rest * totals.at[1]) * rstd / count;
    const Value shift = -rest * rstd, of_plain = -plain * rstd, of_xhat = -scaled * rstd;
    // What lies beyond the row is not 0 any more, but nobody reads it.
#pragma unroll
    for (int e = 0; e < Row::kElements; ++e) {
      const Value xhat = d.at[e] * rstd + shift;
      h.at[e] = h.at[e] * rstd + (xhat * of_xhat + (of_plain + past.at[e]));
      sums[0].at[e] += g.at[e] * xhat;
      sums[1].at[e] += g.at[e];
      if constexpr (kSums > 2) sums[2].at[e] += h.at[e];
    }
    if (args.x_grad != nullptr)
      row.store(
          args.x_grad, [](int64_t, Value value) { return value; }, h);
  }
#pragma unroll
  for (int k = 0; k < kSums; ++k) {
    store_column_sums(next, teams.teams, sums[k], partials + (int64_t{blockIdx.x} * kSums + k) * args.length);
  }
}

template <class T, class... Pointers>
bool are_packs(Pointers... pointers) {
  return (is_aligned<T, kWide<T>>(pointers) && ...);
}

/// Blocks of the backward kernel, on which the bits of the sums depend. A thread adds up no more than so many rows in
/// float32; the rest is added in float64.
template <class T>
int64_t backward_blocks(int64_t rows, int64_t length) {
  constexpr int64_t kFull = 132, kFewRows = 16, kMostRows = 128;
  int64_t blocks = 0;
  with_held_row<T>({rows, length}, false, [&](auto, const RowTeams& t) {
    const int64_t lanes = t.teams.lanes, needed = (rows + lanes * kMostRows - 1) / (lanes * kMostRows);
    blocks = std::clamp<int64_t>(rows / (lanes * kFewRows), 1, std::max(kFull, needed));
  });
  return blocks;
}

/// Sums over rows that the kernel takes. Two alone are a kernel of their own where it matters.
template <class T>
int kernel_sums(const RowBackward<T>& a) {
  return a.x_sum != nullptr || sizeof(T) == 8 || a.length % kWide<T> != 0 ? 3 : 2;
}

}  // namespace

template <class T>
void rows_forward(const char* name, const RowForward<T>& a, cudaStream_t stream) {
  if constexpr (std::is_same_v<T, float>) {
    if (few_rows_forward(name, a, stream)) return;
  }
  const bool packs = are_packs<T>(a.x, a.x_bias, a.residual, a.weight, a.bias, a.sum, a.y);
  with_held_row<T>({a.rows, a.length}, packs, [&]<class Row>(std::type_identity<Row>, const RowTeams& t) {
    const std::size_t slots = a.residual != nullptr ? 2 : 1;
    const unsigned most = sizeof(T) > 2 ? 2112 : slots == 2 ? 1056 : 264;
    launch(name, rows_forward_kernel<Row>, t.blocks(most), Teams::kThreads, slots * Row::kSlotBytes, stream, t, a);
  });
}

template <class T>
int64_t rows_backward_workspace(const RowBackward<T>& a) {
  return backward_blocks<T>(a.rows, a.length) * kernel_sums(a) * a.length;
}

template <class T>
void rows_backward(const char* name, const RowBackward<T>& a, RowStatistic<T>* workspace, cudaStream_t stream) {
  const bool packs = are_packs<T>(a.x, a.weight, a.g_x, a.g_y, a.x_grad);
  const int64_t blocks = backward_blocks<T>(a.rows, a.length);
  const int sums = kernel_sums(a);
  with_held_row<T>({a.rows, a.length}, packs, [&]<class Row>(std::type_identity<Row>, const RowTeams& t) {
    auto kernel = rows_backward_kernel<Row, 3>;
    if constexpr (Row::kPacked && sizeof(T) < 8) {
      if (sums == 2) kernel = rows_backward_kernel<Row, 2>;
    }
    const std::size_t slots = a.g_x != nullptr ? 3 : 2;
    launch(name, kernel, static_cast<unsigned>(blocks), Teams::kThreads, slots * Row::kSlotBytes, stream, t, a,
           workspace);
  });
  sum_partials<RowStatistic<T>, T>(name, workspace, blocks, sums * a.length, a.length,
                                   {{a.weight_grad, a.bias_grad, a.x_sum}, a.length}, stream);
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
